// Package gateways tests Sluice behind gateways as they are shipped: Envoy Gateway of its module, with the chart of its module, on a
// kube-apiserver, with stock Envoys. Package pods runs what the gateway deploys. make gateways-test builds the programs.
// It is a module of its own, so that Sluice does not depend on any of them.
package gateways
