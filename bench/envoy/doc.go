// Package envoy stands in for stock Envoy. A Client is one of the Rate Limit Quota Service. An LLM calls the
// rate limit service for requests to language models, and when they are done.
//
// An LLM makes the calls of Envoy 1.40 with deploy/envoy/llm.yaml: TestLLMIsEnvoy of bench/realenvoy compares
// them.
//
// A Client follows the source of Envoy's filter (source/extensions/filters/http/rate_limit_quota, mid-2026),
// including its quirks. TestModelIsEnvoy of bench/realenvoy compares it with an Envoy 1.40: both get the same
// messages, and pass the same requests. Five quirks are switches (Quirks), for Envoys that mend one. Envoy also
//
//   - reports every 5 s, and ignores reporting_interval,
//   - refuses requests without an assignment, as deploy/envoy/rlqs.yaml has it, also after one has expired,
//   - ignores assignments of requests_per_time_unit, and those without a strategy,
//   - ends an assignment without a TTL at once,
//   - takes only the whole seconds of fill_interval (less than one is a division by zero: the bucket is always full),
//   - and takes reuse_last_assignment as if there were no expired_assignment_behavior.
//
// A Client is pure: instants and messages are arguments, and it has no goroutine. Envoy has its timers and
// messages on its main thread, and requests on others. A Client has Tick and Receive for the first, and
// Request for the others. Between the end of an assignment and the Tick that notices, requests continue under
// it. So a frozen client is played by calling Request before Tick.
//
// A Client does not model the rest, because no server of ours depends on it: matching of requests to buckets,
// replies to denied requests, several worker threads. The same holds for per-route overrides and
// filter_enabled, which stock Envoy ignores.
package envoy
