package rls

import (
	"errors"
	"sync/atomic"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Stats count the work of the service since its start. All fields may be read at any time.
type Stats struct {
	Requests       atomic.Uint64
	OK             atomic.Uint64 // by overall_code
	OverLimit      atomic.Uint64
	GlobalShadow   atomic.Uint64          // over limit, but answered OK by SHADOW_MODE
	UnknownDomains ratelimit.RuleCounters // requests, and descriptors as hits, by the name of the domain
	// Unlimited counts requests without a rule, one of whose keys no rule has, by domain and key, with a NameSeparator.
	Unlimited ratelimit.RuleCounters
	// NoDescriptors counts requests without descriptors, which are an error, by the name of the domain.
	NoDescriptors ratelimit.RuleCounters
	BadRequests   atomic.Uint64
	LastBad       atomic.Pointer[string] // reason of the latest one, in a line, but not that it has no descriptors
	ServiceErrors atomic.Uint64          // bad requests, no config, and requests given up for others
	OtherErrors   atomic.Uint64          // of them, without those for requests without descriptors
	Panics        atomic.Uint64
	Sources       [len(ratelimit.Sources)]atomic.Uint64 // decisions, by source
}

func (s *Stats) count(err error) {
	s.Requests.Add(1)
	if err == nil || errors.Is(err, errGone) { // which the gate counts
		return
	}
	s.ServiceErrors.Add(1)
	bare := errors.Is(err, errNoDescriptors)
	if !bare {
		s.OtherErrors.Add(1)
	}
	if client, ok := errors.AsType[*badRequest](err); ok {
		s.BadRequests.Add(1)
		if !bare {
			s.LastBad.Store(&client.message)
		}
	}
}

func (s *Stats) countCode(over bool) {
	if over {
		s.OverLimit.Add(1)
	} else {
		s.OK.Add(1)
	}
}
