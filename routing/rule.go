package routing

import (
	"math"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
	"github.com/sluice-gate/sluice/routing/wire"
)

// ruleMessage has the parts of a rule that an owner decides by. The owner may have other rules in force:
// while a fleet gets new ones node by node, each request is decided by the rule of the node that received it.
// The policy without an owner (on_store_failure) is not sent, because it never decides there.
func ruleMessage(r *ratelimit.Rule) *wire.Rule {
	c := &r.Coordination
	m := &wire.Rule{
		Audit:     r.AuditName(),
		Algorithm: uint32(r.Limit.Algorithm), Unit: uint32(r.Limit.Unit), Multiplier: r.Limit.Multiplier,
		Requests: int64(r.Limit.Requests), Burst: int64(r.Limit.Burst),
		CarryDebt: r.Limit.Carries, Ceiling: int64(r.Limit.Ceiling),
		RefundDenied: c.OnDeny == ratelimit.DenyRefunds, Eager: c.Reclaim == ratelimit.ReclaimEager,
		Mode: uint32(c.Mode), LeaseFixed: int64(c.Lease.Fixed),
		LeaseTtlUs: r.LeaseTTL().Microseconds(), LeaseAuto: true, // for nodes of earlier releases
		StoreDeadlineUs: c.StoreDeadline.Microseconds(),
	}
	if calendar := r.Limit.Calendar; calendar != 0 {
		m.BillingDay, m.TimeZone = uint32(calendar.Day()), calendar.Zone()
	}
	if n := r.Reserve(); n > 0 {
		m.Reserve, m.MaxNodes, m.Domain, m.Path = int64(n), uint32(c.MaxNodes), r.Domain, r.Path
	}
	return m
}

// ruleCache keeps the rules of peers' asks, by their message: a rule is checked and built once, not for each
// ask. The zero ruleCache is empty. It is safe for concurrent use, and has at most maxRules.
type ruleCache struct {
	mu    sync.RWMutex
	rules map[ruleKey]*ratelimit.Rule // guarded by mu
}

// ruleKey is a rule message as a map's key. Two messages that differ in anything an owner decides by must not
// share a rule: add each new field of the message here.
type ruleKey struct {
	algorithm, unit, multiplier uint32
	requests, burst, ceiling    int64
	refund, eager, carries      bool
	fixed                       int64
	audit                       string
	mode                        uint32
	deadlineUs                  int64
	day                         uint32
	zone                        string
	reserve                     int64
	nodes                       uint32
	domain, path                string
}

const (
	maxRules     = 10_000
	maxAuditName = 1 << 10
)

func (c *ruleCache) get(m *wire.Rule) (*ratelimit.Rule, error) {
	k := ruleKey{
		m.GetAlgorithm(), m.GetUnit(), m.GetMultiplier(), m.GetRequests(), m.GetBurst(), m.GetCeiling(),
		m.GetRefundDenied(),
		m.GetEager(), m.GetCarryDebt(),
		m.GetLeaseFixed(), m.GetAudit(), m.GetMode(),
		m.GetStoreDeadlineUs(),
		m.GetBillingDay(), m.GetTimeZone(),
		m.GetReserve(), m.GetMaxNodes(), m.GetDomain(), m.GetPath(),
	}
	c.mu.RLock()
	r := c.rules[k]
	c.mu.RUnlock()
	if r != nil {
		return r, nil
	}
	// Built without the lock: two that ask at once both build it, which is harmless.
	r, err := k.rule()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A peer that invents rules would fill the memory. Dropping all of them costs as many honest ones a
	// second look; an order of use would cost each ask.
	if c.rules == nil || len(c.rules) >= maxRules {
		c.rules = map[ruleKey]*ratelimit.Rule{}
	}
	c.rules[k] = r
	return r, nil
}

