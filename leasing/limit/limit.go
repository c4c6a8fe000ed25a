// Package limit limits calls inside a Go program: alone, or together with all programs that use the same Redis. It is
// mode leasing of Sluice without a server.
//
//	limiter, err := limit.New(ctx, limit.Options{Redis: client})
//	logins, err := limit.NewRule("login", ratelimit.Limit{Requests: 5, Unit: ratelimit.Minute})
//	d, err := limiter.Take(ctx, logins.Key("alice"), 1)
//	if !d.Allowed {
//		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfter().Seconds()) + 1))
//	}
//
// Guarantee: all programs together admit at most the limit of a key in a window, while Redis keeps its data.
// Admissions by a rule's on_store_failure, while Redis does not answer, are on top of that; by default a tenth of the
// limit in each program.
package limit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Limiter takes tokens. It is safe for concurrent use. Close it to give back its leases.
type Limiter struct {
	clock ratelimit.Clock
	// decides is a fleet with Redis, and a node alone without.
	decides ratelimit.NodeLimiter
	calls   sync.Pool
	synced  atomic.Int64 // time at which windows of this program were last aligned with the wall clock
	// stop ends the fleet's Run, and ended is closed after it.
	stop  func()
	ended chan struct{}
}

// Options configure a [Limiter]. The zero Options are those of a program that limits alone.
type Options struct {
	// Redis stores the accounts. Nil: this program counts alone, and never waits. It must be an unused redis.Client
	// or redis.ClusterClient with ContextTimeoutEnabled: true and MaxRetries: -1. Otherwise a decision can wait
	// longer than its rule's StoreDeadline. The caller keeps and closes it.
	Redis redis.UniversalClient
	// Prefix begins all names in Redis.
	Prefix string
	// MaxKeys is the maximum of tracked keys, up to 800 bytes each; 0: 100,000. Further keys share budgets, and may
	// be refused early. With Redis, each program limits further keys alone.
	MaxKeys int
	// OnFailure is called when Redis does not answer. It must not block.
	OnFailure func(error)
}

const (
	defaultMaxKeys = 100_000
	mostMaxKeys    = 100_000_000
)

// startMost is the longest that New waits for Redis.
const startMost = 2 * time.Second

// New makes a limiter. With Redis, it blocks until Redis has answered and has the totals of all programs. That takes
// some milliseconds, and 750 ms if Redis is empty, because it may have lost them. After two seconds, or when ctx is
// done, it returns all the same, and OnStoreFailure decides until Redis answers. The error is about the options.
func New(ctx context.Context, o Options) (*Limiter, error) {
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	if o.MaxKeys < 0 || o.MaxKeys > mostMaxKeys {
		return nil, fmt.Errorf("limit: MaxKeys is %d, must be between 1 and %d, or 0 for %d", o.MaxKeys, mostMaxKeys,
			defaultMaxKeys)
	}
	l := &Limiter{clock: ratelimit.MonotonicClock(), stop: func() {}, ended: make(chan struct{})}
	l.calls.New = func() any { return new(question) }
	// Without Redis, there is nothing to run, and Close has nothing to wait for.
	if o.Redis == nil {
		l.decides = local.New(o.MaxKeys, l.clock(), time.Now())
		close(l.ended)
		return l, nil
	}
	ledger, err := account.NewRedis(o.Redis, o.Prefix)
	if err != nil {
		return nil, fmt.Errorf("limit: %w", err)
	}
	fleet := leasing.NewFleet(ledger, account.NewHolder(), o.MaxKeys, l.clock, time.Now())
	l.decides = fleet
	if o.OnFailure != nil {
		fleet.OnFailure = o.OnFailure
	}
	running, stop := context.WithCancel(context.Background())
	l.stop = stop
	go func() {
		defer close(l.ended)
		fleet.Run(running)
	}()
	ready(ctx, fleet)
	return l, nil
}

// ready waits until Redis decides, for a time. Without a request, no message would ask for Redis' epoch: Beat does.
func ready(ctx context.Context, f *leasing.Fleet) {
	ctx, cancel := context.WithTimeout(ctx, startMost)
	defer cancel()
	f.Beat()
	for !f.Ready() && ctx.Err() == nil {
		upkeep.Sleep(ctx, readyEvery)
	}
}

