package routing

import (
	"context"
	"testing"

	"github.com/sluice-gate/sluice/routing/ring"
)

// A node decides on a key of its own if it has the account, or if no other node can have it. Then all have
// handed over, it was its own ever since that, or all have stated for this very view that they have none.
func TestWhoDecidesOnOwnKeys(t *testing.T) {
	s, a := newPair(t)
	c, now := a.core, a.core.view.Load().ring
	mine, theirs := a.ownedBy("a:1"), a.ownedBy("b:1")
	alone := ring.Of([]string{"a:1"})
	for _, x := range []struct {
		what   string
		key    []byte
		stable bool
		since  []*ring.Ring
		has    bool
		found  fetchState
		before bool // found under another view
		change func()
		want   owned
	}{
		{what: "all have handed over", key: mine, stable: true, want: ownDecided},
		{what: "it is another's", key: theirs, stable: true, want: another},
		{what: "others may have it", key: mine, want: unsure},
		{what: "it has it", key: mine, has: true, want: ownDecided},
		{what: "it was its own before", key: mine, since: []*ring.Ring{alone}, want: ownDecided},
		{what: "nobody has any", key: mine, found: fetchAbsent, want: ownDecided},
		{what: "nobody had any under another ring", key: mine, found: fetchAbsent, before: true, want: unsure},
		{what: "it is looked for again", key: mine, found: fetchAgain, want: unsure},
		{what: "not all have heard that it joined", key: mine, stable: true, change: func() { c.unconfirmed.Store(true) }, want: another},
		{what: "it did not run", key: mine, stable: true, change: func() { c.ticked.Store(int64(s.now.Add(-lapseAfter - 1))) }, want: another},
	} {
		v := &view{ring: now, mine: true, since: x.since}
		v.stable.Store(x.stable)
		c.view.Store(v)
		c.unconfirmed.Store(false)
		c.ticked.Store(int64(s.now))
		c.local.TakeOut(s.now, mine)
		if x.has {
			a.has(mine)
		}
		if x.change != nil {
			x.change()
		}
		var found *fetch
		if x.found != fetching {
			if found = (&fetch{state: x.found, view: v}); x.before {
				found.view = &view{}
			}
		}
		vs := make([]verdict, 1)
		got := c.own(context.Background(), s.now, []ask{{Rule: s.rule, Key: x.key, Cost: 1}}, vs, found)
		if got != x.want || (vs[0].Charged == 1) != (got == ownDecided) {
			t.Errorf("%s: %v, want %v: %+v", x.what, got, x.want, vs[0])
		}
	}
}

// unsettled makes it unknown whether others have accounts of a core's keys.
func (n *scriptNode) unsettled() *view {
	v := n.view.Load()
	v.stable.Store(false)
	v.since = nil
	return v
}
