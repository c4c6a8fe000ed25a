package routing

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

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
		Algorithm: uint32(r.Limit.Algorithm), Unit: uint32(r.Limit.Unit), Multiplier: r.Limit.Multiplier,
		Requests: int64(r.Limit.Requests), Burst: int64(r.Limit.Burst),
		RefundDenied: c.OnDeny == ratelimit.DenyRefunds,
		Mode:         uint32(c.Mode), LeaseFixed: int64(c.Lease.Fixed), Audit: c.Audit,
		StoreDeadlineUs: c.StoreDeadline.Microseconds(),
	}
	// Under this name, the owner keeps records of an audit, and budgets of keys without room. A longer one is cut.
	m.Domain = cutName(r.Domain, maxRuleName)
	m.Path = cutName(r.Path, maxRuleName-len(m.Domain))
	if calendar := r.Limit.Calendar; calendar != 0 {
		m.BillingDay, m.TimeZone = uint32(calendar.Day()), calendar.Zone()
	}
	return m
}

func cutName(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }

// ruleBytes is the message of a rule in an ask. Names of rules are UTF-8, so that it can be encoded. Deterministic
// bytes are equal for equal rules, so that the owner's cache finds them.
func ruleBytes(r *ratelimit.Rule) []byte {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(ruleMessage(r))
	return b
}

// ruleCache keeps the rules of peers' asks, by their messages: a rule is read and built once, not for each
// ask. The zero ruleCache is empty. It is safe for concurrent use, and has at most maxRules.
type ruleCache struct {
	mu    sync.RWMutex
	rules map[string]*ratelimit.Rule // guarded by mu
}

const (
	maxRules     = 10_000
	maxRuleBytes = 4 << 10
	maxRuleName  = 1 << 10 // domain and path together
)

func (c *ruleCache) get(b []byte) (*ratelimit.Rule, error) {
	c.mu.RLock()
	r := c.rules[string(b)]
	c.mu.RUnlock()
	if r != nil {
		return r, nil
	}
	// Built without the lock: two that ask at once both build it, which is harmless.
	m := &wire.Rule{}
	if len(b) > maxRuleBytes || proto.Unmarshal(b, m) != nil {
		return nil, errMessage
	}
	r, err := readRule(m)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A peer that invents rules would fill the memory. Dropping all of them costs as many honest ones a
	// second look; an order of use would cost each ask.
	if c.rules == nil || len(c.rules) >= maxRules {
		c.rules = map[string]*ratelimit.Rule{}
	}
	c.rules[string(b)] = r
	return r, nil
}

// readRule builds the rule of a message, which can have any content. It refuses all that a rule file cannot have, so
// that a peer cannot make this node overflow or divide by zero. It returns errMessage for each fault: the sender has a
// bug, or another version.
func readRule(m *wire.Rule) (*ratelimit.Rule, error) {
	r := &ratelimit.Rule{
		Domain: m.GetDomain(), Path: m.GetPath(), Coordination: ratelimit.DefaultCoordination(),
		Counters: &ratelimit.RuleCounters{},
	}
	if int(m.GetAlgorithm()) >= len(ratelimit.Algorithms) || m.GetUnit() > 255 ||
		!limits(m.GetRequests(), m.GetBurst(), m.GetLeaseFixed()) ||
		m.GetMultiplier() > ratelimit.Unit(m.GetUnit()).MostMultiplier() ||
		len(m.GetDomain())+len(m.GetPath()) > maxRuleName || !ratelimit.KnownMode(m.GetMode()) {
		return nil, errMessage
	}
	r.Limit = ratelimit.Limit{
		Algorithm: ratelimit.Algorithm(m.GetAlgorithm()),
		Unit:      ratelimit.Unit(m.GetUnit()), Multiplier: m.GetMultiplier(),
		Requests: ratelimit.Tokens(m.GetRequests()), Burst: ratelimit.Tokens(m.GetBurst()),
	}
	if err := readCalendar(m, &r.Limit); err != nil {
		return nil, err
	}
	// What follows divides by the period. Only a bucket of a limit of 0 has no burst.
	if r.Limit.Period() <= 0 ||
		r.Limit.Algorithm == ratelimit.TokenBucket && m.GetBurst() == 0 && m.GetRequests() > 0 {
		return nil, errMessage
	}
	c := &r.Coordination
	c.OnStoreFailure = ratelimit.FailClosed // the asking node has the rule's own policy
	if m.GetRefundDenied() {
		c.OnDeny = ratelimit.DenyRefunds
	}
	c.Audit, c.Mode = m.GetAudit(), ratelimit.Mode(m.GetMode())
	c.Lease.Fixed = ratelimit.Tokens(m.GetLeaseFixed())
	if m.GetStoreDeadlineUs() < 0 || m.GetStoreDeadlineUs() > int64(ratelimit.MaxStoreDeadline/time.Microsecond) {
		return nil, errMessage
	}
	if m.GetStoreDeadlineUs() > 0 {
		c.StoreDeadline = time.Duration(m.GetStoreDeadlineUs()) * time.Microsecond
	}
	if errs := c.Validate(); len(errs) > 0 {
		return nil, errMessage
	}
	return r, nil
}

// limits reports whether all these numbers can be limits.
func limits(all ...int64) bool {
	return slices.Min(all) >= 0 && slices.Max(all) <= int64(ratelimit.MaxLimit)
}

// readCalendar cuts the limit's windows by the calendar that the message names. Only a billing month has one. A zone
// that this machine lacks is as malformed: cut in another, the owner's windows would not be those of the
// rule.
func readCalendar(m *wire.Rule, l *ratelimit.Limit) error {
	if l.Unit != ratelimit.BillingMonth {
		if m.GetBillingDay() != 0 || m.GetTimeZone() != "" {
			return errMessage
		}
		return nil
	}
	if l.Algorithm != ratelimit.FixedWindow || m.GetMultiplier() > 1 || m.GetBillingDay() > 31 {
		return errMessage
	}
	calendar, err := zone.Calendar(int(m.GetBillingDay()), m.GetTimeZone())
	if err != nil {
		return errMessage
	}
	*l = l.Billed(calendar)
	return nil
}

var errMessage = errors.New("a message is invalid")
