package routing

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// Bounds of memory, and of what one peer can have this node do, that no message shows.

// nowhere are wires on which nothing arrives.
type nowhere struct{}

func (nowhere) Dial(string, []byte)       {}
func (nowhere) HangUp(string)             {}
func (nowhere) Send(string, bool, []byte) {}

// unheard is a node that has introduced itself to b:1, which owns keys and never answers.
func unheard(now *instant) *Stepped {
	clock := func() instant { return *now }
	s := NewStepped(SteppedOptions{
		Options: Options{Addr: "a:1"}, Incarnation: 1, Clock: clock, Random: func() float64 { return 0 }, Wires: nowhere{},
		After: func(time.Duration, func()) {}, Local: local.New(10, *now, time.Unix(1_800_000_000, 0)),
	})
	s.Found([]string{"b:1"})
	s.opened(*now, s.members()[0], &wire.Hello{Version: version, Addr: "b:1", Incarnation: 7, Changes: 2})
	s.Pump()
	return s
}

// So many accounts are looked for at a time, each once for all who wait. A search keeps no memory of requests that have
// ended, and ends.
func TestMostFetches(t *testing.T) {
	now := instant(time.Second)
	s := unheard(&now)
	key := func(i int) []byte { return fmt.Append(nil, "key ", i) }
	f := s.fetch(key(0), nil)
	if s.fetch(key(0), nil) != f || f == nil || f.open != 1 {
		t.Errorf("it is looked for twice: %+v", f)
	}
	for i := range 2 * maxFetches {
		s.fetch(key(i), make(bell, 1))
	}
	if n := len(s.fetches); n > maxFetches {
		t.Errorf("%d accounts are looked for", n)
	}
	now = now.Add(fetchFor)
	s.endFetches(now)
	if f.state != fetchAgain || len(s.fetches) > 0 {
		t.Errorf("after %v %d accounts are looked for", fetchFor, len(s.fetches))
	}
}

// The receipts of a node are remembered for a bounded number of nodes: the one with the longest silence is dropped.
func TestMostInboxes(t *testing.T) {
	now := instant(time.Second)
	s := unheard(&now)
	for i := range instant(mostInboxes + 1) {
		s.inboxOf(now+i, &inlet{incarnation: uint64(100 + i)})
	}
	if len(s.inboxes) != mostInboxes || s.inboxes[100] != nil {
		t.Errorf("%d nodes have inboxes, and the first is still there: %v", len(s.inboxes), s.inboxes[100] != nil)
	}
}

// What a node has said in its last life counts no more, though it arrives after the next has begun.
func TestWordsOfAnEarlierLifeCountNoMore(t *testing.T) {
	now := instant(time.Second)
	s := unheard(&now)
	s.applyHello(now, &wire.Hello{Addr: "b:1", Incarnation: 8, Changes: 2})
	for _, x := range []struct {
		life    uint64
		members int
	}{{7, 2}, {8, 1}} {
		s.applyPresence(now, &inlet{addr: "b:1", incarnation: x.life}, false, 3)
		if got := s.Stats().Members; len(got) != x.members {
			t.Errorf("life %d has left, and the ring has %v", x.life, got)
		}
	}
}

// The lag of another's clock is the minimum over the messages of the last ten to twenty seconds. A lag below the travel
// time of a message counts as 0, but a clock that is ahead always counts. After a long silence it begins again.
func TestClocksAreCompared(t *testing.T) {
	const ms = time.Millisecond
	var in inbox
	at := instant(time.Second) // also in the first seconds of this node
	for i, c := range []struct {
		after       time.Duration
		later, want time.Duration
	}{
		{0, 30 * ms, 30 * ms},
		{0, 20 * ms, 20 * ms},
		{time.Second, 40 * ms, 20 * ms},
		{compareFor - time.Second, 25 * ms, 20 * ms}, // the first stretch goes on to here
		{1, 50 * ms, 20 * ms},                        // in the next one the last still counts
		{compareFor, 60 * ms, 20 * ms},
		{1, 70 * ms, 50 * ms}, // and now not
		{0, 6 * ms, 6 * ms},
		{0, 5 * ms, 0}, // as a message takes
		{0, 0, 0},
		{0, -1, -1},
		{2 * compareFor, 40 * ms, -1},
		{2*compareFor + 1, 60 * ms, 60 * ms}, // it was silent for so long
	} {
		at = at.Add(c.after)
		if got := in.compare(at, c.later); got != c.want {
			t.Errorf("message %d, %v later than sent: %v, want %v", i, c.later, got, c.want)
		}
	}
}

// Of the addresses that are found, as many are used as there may be nodes, and those that can be dialled.
func TestFoundAddressesAreBounded(t *testing.T) {
	var told string
	n := New(local.New(10, 1, time.Now()), Options{Addr: "a:1", OnPeer: func(_ string, err error) { told = err.Error() }},
		ratelimit.MonotonicClock(), time.Now())
	found := []string{"", "a", "a:b", strings.Repeat("x", 300) + ":1"}
	for i := range maxPeers + 10 {
		found = append(found, fmt.Sprintf("10.0.%d.%d:1", i/250, i%250))
	}
	used := n.usable(found)
	if len(used) != maxPeers || used[0] != "10.0.0.0:1" || n.Stats().RejectedBy["address"] != 14 {
		t.Errorf("%d are used, from %q on, and %v rejected", len(used), used[0], n.Stats().RejectedBy)
	}
	if !strings.Contains(told, "of 1014 addresses found, 1000 are used") {
		t.Error(told)
	}
	now := instant(time.Second)
	s := unheard(&now)
	s.Found(found[4:])
	s.applyHello(now, &wire.Hello{Addr: "x:1", Incarnation: 7})
	if n := len(s.members()); n != maxPeers {
		t.Errorf("%d nodes are dialled", n)
	}
}

// deadlines notes until when it may decide.
type deadlines struct {
	ratelimit.Limiter
	until time.Time
}

func (d *deadlines) Decide(ctx context.Context, _ instant, _ []ask, _ []verdict) {
	d.until, _ = ctx.Deadline()
}

// What has a time of its own is decided within that. What has none is decided within its caller's.
func TestDecidingHasItsTime(t *testing.T) {
	d, before := &deadlines{}, time.Now()
	if (baseOf{d}).decide(t.Context(), 1, 0, nil, nil); !d.until.IsZero() {
		t.Errorf("it has no time of its own, and decides until %v", d.until)
	}
	(baseOf{d}).decide(t.Context(), 1, time.Hour, nil, nil)
	if d.until.Before(before.Add(time.Hour)) || d.until.After(time.Now().Add(time.Hour)) {
		t.Errorf("it has an hour, and decides until %v", d.until)
	}
}
