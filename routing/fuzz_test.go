package routing

import (
	"context"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/fuzztest"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// target is a live core in a ring of two, to which the other node says whatever it likes. Some of its own calls wait
// for replies: 1 an ask, 2 one that books arrears, 3 a fetch, 4 a parcel.
type target struct {
	*core
	t     *testing.T
	now   instant
	peer  *member
	from  *inlet
	asked ask
	call  *call
}

// quiet is a driver that does nothing.
type quiet struct{}

func (quiet) dial(m *member)                       { m.wake = func() {} }
func (quiet) hangUp(*member)                       {}
func (quiet) redial(m *member)                     {}
func (quiet) wake()                                {}
func (quiet) sleep(context.Context, bell, instant) {}

// base is where the fuzzed core's clock is.
var base = time.Unix(1_800_000_000, 0)

func newTarget(t *testing.T) *target {
	x := &target{t: t, now: instant(time.Hour), from: &inlet{addr: "peer:1", incarnation: 7}}
	local := local.New(64, x.now, base)
	x.core = newCore(Options{Addr: "own:1", Table: newTable()}, func() instant { return x.now }, local) // small: each input has its own
	x.driver, x.random, x.incarnation = quiet{}, func() float64 { return 0.5 }, 1
	x.base = baseOf{local}
	x.storeless(local)
	x.discovered(x.now, []string{"peer:1"})
	x.peer = x.members["peer:1"]
	x.began, x.present = 1, true
	x.opened(x.now, x.peer, &wire.Hello{Version: version, Addr: "peer:1", Incarnation: 7, Nonce: steppedNonce, Changes: 2})
	x.applyDone(x.from, x.view.Load().digest, 2)
	for x.step(x.now) {
	}
	x.peer.acked = x.changes
	x.waits()
	return x
}

func newTable() *table.Table {
	return table.New(func(*table.Record) (any, error) { return nil, nil })
}

// records is a message with a record of another node's table.
func (x *target) records() []byte {
	of := table.Alone{Table: newTable(), Wall: func() time.Time { return base }}
	if _, err := of.Set(context.Background(), table.Record{Key: "k", Value: "v"}, table.Any); err != nil {
		x.t.Fatal(err)
	}
	return table.NewStream(of.Table).Next()
}

// waits has calls wait for replies.
func (x *target) waits() {
	x.asked = ask{Rule: routed(10), Key: x.key("peer:1"), Cost: 3}
	x.call = newCall(func(f *wire.Frame, id uint64) { f.Asks = append(f.Asks, &wire.Ask{Id: id}) })
	x.peer.post(x.call)
	x.owe(&x.asked, x.windowHere(x.now, &x.asked), 4)
	x.book(x.now)
	x.mu.Lock()
	x.ask(&fetch{key: string(x.asked.Key), view: x.view.Load(), open: 1}, x.peer)
	x.mu.Unlock()
	x.peer.mu.Lock()
	x.peer.out.add(x.local.LedgerNow(x.now), 1, &moved.Entry{Key: x.asked.Key, Account: local.Account{State: 1, Begins: 1, Ends: 2}})
	x.peer.out.seal()
	x.peer.mu.Unlock()
	for x.peer.take(x.stamp()) != nil {
	}
}

// key is one that a node owns.
func (x *target) key(owner string) []byte {
	now := x.view.Load().ring
	for i := 0; ; i++ {
		if k := keyOf(i); now.Owner(ring.HashOf(k)) == owner {
			return k
		}
	}
}

// takes has a frame accepted, and all that came with it.
func (x *target) takes(f *wire.Frame, answer bool) {
	if answer {
		x.replied(x.now, x.peer, f)
		return
	}
	x.serve(x.now, x.from, f, x.says, func(asks []*wire.Ask) {
		s := x.serving(context.Background(), x.now, asks)
		s.decideStoreless(x.now)
		s.decideStoreless(s.until)
		x.says(&wire.Frame{Replies: s.replies(x.now)})
	})
}

// says looks at what the node answers.
func (x *target) says(f *wire.Frame) {
	for _, r := range f.GetReplies() {
		if r.GetStatus() > notInTime || r.GetRemaining() < 0 || r.GetResetUs() < 0 {
			x.t.Errorf("it answers %v", r)
		}
	}
}

// holds looks at what is left of the node.
func (x *target) holds(f *wire.Frame) {
	x.tick(x.now)
	for x.step(x.now) {
	}
	if v, ok := x.read(x.now, &x.asked, x.call); x.call.ended() && ok && (v.Charged > x.asked.Cost || v.ResetAfter < 0 || v.ResetAfter > longest(&x.asked.Rule.Limit) || v.Remaining < 0) {
		x.t.Errorf("an owner's verdict: %+v", v)
	}
	for _, o := range x.arrears.keys {
		if o.charge != 0 && o.charge != 4 || o.credit != 0 {
			x.t.Errorf("of 4 tokens, %d are to be booked, and %d to be credited", o.charge, o.credit)
		}
	}
	if len(x.members) > 2 || len(x.view.Load().ring.Members()) > 2 || x.stats.handed.Load() > 1 {
		x.t.Errorf("%d members, in the ring %v, %d handed over", len(x.members), x.view.Load().ring, x.stats.handed.Load())
	}
	x.decidesStill()
	_ = moved.Read(f.GetParcel().GetAccounts(), func(m moved.Entry) { x.handsOn(m.Key) })
	for _, a := range f.GetAsks() {
		x.handsOn(a.GetKey())
	}
}

// decidesStill sends a request for a new key, under every algorithm.
func (x *target) decidesStill() {
	own := x.view.Load().ring.Has("own:1")
	for algorithm := range ratelimit.RateAlgorithms() {
		rule := routed(10)
		rule.Limit.Algorithm, rule.Limit.Burst = ratelimit.Algorithm(algorithm), 10
		a, v := []ask{{Rule: rule, Key: append([]byte("nobody's"), byte(algorithm)), Cost: 7}}, make([]verdict, 1)
		for i := range 2 {
			x.local.Decide(context.Background(), x.now, a, v)
			if v[0].OverLimit != (i > 0) && own && v[0].Source != ratelimit.FromOverflow {
				x.t.Errorf("%s: the ask %d of 7 of 10 has %+v", ratelimit.Algorithms[algorithm], i, v[0])
			}
		}
	}
}

// handsOn decides on a key that was spoken of, and hands its account over: what
// was accepted, the next node accepts too.
func (x *target) handsOn(key []byte) {
	if len(key) == 0 || len(key) > ratelimit.MaxKeyLen || !x.local.Has(key) {
		return
	}
	for algorithm := range ratelimit.RateAlgorithms() {
		rule := routed(10)
		rule.Limit.Algorithm, rule.Limit.Burst = ratelimit.Algorithm(algorithm), 10
		v := make([]verdict, 1)
		x.local.Decide(context.Background(), x.now, []ask{{Rule: rule, Key: key, Cost: 1}}, v)
		if v[0].Remaining < 0 || v[0].ResetAfter < 0 {
			x.t.Errorf("%s: %+v", ratelimit.Algorithms[algorithm], v[0])
		}
	}
	a, ok := x.local.TakeOut(x.now, key)
	if !ok {
		return
	}
	here := x.local.LedgerNow(x.now)
	w := moved.NewWriter(here)
	w.Account(key, &a)
	n := 0
	err := moved.Read(w.B, func(m moved.Entry) {
		n++
		if !m.Plausible(here) {
			x.t.Errorf("it was accepted, and cannot be handed on: %+v", m.Account)
		}
	})
	if err != nil || n != 1 {
		x.t.Errorf("%d accounts, %v: %+v", n, err, a)
	}
}

// frames are what nodes say, and some of what they never do.
func frames(x *target) map[string]*wire.Frame {
	own, rule := x.key("own:1"), ruleBytes(routed(10))
	here := int64(x.local.LedgerNow(x.now))
	parcel := func(a local.Account) []byte {
		w := moved.NewWriter(ratelimit.LedgerTime(here))
		w.Account(own, &a)
		return w.B
	}
	window := routed(10).Limit.WindowAt(ratelimit.LedgerTime(here))
	return map[string]*wire.Frame{
		"asks":         {Asks: []*wire.Ask{{Id: 1, Key: own, Cost: 1, Rule: rule}, {Id: 2, Key: own, Cost: 1, Kind: 2, Rule: rule}, {Id: 3, Key: own, Kind: 1, Rule: rule}}},
		"undo":         {Asks: []*wire.Ask{{Id: 1, Key: own, Cost: 5, Charged: 5, Kind: undo, Rule: rule, Window: int64(window)}}},
		"table":        {Table: x.records()},
		"half a table": {Table: []byte{9}},
		"settles": {Asks: []*wire.Ask{
			{Id: 1, Key: own, Kind: 4, Cost: 1 << 43, Rule: rule, Window: int64(window)},
			{Id: 2, Key: own, Kind: 5, Cost: 7, Rule: rule, Window: math.MaxInt64},
			{Id: 3, Key: own, Kind: 5, Rule: rule},
		}},
		"fetches":   {Fetches: []*wire.Fetch{{Id: 1, Key: own, Ring: x.view.Load().digest}, {Id: 2}}},
		"presences": {Presences: []*wire.Presence{{Id: 1, Here: true, Changes: 2}, {Id: 2, Changes: 3}}},
		"leaves":    {Presences: []*wire.Presence{{Id: 1, Changes: 3}}, Done: x.view.Load().digest, DoneChanges: 3, Ping: 5, Sent: here},
		"parcel":    {Parcel: &wire.Parcel{Number: 1, First: 1, Sent: here, Accounts: parcel(local.Account{State: int64(window), Sum: 3, Begins: ratelimit.LedgerTime(here), Ends: ratelimit.LedgerTime(here) + 60_000_000})}},
		"bucket":    {Parcel: &wire.Parcel{Number: 9, First: 1, Sent: here, Accounts: parcel(local.Account{Algorithm: ratelimit.TokenBucket, Begins: ratelimit.LedgerTime(here), State: -(1 << 60), Extra: 1 << 50, Ends: 1 << 60})}},
		"future":    {Parcel: &wire.Parcel{Number: 1, Sent: here, Accounts: parcel(local.Account{Begins: 1 << 61, State: 1 << 61, Ends: 1 << 61})}, Sent: math.MaxInt64},
		"replies": {Replies: []*wire.Reply{
			{Id: 1, Charged: 3, Remaining: 7, ResetUs: 1e6, Window: int64(window), Hot: true},
			{Id: 2, Remaining: 7, Window: int64(window)},
			{Id: 3, Found: wire.Found_OTHER_RING},
		}},
		"lies":     {Replies: []*wire.Reply{{Id: 1, Charged: 1 << 40, ResetUs: math.MaxInt64}, {Id: 2, Status: 99}, {Id: 3, Found: 99, Status: 99}}},
		"receipts": {Receipts: []*wire.Receipt{{Number: 1, Refused: []uint32{0, 1, math.MaxUint32}}, {Number: 1}}},
	}
}

// Whatever a node that has proved to be one says, the core answers what makes
// sense, goes on to decide, and can hand on what it has accepted.
func FuzzFrame(f *testing.F) {
	x := newTarget(nil)
	for name, frame := range frames(x) {
		b, err := proto.Marshal(frame)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, name == "replies" || name == "lies" || name == "receipts")
	}
	f.Fuzz(func(t *testing.T, b []byte, answer bool) {
		if len(b) > 4<<10 {
			return // more of the same
		}
		fuzztest.Bytes(b, func(b []byte) {
			var frame wire.Frame
			if proto.Unmarshal(b, &frame) != nil {
				return
			}
			x := newTarget(t)
			x.takes(&frame, answer)
			x.holds(&frame)
		})
	})
}

// What no node says is counted as what it is.
func TestFramesAreCountedByKind(t *testing.T) {
	for _, c := range []struct {
		frame string
		kinds []string
	}{
		{"asks", nil},
		{"undo", []string{"ask"}},
		{"settles", []string{"ask"}},
		{"fetches", []string{"fetch"}},
		{"presences", nil},
		{"parcel", nil},
		{"future", []string{"account", "sent"}},
		{"lies", []string{"reply"}},
		{"table", nil},
		{"half a table", []string{"frame"}},
		{"receipts", []string{"receipt"}},
	} {
		x := newTarget(t)
		f := frames(x)[c.frame]
		x.takes(f, len(f.GetReplies())+len(f.GetReceipts()) > 0)
		x.holds(f)
		for kind, n := range x.Stats().RejectedBy {
			want := false
			for _, k := range c.kinds {
				want = want || k == kind
			}
			if want != (n > 0) {
				t.Errorf("%s: %d of kind %s are counted", c.frame, n, kind)
			}
		}
	}
}
