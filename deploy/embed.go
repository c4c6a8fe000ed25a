package deploy

import _ "embed"

// The configurations of Envoy that are run by the benchmark and the demo, as they are shipped.
var (
	//go:embed envoy/envoy.yaml
	Envoy string
	//go:embed envoy/ring-hash.yaml
	EnvoyRingHash string
	//go:embed envoy/rlqs.yaml
	EnvoyRLQS string
	//go:embed compose/envoy.yaml
	EnvoyCompose string
)
