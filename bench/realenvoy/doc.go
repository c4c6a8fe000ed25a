// Package realenvoy runs a real Envoy with a configuration of deploy, with Sluice behind it.
//
// Guarantee: Envoy runs the configuration's own text. Its listeners get free ports of 127.0.0.1, and its
// clusters get the caller's endpoints. The admin port is added to read the results. Filters, routes, timeouts and health
// checks are as shipped. Each process is ended by its own id, and waits poll their condition.
//
// It does not say how fast Envoy is elsewhere: Envoy has one worker thread here, with nodes, Redis and client
// on the same machine.
//
// Start with Find and Start. process.Fleet is nodes of Sluice. Backend is the service behind Envoy. A Client calls
// Envoy.
package realenvoy
