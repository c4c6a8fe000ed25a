// Package envoy stands in for stock Envoy: a Client of the Rate Limit Quota Service, and a Filter that calls
// the rate limit service for requests, and when they are done.
//
// A Filter follows Envoy 1.40: TestStreamDoneStandIn of bench/realenvoy plays the rows of
// docs/internals/stream-done.md through it, as TestStreamDone does through an Envoy. Not modelled: headers,
// the limits of virtual hosts, stages, and actions other than generic_key, request_headers and metadata.
//
// A Client follows the source of Envoy's filter (source/extensions/filters/http/rate_limit_quota, mid-2026),
// including its quirks. TestModelIsEnvoy of bench/realenvoy compares it with an Envoy 1.40: both get the same
// messages, and pass the same requests. Each quirk is a switch (Quirks), for Envoys that mend one. The zero
// Quirks follow the protocol's documentation, and Stock follows the source.
//
// A Client is pure: instants and messages are arguments, and it has no goroutine. Envoy has its timers and
// messages on its main thread, and requests on others. A Client has Tick and Receive for the first, and
// Request for the others. Between the end of an assignment and the Tick that notices, requests continue under
// it. So a frozen client is played by calling Request before Tick. Run drives one over gRPC, in real time.
//
// Not modelled of a Client, because no server of ours depends on it: matching of requests to buckets, the
// replies to denied requests, per-route overrides and filter_enabled (which stock Envoy ignores), and more
// than one worker thread.
package envoy
