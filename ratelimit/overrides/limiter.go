package overrides

import (
	"context"
	"sync"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// Limiter has a base decide by rules with the limits that keys have by overrides. It is safe for concurrent use. Look,
// Reset and Hottest are about the limit in force, too; the rest of the base is as it is.
type Limiter struct {
	ratelimit.NodeLimiter // by the rules that it gets

	table *table.Table
	// time is the store's at an instant of this node.
	time func(ratelimit.Instant) ratelimit.LedgerTime
	pool sync.Pool // of *scratch

	mu sync.Mutex
	// rules are derived ones, each once for all keys with the same limit. Guarded by mu.
	rules map[ruleKey]*ratelimit.Rule
}

// ruleKey is a derived rule: a rule of the configuration, and the limit by which it decides instead.
type ruleKey struct {
	of    *ratelimit.Rule
	limit ratelimit.Limit
}

// mostRules bounds the rules that keys share. Beyond, all are dropped here, and stay with their keys.
const mostRules = 10_000

// scratch has the asks of a request, under the rules in force.
type scratch struct{ asks []ratelimit.Ask }

// NewLimiter makes a limiter over a base.
func NewLimiter(
	base ratelimit.NodeLimiter, t *table.Table, time func(ratelimit.Instant) ratelimit.LedgerTime,
) *Limiter {
	l := &Limiter{NodeLimiter: base, table: t, time: time}
	l.pool.New = func() any { return new(scratch) }
	return l
}

// Decide implements [ratelimit.Limiter]. Of its own, it does not block. It allocates where an override counts the first
// time under a rule. Verdicts of keys with an override have its limit, by which answers are written.
func (l *Limiter) Decide(
	ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict,
) {
	own := l.under(now, asks)
	if own == nil {
		l.NodeLimiter.Decide(ctx, now, asks, verdicts)
		return
	}
	l.NodeLimiter.Decide(ctx, now, own.asks, verdicts)
	for i := range asks {
		if is := own.asks[i].Rule; is != asks[i].Rule {
			verdicts[i].Limit = &is.Limit
		}
	}
	l.done(own)
}

// Undo implements [ratelimit.Limiter].
func (l *Limiter) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	own := l.under(now, asks)
	if own == nil {
		l.NodeLimiter.Undo(now, asks, verdicts)
		return
	}
	l.NodeLimiter.Undo(now, own.asks, verdicts)
	l.done(own)
}

// under is asks under the rules in force; nil: all are under their own. The caller's asks stay as they are: it reads
// its own rules after the decision. So the first key with an override copies all.
func (l *Limiter) under(now ratelimit.Instant, asks []ratelimit.Ask) (own *scratch) {
	if l.table.Empty() {
		return nil
	}
	for i := range asks {
		is := l.rule(now, &asks[i])
		if is == asks[i].Rule {
			continue
		}
		if own == nil {
			own, _ = l.pool.Get().(*scratch)
			own.asks = append(own.asks, asks...)
		}
		own.asks[i].Rule = is
	}
	return own
}

// done gives a scratch back to the pool.
func (l *Limiter) done(own *scratch) {
	clear(own.asks) // keys and rules are their owners'
	own.asks = own.asks[:0]
	l.pool.Put(own)
}

// rule is the rule in force for an ask. The derived rule is kept at the key's record, so that a request makes no rule,
// and takes no lock of the limiter. It is derived anew when the key comes under another rule: after a reload, or
// because rules of two units match it in turn.
func (l *Limiter) rule(now ratelimit.Instant, a *ratelimit.Ask) *ratelimit.Rule {
	if a.Rule.Override { // a limit that the request brought counts before
		return a.Rule
	}
	x, _ := l.table.Get(ratelimit.DescriptorKey(a.Key)).(*limit)
	if x == nil || x.ends != 0 && l.time(now) >= x.ends {
		return a.Rule
	}
	if d := x.derived.Load(); d != nil && d.of == a.Rule {
		return d.is
	}
	d := &derived{a.Rule, l.derive(a.Rule, x.in(a.Rule))}
	x.derived.Store(d)
	return d.is
}

// derive is a rule with the limit of an override; the rule itself if there is none. Keys with the same limit share one:
// 100,000 keys would need as many copies of a rule.
func (l *Limiter) derive(of *ratelimit.Rule, o *ratelimit.Override) *ratelimit.Rule {
	if o == nil {
		return of
	}
	is := of.Under(o) // counters, metadata and all else are those of the rule
	key := ruleKey{of, is.Limit}
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.rules[key]; known != nil {
		return known
	}
	if l.rules == nil || len(l.rules) >= mostRules {
		l.rules = map[ruleKey]*ratelimit.Rule{}
	}
	l.rules[key] = is
	return is
}

// inForce is an ask under the rule in force.
func (l *Limiter) inForce(now ratelimit.Instant, a *ratelimit.Ask) *ratelimit.Ask {
	own := *a
	own.Rule = l.rule(now, a)
	return &own
}

// Look implements [ratelimit.Inspector].
func (l *Limiter) Look(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	return l.NodeLimiter.Look(ctx, now, l.inForce(now, a))
}

// Reset implements [ratelimit.Inspector].
func (l *Limiter) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	return l.NodeLimiter.Reset(ctx, now, l.inForce(now, a))
}

// Hottest implements [ratelimit.Inspector].
func (l *Limiter) Hottest(now ratelimit.Instant, n int) []ratelimit.HotKey {
	all := l.NodeLimiter.Hottest(now, n)
	for i := range all {
		if key, ok := ratelimit.KeyOfName(all[i].Account); ok {
			x, _ := l.table.Get(ratelimit.DescriptorKey(key)).(*limit)
			all[i].Overridden = x != nil && (x.ends == 0 || l.time(now) < x.ends)
		}
	}
	return all
}
