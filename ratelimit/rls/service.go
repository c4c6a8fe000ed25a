package rls

import (
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/holds"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// Options apply to all answers. The zero value is the default, except NearLimitRatio.
type Options struct {
	ShadowMode     bool        // overall_code is always OK
	QuotaMode      bool        // every descriptor but unlimited ones is a quota descriptor
	Headers        HeaderNames // of responses
	RequestHeaders HeaderNames // of requests, for the service behind Envoy
	// IETF adds RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-11) to responses.
	IETF bool
	// DynamicMetadata puts the request and its rules' metadata into answers.
	DynamicMetadata bool
	// CalendarMonths makes windows of a month those of the calendar, also of
	// limits that requests bring along.
	CalendarMonths bool
	NearLimitRatio float64
	// SpareOthers has a request that one descriptor refuses charge none of the others
	// (STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT).
	SpareOthers bool
	// Holds, if set, is where holds with an id are made and settled; nil: none are.
	Holds *holds.Desk
	// LocalCache, if set, counts refusals as over_limit_with_local_cache; nil: none are.
	LocalCache *LocalCache
	// Traced says that calls have a span, which gets the decision.
	Traced bool
	// MaxRequestBytes bounds the body of POST /json; 0 means MaxRequestBytes.
	MaxRequestBytes int
	// Budget is what bodies that are being read count in; nil: there is none.
	Budget *transport.Budget
	// Gate, if set, decides which calls start, and counts refunds to callers that gave up.
	Gate *shed.Gate
}

// HeaderNames are three headers; without the name of the first there is none.
type HeaderNames struct{ Limit, Remaining, Reset string }

// Observer gets the duration of each call.
type Observer interface{ Observe(seconds float64) }

// Service answers rate limit requests. It is safe for concurrent use. Rules are read by each request anew, so that a
// reload needs no lock.
type Service struct {
	Stats   Stats
	rules   func() *config.Rules // those in force; nil before the first are loaded
	limiter ratelimit.Limiter
	clock   ratelimit.Clock
	wall    func() time.Time
	latency Observer
	options Options
	log     *slog.Logger
	calls   sync.Pool // of *call
	large   large
}

// New makes a service that takes its rules from rules and its decisions from
// limiter. wall is asked only for bans, whose windows need no account.
func New(rules func() *config.Rules, limiter ratelimit.Limiter, clock ratelimit.Clock, wall func() time.Time,
	latency Observer, o Options, log *slog.Logger,
) *Service {
	// A Desk without keys accepts no hold, and gives none, so that no other code asks whether there is one.
	o.MaxRequestBytes = cmp.Or(o.MaxRequestBytes, MaxRequestBytes)
	o.Holds = cmp.Or(o.Holds, new(holds.Desk))
	s := &Service{rules: rules, limiter: limiter, clock: clock, wall: wall, latency: latency, options: o, log: log}
	s.calls.New = func() any { return new(call) }
	s.large.calls.New, s.large.slots = s.calls.New, make(chan struct{}, largeAtOnce)
	return s
}

// Errors of a call that are not the client's.
var (
	errNoConfig = errors.New("no rate limit configuration loaded")
	errInternal = errors.New("internal error, see the log")
	errLarge    = errors.New("too many large requests are being decided")
	errGone     = errors.New("the caller gave up before the answer; there was no charge")
)