// rule builds the rule of a message, which can have any content. It refuses all that a rule file cannot have,
// so that a peer cannot make this node overflow or divide by zero.
func (k *ruleKey) rule() (*ratelimit.Rule, error) {
	const most = int64(ratelimit.MaxLimit)
	r := &ratelimit.Rule{
		Domain: "(peer)", Coordination: ratelimit.DefaultCoordination(),
		Counters: &ratelimit.RuleCounters{},
	}
	if int(k.algorithm) >= len(ratelimit.Algorithms) || k.unit > 255 || k.requests < 0 || k.requests > most ||
		k.burst < 0 || k.burst > most || k.ceiling < 0 || k.ceiling > most ||
		k.fixed < 0 || k.fixed > most || k.multiplier > 1<<20 ||
		len(k.audit) > maxAuditName || !ratelimit.KnownMode(k.mode) {
		return nil, errMessage
	}
	r.Limit = ratelimit.Limit{
		Algorithm: ratelimit.Algorithm(k.algorithm), Unit: ratelimit.Unit(k.unit), Multiplier: k.multiplier,
		Requests: ratelimit.Tokens(k.requests), Burst: ratelimit.Tokens(k.burst), Ceiling: ratelimit.Tokens(k.ceiling),
	}
	if err := k.bill(&r.Limit); err != nil {
		return nil, err
	}
	// What follows divides by the period, and adds periods to times.
	if unit := r.Limit.Unit.Length(); unit <= 0 || int64(max(1, k.multiplier)) > math.MaxInt64/int64(unit) {
		return nil, errMessage // a period that overflows may come out as none
	}
	if r.Limit.Period() <= 0 || r.Limit.Algorithm == ratelimit.TokenBucket && k.burst == 0 {
		return nil, errMessage
	}
	c := &r.Coordination
	c.OnStoreFailure = ratelimit.FailClosed // the asking node has the rule's own policy
	if k.refund {
		c.OnDeny = ratelimit.DenyRefunds
	}
	if r.Limit.Carries = k.carries; k.carries && r.Limit.Algorithm != ratelimit.FixedWindow {
		return nil, errMessage
	}
	// The record of an audited key carries the rule's name: the owner claims for it, and may
	// not have the rule.
	if c.Audit = k.audit != ""; c.Audit {
		r.Domain, r.Path, _ = strings.Cut(k.audit, ".")
	}
	c.Mode = ratelimit.Mode(k.mode)
	if k.eager {
		c.Reclaim = ratelimit.ReclaimEager
	}
	c.Lease.Fixed = ratelimit.Tokens(k.fixed)
	if k.deadlineUs < 0 || k.deadlineUs > int64(ratelimit.MaxStoreDeadline/time.Microsecond) {
		return nil, errMessage
	}
	if k.deadlineUs > 0 {
		c.StoreDeadline = time.Duration(k.deadlineUs) * time.Microsecond
	}
	if err := k.reserves(r); err != nil {
		return nil, err
	}
	if errs := c.Validate(); len(errs) > 0 {
		return nil, errMessage
	}
	r.Prepare()
	return r, nil
}

// reserves has the rule hold back what the message says. Which share of it this node has is for its own
// rules to say, by the rule's name.
func (k *ruleKey) reserves(r *ratelimit.Rule) error {
	if k.reserve == 0 && k.nodes == 0 && k.domain == "" && k.path == "" {
		return nil
	}
	if k.reserve <= 0 || k.nodes < 1 || k.nodes > ratelimit.MaxMaxNodes {
		return errMessage
	}
	r.Domain, r.Path = k.domain, k.path
	r.Coordination.MaxNodes = int(k.nodes)
	r.Coordination.Lease.Reserve = ratelimit.Share{Tokens: ratelimit.Tokens(k.reserve)}
	// What this node would hold back by it is to be what the peer holds back. It is nothing of rules that have no
	// reserve, which must not go by another rule's name.
	if r.Reserve() != ratelimit.Tokens(k.reserve) {
		return errMessage
	}
	return nil
}

// bill cuts the limit's windows by the calendar that the message names. Only a billing month has one. A zone
// that this machine lacks is as malformed: cut in another, the owner's windows would not be those of the
// rule.
func (k *ruleKey) bill(l *ratelimit.Limit) error {
	if l.Unit != ratelimit.BillingMonth {
		if k.day != 0 || k.zone != "" {
			return errMessage
		}
		return nil
	}
	if l.Algorithm != ratelimit.FixedWindow || k.multiplier > 1 || k.day > 31 {
		return errMessage
	}
	calendar, err := zone.Calendar(int(k.day), k.zone)
	if err != nil {
		return errMessage
	}
	*l = l.Billed(calendar)
	return nil
}
