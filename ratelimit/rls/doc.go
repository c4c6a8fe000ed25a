// Package rls is the service that Envoy calls: RateLimitService v3 over gRPC, the same over POST /json,
// health, and the answers of envoyproxy/ratelimit.
//
// Guarantee: every request gets an answer, or an error that names its fault. No request ends the process, and
// a malformed one changes no account. It does not promise the answer: the rules (package config) and a
// ratelimit.Limiter decide.
//
// The way of a request: bytes - decodeRequest - match (rules and keys) - decide (Limiter) - conclude (codes,
// headers, metadata) - bytes. One pooled call object carries it from end to end, so that the way allocates
// nothing. A large request takes another call (large.go). JSON becomes bytes first, and goes the same way (json.go).
//
// A malformed request charges nothing, because nothing is decided before it is decoded whole. Later, a caller that has
// gone gets no answer, and its charges are undone.
package rls
