package main

import (
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// gate decides which calls are begun; nil: all are (MAX_WAIT 0).
func (s *flags) gate() *shed.Gate {
	if s.MaxWait == 0 {
		return nil
	}
	return shed.NewGate(s.MaxWait)
}

// gated puts the gate before gRPC's calls.
func gated(gate *shed.Gate, clock ratelimit.Clock) *transport.Gated {
	if gate == nil {
		return nil
	}
	return gate.Before(clock)
}
