package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// setBack is a node in stepped time, and a ledger whose clock can be set.
type setBack struct {
	*testing.T
	*Stepped
	now    instant
	by     time.Duration
	ledger *account.Memory
	rule   *ratelimit.Rule
	key    []byte
	timers []func()
}

func newSetBack(t *testing.T, l ratelimit.Limit) *setBack {
	const begins = instant(time.Hour)
	b := &setBack{T: t, now: begins, key: []byte("k")}
	b.ledger = account.NewMemory(func() ledgerTime {
		return ledgerTime(20_834 * 86_400 * 1_000_000).Add(b.now.Sub(begins) + b.by)
	})
	b.rule = &ratelimit.Rule{Domain: "d", Path: "p", Limit: l, Coordination: ratelimit.DefaultCoordination()}
	b.rule.Coordination.OnStoreFailure = ratelimit.FailClosed
	after := func(_ time.Duration, f func()) { b.timers = append(b.timers, f) }
	clock, half := func() instant { return b.now }, func() float64 { return 0.5 }
	b.Stepped = NewStepped(account.NewHolder(), 1000, clock, time.Unix(1, 0), after, half)
	return b
}

// exchange has all messages answered, a millisecond later, and all timers go off.
func (b *setBack) exchange() {
	for batch := b.Batch(); batch != nil; batch = b.Batch() {
		grants := make([]account.Grant, len(batch.Claims()))
		epoch, at, err := b.ledger.Settle(b.Context(), batch.Claims(), grants)
		if err != nil {
			b.Fatal(err)
		}
		b.now = b.now.Add(time.Millisecond)
		batch.Answer(epoch, at, grants)
	}
	all := b.timers
	b.timers = nil
	for _, f := range all {
		f()
	}
}

func (b *setBack) ask(cost tokens) (admitted bool) {
	v := make([]verdict, 1)
	w := b.Ask(b.now, []ask{{Rule: b.rule, Key: b.key, Cost: cost}}, v)
	for i := 0; w != nil && w.Advance(b.now); i++ {
		b.exchange()
		if b.now = b.now.Add(time.Millisecond); i > 50 {
			w.TimeOver()
		}
	}
	b.exchange()
	return !v[0].OverLimit
}

// passes has a busy key's time pass.
func (b *setBack) passes(seconds int) {
	for range seconds {
		b.now = b.now.Add(time.Second)
		b.Greet()
		b.ask(0)
		b.Sweep(b.now)
		b.exchange()
	}
}

// When the ledger's clock is set back by more than a window, a busy key returns to a window that its node has left.
// It begins there without usage, under the name of its earlier usage at the ledger. So its first claim takes all of
// that back. A key that was dropped would return under another name.
func TestWindowThatComesBack(t *testing.T) {
	b := newSetBack(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100})
	if !b.ask(73) {
		t.Fatal("73 of 100 are refused")
	}
	b.passes(70)
	b.by = -65 * time.Second
	b.passes(52)
	if b.ask(60) {
		t.Error("133 of 100 are admitted")
	}
}

// The same window, after the node's last report for it: the report's number is above those of all claims, and so all
// of them are overtaken, without end.
func TestWindowThatComesBackAfterALateReport(t *testing.T) {
	b := newSetBack(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100})
	if !b.ask(50) {
		t.Fatal("50 of 100 are refused")
	}
	b.passes(55)
	// A refund that is not answered before the window ends.
	v := make([]verdict, 1)
	w := b.Ask(b.now, []ask{{Rule: b.rule, Key: b.key, Cost: 5, Kind: ratelimit.Refund}}, v)
	for w != nil && w.Advance(b.now) {
		w.TimeOver()
	}
	b.now = b.now.Add(6 * time.Second)
	b.exchange()
	b.passes(10)
	b.by = -65 * time.Second
	b.passes(49)
	if !b.ask(1) {
		t.Error("46 of 100 are refused")
	}
}
