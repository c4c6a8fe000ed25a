// Package xds reads rules from a management server, as Envoy Gateway and others
// run one: the state-of-the-world variant of xDS over an aggregated stream
// (CONFIG_TYPE=GRPC_XDS_SOTW), one domain a resource.
//
// Guarantee: every push is answered: acknowledged when its rules are in force,
// refused with all that is wrong with it otherwise; the rules before stay then,
// and when the server goes away. A server that is away is asked again for ever, at
// intervals that grow to a bound, with jitter.
package xds
