package rls

import (
	"errors"
	"sync/atomic"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Stats count the work of the service since its start. All fields may be read at any time. Requests that got no
// decision are in Requests and not in OK or OverLimit.
type Stats struct {
	Requests atomic.Uint64 `metric:"ratelimit_service_total_requests,grpc_method=ShouldRateLimit"`
	// by overall_code
	OK        atomic.Uint64 `metric:"sluice_answers_total,code=OK"`
	OverLimit atomic.Uint64 `metric:"sluice_answers_total,code=OVER_LIMIT"`
	// over limit, but answered OK by SHADOW_MODE
	GlobalShadow   atomic.Uint64          `metric:"sluice_global_shadow_total"`
	UnknownDomains ratelimit.RuleCounters // requests, and descriptors as hits, by the name of the domain
	// Unlimited counts requests without a rule, because no rule has one of their keys. Its names are the domain and
	// that key, with a NameSeparator between them.
	Unlimited ratelimit.RuleCounters
	// NoDescriptors counts requests without descriptors, which are an error, by the name of the domain.
	NoDescriptors ratelimit.RuleCounters
	BadRequests   atomic.Uint64 `metric:"sluice_bad_requests_total"`
	// LastBad is the reason of the latest bad request, in a line. Requests without descriptors are left out.
	LastBad atomic.Pointer[string]
	// ServiceErrors counts bad requests, requests without rules or given up for others, and internal errors.
	ServiceErrors atomic.Uint64 `metric:"ratelimit_service_should_rate_limit_error,err_type=service_error"`
	// OtherErrors are the ServiceErrors except for those of requests without descriptors.
	OtherErrors atomic.Uint64
	Panics      atomic.Uint64 `metric:"sluice_panics_total"`
	// decisions, by source
	Sources [len(ratelimit.Sources)]atomic.Uint64 `metric:"sluice_decision_sources_total,source"`
}

// count counts a request, and its error by kind. errGone is none: the gate counts callers that have gone.
func (s *Stats) count(err error) {
	s.Requests.Add(1)
	if err == nil || errors.Is(err, errGone) {
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

// countCode counts a request by its overall_code.
func (s *Stats) countCode(over bool) {
	if over {
		s.OverLimit.Add(1)
	} else {
		s.OK.Add(1)
	}
}
