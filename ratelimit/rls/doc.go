// Package rls is what Envoy meets: RateLimitService v3 over gRPC, the same
// over POST /json, health, and the answers of envoyproxy/ratelimit.
//
// Guarantee: every request gets an answer or an error that names what is wrong
// with it; none ends the process, and one that is refused as malformed has
// changed nothing. It does not promise which answer: the rules (package config)
// and a ratelimit.Limiter decide.
//
// The way of a request: bytes - decodeRequest - match (rules and keys) - decide
// (Limiter) - conclude (codes, headers, metadata) - bytes. It lives in one
// pooled call from end to end, so that the way allocates nothing.
package rls
