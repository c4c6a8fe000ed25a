// Package envoy stands in for stock Envoy: a Client of the Rate Limit Quota Service, and a
// Filter that calls the rate limit service for requests, and when they are done.
//
// A Filter does what Envoy 1.40 was seen to do: TestStreamDoneStandIn of bench/realenvoy plays
// the rows of docs/internals/stream-done.md through it, as TestStreamDone does through an Envoy.
// Not modelled: headers, the limits of virtual hosts, stages, and actions other than generic_key,
// request_headers and metadata.
//
// A Client does what stock Envoy does, as read in the source of its filter (source/extensions/filters/http/
// rate_limit_quota, mid-2026), quirks included. TestModelIsEnvoy of bench/realenvoy holds it
// against an Envoy 1.40: both get the same messages, and let the same requests pass.
//
// Each quirk is a switch (Quirks), so that an Envoy which has mended one is a setting away.
// The zero Quirks are what the protocol's own documentation says; Stock is what the source
// does.
//
// A Client is pure: instants and messages are arguments, and it has no goroutine. Envoy has
// its timers and messages on its main thread, and requests on others; a Client has Tick and
// Receive for the first, and Request for the others. Between the end of an assignment and
// the Tick that notices, requests go on under it: so a client that stood still is played by
// calling Request before Tick. Run drives one over gRPC, in real time.
//
// Not modelled of a Client, for no server of ours depends on it: matching of requests to buckets, the
// replies to denied requests, per-route overrides and filter_enabled (which stock Envoy
// ignores), and more than one worker thread.
package envoy
