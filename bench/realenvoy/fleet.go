package realenvoy

import "github.com/sluice-gate/sluice/bench/process"

// Fleet is nodes of Sluice as processes, behind an Envoy.
type Fleet = process.Fleet

// StartFleet runs so many nodes with a file of rules until Stop, and returns when all have joined.
func StartFleet(binary, rules string, nodes int, more ...string) (*Fleet, error) {
	return process.StartFleet(binary, rules, nodes, more...)
}
