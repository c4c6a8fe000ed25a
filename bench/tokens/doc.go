// Package tokens measures limits in tokens whose cost is known only when a request is done: what is used beyond the
// limit, what is refused though it would have fitted, and what Redis does, for each way to go about it.
//
// Guarantee: in each case every way gets the same requests in the same seconds, from what stands in for Envoy
// (envoy.Filter, by deploy/envoy/llm.yaml), with a fleet of its own processes and a Redis of its own that was empty.
// Used is what admitted requests have cost, as the caller counts it, within one window. A way that goes further over
// than requests in flight cost beyond what they held fails the command.
package tokens
