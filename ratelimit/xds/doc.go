// Package xds reads rules from a management server, such as that of Envoy Gateway: the state-of-the-world
// variant of xDS over an aggregated stream (CONFIG_TYPE=GRPC_XDS_SOTW), one domain a resource.
//
// Guarantee: every push is answered, unless a newer one has replaced it. It is acknowledged when its rules are in
// force, and otherwise refused with all its errors. Then the previous rules stay, as they do when the server goes
// away. The client reconnects for ever, at intervals that grow to a bound, with jitter.
package xds