// readyEvery is the interval of its looks.
const readyEvery = 10 * time.Millisecond

// Close gives back unspent tokens, so that others need not wait for their end. It blocks for some milliseconds, or
// for a few seconds if Redis does not answer. Later calls are decided without Redis.
func (l *Limiter) Close() {
	l.stop()
	<-l.ended
}

// Rule is a limit with a name. It is immutable and safe for concurrent use.
type Rule struct {
	rule   *ratelimit.Rule
	prefix []byte
}

// NewRule makes a rule, or reports its errors. For example:
//
//	NewRule("login", ratelimit.Limit{Requests: 5, Unit: ratelimit.Minute})
//
// Programs that share a Redis share a budget if name, unit, algorithm and key are the same. The number of requests
// should be the same, because each claim is judged by its own number. The name is the domain of a rule file, so that a
// server can share the budget, too (Key). The coordination is optional (see [ratelimit.DefaultCoordination], which
// charges refused requests; without one, [ratelimit.Algorithm.OnDeny] decides). Its mode must be leasing, because the
// others need a server.
func NewRule(name string, limit ratelimit.Limit, coordination ...ratelimit.Coordination) (*Rule, error) {
	r := &ratelimit.Rule{Domain: name, Path: "key", Limit: limit, Coordination: ratelimit.DefaultCoordination()}
	r.Coordination.OnDeny = limit.Algorithm.OnDeny()
	if len(coordination) > 0 {
		r.Coordination = coordination[0]
	}
	if r.Limit.Algorithm == ratelimit.TokenBucket && r.Limit.Burst == 0 {
		r.Limit.Burst = r.Limit.Requests
	}
	var problems []string
	check := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	x := &r.Limit
	check(name == "", "it has no name")
	check(len(coordination) > 1, "it has %d coordinations, must have at most one", len(coordination))
	check(x.Unit == ratelimit.UnitUnknown || x.Unit > ratelimit.BillingMonth,
		"Unit is %d, must be one of ratelimit.Second to ratelimit.BillingMonth", x.Unit)
	check((x.Unit == ratelimit.BillingMonth) != (x.Calendar != 0),
		"Unit is %d and its calendar %v, must be ratelimit.BillingMonth with a calendar or neither: use Limit.Billed",
		x.Unit, x.Calendar)
	check(x.Unit.OfCalendar() && (x.Algorithm != ratelimit.FixedWindow || x.Multiplier > 1),
		"Algorithm is %v and Multiplier %d, must be FixedWindow and at most 1 with a calendar", x.Algorithm,
		x.Multiplier)
	check(x.Algorithm >= ratelimit.Concurrency, "Algorithm is %d, must be below %d: a limit for a period", x.Algorithm,
		ratelimit.Concurrency)
	check(x.Requests < 0 || x.Requests > ratelimit.MaxLimit, "Requests is %d, must be between 0 and %d", x.Requests,
		ratelimit.MaxLimit)
	check(x.Burst < 0 || x.Burst > ratelimit.MaxLimit, "Burst is %d, must be between 0 and %d", x.Burst,
		ratelimit.MaxLimit)
	check(x.Ceiling != 0, "Ceiling is %d, must be 0: only the service changes limits of keys", x.Ceiling)
	check(x.Burst != 0 && x.Algorithm != ratelimit.TokenBucket, "Burst is %d, and only a TokenBucket has one", x.Burst)
	if len(problems) == 0 {
		most := x.Unit.MostMultiplier()
		check(x.Multiplier > most, "Multiplier is %d, must be at most %d: a period is at most a year", x.Multiplier,
			most)
	}
	check(r.Coordination.Mode != ratelimit.Leasing,
		"its mode is %v, must be leasing: the others need the parts of a server", r.Coordination.Mode)
	for _, err := range r.Coordination.Validate() {
		check(true, "%v", err)
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("limit: rule %q: %s", name, strings.Join(problems, "; "))
	}
	return &Rule{rule: r, prefix: ratelimit.AppendPrefix(nil, name, r.Limit)}, nil
}

