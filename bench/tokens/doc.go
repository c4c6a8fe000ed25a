// Package tokens measures limits in tokens whose cost is known only when a request is done. For each way to
// limit, it measures usage beyond the limit, refusals of requests that would have fitted, and the work of
// Redis.
//
// Guarantee: in each case every way gets the same requests in the same seconds, from a stand-in for Envoy
// (envoy.LLM, as deploy/envoy/llm.yaml). Each way has a fleet of its own processes and an empty Redis of
// its own. Used is the cost of admitted requests within one window, as the caller counts it. A way that
// exceeds a limit by more than the costs in flight above their holds fails the command.
package tokens
