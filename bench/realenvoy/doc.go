// Package realenvoy runs a real Envoy with a configuration of deploy, with Sluice behind it.
//
// Guarantee: what runs is the configuration's own text. Its listeners get free ports of
// 127.0.0.1, its clusters get the endpoints that the caller names, and two things are added
// to read back what happened: the admin port and an access log. Filters, routes, timeouts and
// health checks are as they are shipped. Each process is ended by its own id, and whatever is waited for
// is asked for until it is so.
//
// It does not say how fast Envoy is elsewhere: Envoy has one worker thread here, beside nodes,
// Redis and client on the same machine.
//
// Start with Find and Start. A Fleet is nodes of Sluice; Backend is what stands behind
// Envoy; a Client asks Envoy and counts what it gets.
package realenvoy