// Key is one budget under a rule. It is a value, and can be stored.
type Key struct {
	rule *ratelimit.Rule
	name string
}

// Key is the budget of a value, such as a user's name or an address. It equals the budget of the descriptor {key:
// key, value: value} at a server whose rule has the same domain and limit.
func (r *Rule) Key(value string) Key {
	b := ratelimit.AppendEntry(append([]byte(nil), r.prefix...), r.rule.Path, value, ratelimit.OfRequest)
	return Key{rule: r.rule, name: string(ratelimit.SealKey(b, 0))}
}

// Decision is the answer of a [Limiter].
type Decision struct {
	Allowed   bool
	Remaining int64 // of the limit; with Redis, as last read
	// Reset is the time until the limit is whole again. If a sliding window or a token bucket refuses, it is the time
	// until the same cost would pass.
	Reset time.Duration
	// WithoutRedis means that Redis did not answer in time, and the rule's OnStoreFailure decided.
	WithoutRedis bool
}

// RetryAfter is the time until a refused call can pass, 0 if it was allowed. In a sliding window and a token bucket it
// is an estimate: others may take the tokens first.
func (d Decision) RetryAfter() time.Duration {
	if d.Allowed {
		return 0
	}
	return d.Reset
}

// question has the values of one decision, reused to avoid allocations.
type question struct {
	asks     [1]ratelimit.Ask
	verdicts [1]ratelimit.Verdict
	key      []byte
}

// Take takes n tokens, or refuses. From a lease it does not block and does not allocate. Otherwise it blocks until
// Redis has answered, at most for the rule's StoreDeadline (15 ms), or until ctx is done. The error is about the
// arguments.
func (l *Limiter) Take(ctx context.Context, k Key, n int64) (Decision, error) {
	return l.ask(ctx, k, n, ratelimit.Spend)
}

// Peek returns the remaining tokens, and takes none.
func (l *Limiter) Peek(ctx context.Context, k Key) (Decision, error) {
	return l.ask(ctx, k, 0, ratelimit.Peek)
}

// Refund gives n tokens back, which any program has taken: at most the usage of this window.
func (l *Limiter) Refund(ctx context.Context, k Key, n int64) (Decision, error) {
	return l.ask(ctx, k, n, ratelimit.Refund)
}

// Errors about the arguments.
var (
	ErrNoRule = errors.New("limit: the key has no rule: create it with Rule.Key")
	ErrCost   = errors.New("limit: the number of tokens must be at least 1")
)

// ask decides one question. The key is copied into memory that is reused, because the limiters keep no slices of asks.
func (l *Limiter) ask(ctx context.Context, k Key, n int64, kind ratelimit.Kind) (Decision, error) {
	switch {
	case k.rule == nil:
		return Decision{}, ErrNoRule
	case n < 1 && kind != ratelimit.Peek:
		return Decision{}, ErrCost
	}
	c, now := l.calls.Get().(*question), l.clock()
	c.key = append(c.key[:0], k.name...)
	c.asks[0] = ratelimit.Ask{Rule: k.rule, Key: c.key, Cost: ratelimit.Tokens(n), Kind: kind}
	c.verdicts[0] = ratelimit.Verdict{}
	l.sync(now)
	l.decides.Decide(ctx, now, c.asks[:], c.verdicts[:])
	v := &c.verdicts[0]
	d := Decision{
		Allowed: !v.OverLimit, Remaining: int64(v.Remaining), Reset: v.ResetAfter,
		WithoutRedis: v.Source == ratelimit.FromFallback,
	}
	l.calls.Put(c)
	return d, nil
}

// sync aligns this program's own windows with the wall clock: without Redis, and in its outages. Of several calls, one
// does it, and at most once a second: SyncClock needs the time of the wall clock.
func (l *Limiter) sync(now ratelimit.Instant) {
	last := l.synced.Load()
	if now.Sub(ratelimit.Instant(last)) > time.Second && l.synced.CompareAndSwap(last, int64(now)) {
		l.decides.SyncClock(now, time.Now())
	}
}
