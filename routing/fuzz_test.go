package routing_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/fuzztest"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/ratelimit/zone"
	"github.com/sluice-gate/sluice/routing"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/wire"
)

// Whatever a peer says, in frames that make no sense too.

// target is a node to which a peer says whatever it likes. It waits for replies, in this order: to an ask, to one that
// books arrears, to a fetch, and for a receipt.
type target struct {
	*world
	a     *node
	p     *peer
	open  []uint64 // the ids of what it waits for
	asked []verdict
	key   []byte // of the peer
}

func newTarget(t testing.TB) *target {
	w := newWorld(t, 1, 10)
	w.table, w.records = 64, newTable() // small: each input has its own
	w.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	a := w.join("a:1")
	w.until("it is alone", a.Ready)
	x := &target{world: w, a: a, key: keyIn(0, "b:1", "a:1"), asked: make([]verdict, 1)}
	a.has(x.key) // which is to be handed over
	x.p = w.peers("b:1")
	a.Found(w.addrs)
	w.until("they have met", a.sees(2))
	w.play(10 * time.Millisecond)
	v := make([]verdict, 1)
	a.Ask([]ask{{Rule: w.rule, Key: x.key, Cost: 4}}, v, nil, func() {})
	w.play(100 * time.Millisecond) // it decides alone
	x.p.frames = nil
	w.breakAll("a:1", "b:1")
	w.until("it owes 4", func() bool { return len(x.p.asks()) > 0 })
	x.rule.Coordination.OnStoreFailure = ratelimit.FailClosed
	a.Ask([]ask{{Rule: w.rule, Key: x.key, Cost: 3}}, x.asked, nil, func() {})
	a.Ask([]ask{{Rule: w.rule, Key: keyIn(0, "a:1", "b:1"), Cost: 3}}, v, nil, func() {})
	w.play(time.Millisecond)
	asks := x.p.asks()
	x.open = []uint64{asks[1].GetId(), asks[0].GetId(), x.p.fetches()[0].GetId()}
	x.p.frames = nil
	return x
}

func newTable() *table.Table {
	return table.New(func(*table.Record) (any, error) { return nil, nil })
}

// takes has a frame accepted, and looks at what the node makes of it.
func (x *target) takes(f *wire.Frame, answer bool) {
	for _, r := range f.GetReplies() {
		if r.GetId() > 0 && r.GetId() <= uint64(len(x.open)) {
			r.Id = x.open[r.GetId()-1]
		}
	}
	x.p.sends(f, answer)
	x.play(10 * time.Millisecond)
	x.p.settles()
	x.play(100 * time.Millisecond)
	for _, got := range x.p.frames {
		for _, r := range got.GetReplies() {
			if r.GetStatus() > 3 || r.GetRemaining() < 0 || r.GetResetUs() < 0 {
				x.Errorf("it answers %v", r)
			}
		}
		for _, m := range got.GetAsks() {
			if m.GetArrears() && (m.GetCost() != 4 || m.GetKind() != uint32(ratelimit.Charge)) {
				x.Errorf("it owes 4, and says %v", m)
			}
		}
	}
	l := &x.rule.Limit
	longest := 2*l.Period() + l.Refill(l.Burst)
	v := &x.asked[0]
	if v.Charged > 3 || v.Charged < 0 || v.Remaining < 0 || v.ResetAfter < 0 || v.ResetAfter > longest {
		x.Errorf("an owner's verdict: %+v", v)
	}
	if s := x.a.Stats(); len(s.Members) > 2 || s.Handed > 1 {
		x.Errorf("in the ring %v, %d handed over", s.Members, s.Handed)
	}
	_ = moved.Read(f.GetParcel().GetAccounts(), func(m moved.Entry) { x.handsOn(m.Key) })
	for _, m := range f.GetAsks() {
		x.handsOn(m.GetKey())
	}
	x.handsOn([]byte("a new key"))
}

// handsOn decides on a key, under every algorithm, and hands its account over: what was accepted, the next node accepts
// too.
func (x *target) handsOn(key []byte) {
	if len(key) == 0 || len(key) > ratelimit.MaxKeyLen {
		return
	}
	had := x.a.local.Has(key)
	for i := range ratelimit.RateAlgorithms() {
		rule, v := routed(10), make([]verdict, 1)
		rule.Limit.Algorithm, rule.Limit.Burst = ratelimit.Algorithm(i), 10
		x.a.local.Decide(x.Context(), x.now, []ask{{Rule: rule, Key: key, Cost: 7}}, v)
		none := !had && i == 0 && v[0].OverLimit && v[0].Source != ratelimit.FromOverflow
		if none || v[0].Remaining < 0 || v[0].ResetAfter < 0 {
			x.Errorf("%s: %+v", ratelimit.Algorithms[i], v[0])
		}
	}
	a, ok := x.a.local.TakeOut(x.now, key)
	if !ok {
		return
	}
	w, n := moved.NewWriter(x.here()), 0
	w.Account(key, &a)
	err := moved.Read(w.B, func(m moved.Entry) {
		if n++; !m.Plausible(x.here()) {
			x.Errorf("it was accepted, and cannot be handed on: %+v", m.Account)
		}
	})
	if err != nil || n != 1 {
		x.Errorf("%d accounts, %v: %+v", n, err, a)
	}
}

// framed is a frame of a peer, and what is counted as rejected of it.
type framed struct {
	frame  *wire.Frame
	answer bool
	kinds  []string
}

// frames are what nodes say, and some of what they never do.
func frames(x *target) map[string]framed {
	own, rule, here := keyIn(0, "a:1", "b:1"), routing.RuleBytes(x.rule), int64(x.here())
	window, ring := int64(x.rule.Limit.WindowAt(x.here())), x.a.Stats().Ring
	says := func(f *wire.Frame, kinds ...string) framed { return framed{f, false, kinds} }
	asks := func(asks ...*wire.Ask) *wire.Frame { return &wire.Frame{Asks: asks} }
	of := func(id uint64, kind ratelimit.Kind, cost, window int64) *wire.Ask {
		return &wire.Ask{Id: id, Key: own, Cost: cost, Kind: uint32(kind), Rule: rule, Window: window}
	}
	parcel := func(number uint64, a local.Account) *wire.Parcel {
		w := moved.NewWriter(x.here())
		w.Account(own, &a)
		return &wire.Parcel{Number: number, First: 1, Sent: here, Accounts: w.B}
	}
	bucket := local.Account{
		Algorithm: ratelimit.TokenBucket, Begins: x.here(), State: -(1 << 60), Extra: 1 << 50, Ends: 1 << 60,
	}
	shared := table.Alone{Table: newTable(), Wall: x.wall, Clock: ratelimit.MonotonicClock()}
	if _, err := shared.Set(x.Context(), table.Record{Key: "k", Value: "v"}, table.Any); err != nil {
		x.Fatal(err)
	}
	undo := of(1, 3, 5, window)
	undo.Charged = 5
	more := of(1, spend, 1, 0)
	more.Charged = 2
	all := map[string]framed{
		"asks":    says(asks(of(1, spend, 1, 0), of(2, refund, 1, 0), of(3, ratelimit.Peek, 0, 0))),
		"undo":    says(asks(undo), "ask"),
		"settles": says(asks(of(1, charge, 1<<43, window), of(2, gives, 7, math.MaxInt64), of(3, gives, 0, 0)), "ask"),
		"no asks": says(asks(
			&wire.Ask{}, &wire.Ask{Key: own, Cost: 1}, &wire.Ask{Key: make([]byte, 1000), Cost: 1, Rule: rule},
			&wire.Ask{Key: own, Cost: 1, Rule: []byte("no rule")}, &wire.Ask{Key: own, Cost: 1, Rule: make([]byte, 2000)},
			of(1, spend, -1, 0), of(1, spend, 0, 0), of(1, 9, 1, 0), of(1, charge, 1, -1), more,
		), "ask"),
		"more than a frame has": says(asks(slices.Repeat([]*wire.Ask{of(1, spend, 1, 0)}, 1025)...), "frame"),
		"table":                 says(&wire.Frame{Table: table.NewStream(shared.Table).Next()}),
		"half a table":          says(&wire.Frame{Table: []byte{9}}, "frame"),
		"fetches":               says(&wire.Frame{Fetches: []*wire.Fetch{{Id: 1, Key: own, Ring: ring}, {Id: 2}}}, "fetch"),
		"presences": says(&wire.Frame{
			Presences: []*wire.Presence{{Id: 1, Here: true, Changes: 2}, {Id: 2, Changes: 3}},
		}),
		"leaves": says(&wire.Frame{
			Presences: []*wire.Presence{{Id: 1, Changes: 3}}, Done: ring, DoneChanges: 3, Ping: 5, Sent: here,
		}),
		"parcel": says(&wire.Frame{Parcel: parcel(1, x.used(3))}),
		"bucket": says(&wire.Frame{Parcel: parcel(9, bucket)}),
		"future": says(&wire.Frame{
			Parcel: parcel(1, local.Account{Begins: 1 << 61, State: 1 << 61, Ends: 1 << 61}), Sent: math.MaxInt64,
		}, "account", "sent"),
		"replies": {&wire.Frame{Replies: []*wire.Reply{
			{Id: 1, Charged: 3, Remaining: 7, ResetUs: 1e6, Window: window, Hot: true},
			{Id: 2, Remaining: 7, Window: window},
			{Id: 3, Found: wire.Found_OTHER_RING},
		}}, true, nil},
		"lies": {&wire.Frame{Replies: []*wire.Reply{
			{Id: 1, Charged: 1 << 40, ResetUs: math.MaxInt64}, {Id: 2, Status: 99}, {Id: 3, Found: 99, Status: 99},
		}}, true, []string{"reply"}},
		"receipts": {&wire.Frame{
			Receipts: []*wire.Receipt{{Number: 1, Refused: []uint32{0, 1, math.MaxUint32}}, {Number: 1}},
		}, true, []string{"receipt"}},
	}
	for what, r := range map[string]*wire.Reply{ // to an ask that costs 3
		"charge": {Charged: 4}, "charge and debt": {Charged: 3, Debt: 1}, "rest": {Remaining: math.MaxInt64},
		"window": {Window: -1},
	} {
		r.Id = 1
		all["a lie of the "+what] = framed{&wire.Frame{Replies: []*wire.Reply{r}}, true, []string{"reply"}}
	}
	return all
}

// What no node says is counted as what it is.
func TestFramesAreCountedByKind(t *testing.T) {
	for name := range frames(newTarget(t)) {
		x := newTarget(t)
		f := frames(x)[name]
		x.takes(f.frame, f.answer)
		for kind, n := range x.a.Stats().RejectedBy {
			if slices.Contains(f.kinds, kind) != (n > 0) {
				t.Errorf("%s: %d of kind %s are counted", name, n, kind)
			}
			if name == "no asks" && kind == "ask" && n != 10 {
				t.Errorf("%d of 10 asks are counted as malformed", n)
			}
		}
	}
}

// Whatever a node that has proved to be one says, the core answers what makes sense, goes on to decide, and can hand on
// what it has accepted.
func FuzzFrame(f *testing.F) {
	for _, frame := range frames(newTarget(f)) {
		b, err := proto.Marshal(frame.frame)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, frame.answer)
	}
	f.Fuzz(func(t *testing.T, b []byte, answer bool) {
		if len(b) > 4<<10 {
			return // more of the same
		}
		fuzztest.Bytes(b, func(b []byte) {
			var frame wire.Frame
			if proto.Unmarshal(b, &frame) == nil {
				newTarget(t).takes(&frame, answer)
			}
		})
	})
}

func billed(r *ratelimit.Rule) {
	calendar, err := zone.Calendar(15, "America/New_York")
	if err != nil {
		panic(err)
	}
	r.Limit = r.Limit.Billed(calendar)
}

// A message has the parts of a rule that its owner decides by.
func TestRulesTravel(t *testing.T) {
	rows := map[string]func(*ratelimit.Rule){
		"refunds": func(r *ratelimit.Rule) { r.Coordination.OnDeny = ratelimit.DenyRefunds }, // leases for Envoys refund
		"a lease": func(r *ratelimit.Rule) {
			r.Coordination.Lease.Fixed, r.Coordination.StoreDeadline = 7, 30*time.Millisecond
		},
		"a billing month":   billed,
		"a year of seconds": func(r *ratelimit.Rule) { r.Limit.Unit, r.Limit.Multiplier = ratelimit.Second, 31_536_000 },
		"a long name in the audit": func(r *ratelimit.Rule) {
			r.Coordination.Audit, r.Path = true, strings.Repeat("é", 1000)
		},
	}
	for mode := range ratelimit.ModeNames() {
		rows["mode "+ratelimit.Mode(mode).String()] = func(r *ratelimit.Rule) { r.Coordination.Mode = ratelimit.Mode(mode) }
	}
	for what, change := range rows {
		r, m := routed(1000), &wire.Rule{}
		change(r)
		if err := proto.Unmarshal(routing.RuleBytes(r), m); err != nil {
			t.Fatal(err)
		}
		got, err := routing.ReadRule(m)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		c, want := &got.Coordination, &r.Coordination
		if got.Limit != r.Limit || c.Mode != want.Mode || c.OnDeny != want.OnDeny ||
			c.Lease.Fixed != want.Lease.Fixed || c.StoreDeadline != want.StoreDeadline {
			t.Errorf("%s: the owner has %+v", what, got)
		}
	}
}

// What no rule says is malformed: in each row one number or name of a good message is another.
func TestOddRulesAreRefused(t *testing.T) {
	plain := func(*ratelimit.Rule) {}
	for _, c := range []struct {
		what  string
		of    func(*ratelimit.Rule)
		spoil func(*wire.Rule)
	}{
		{"a mode that there is not", plain, func(m *wire.Rule) { m.Mode = 99 }},
		{"a unit of an earlier release", plain, func(m *wire.Rule) { m.Unit = 200 }},
		{"a limit below 0", plain, func(m *wire.Rule) { m.Requests = -1 }},
		{"a period beyond all time", plain, func(m *wire.Rule) { m.Multiplier = 2 }},
		{"no billing day", billed, func(m *wire.Rule) { m.BillingDay = 0 }},
		{"billing day 32", billed, func(m *wire.Rule) { m.BillingDay = 32 }},
		{"no zone", billed, func(m *wire.Rule) { m.TimeZone = "" }},
		{"no such zone", billed, func(m *wire.Rule) { m.TimeZone = "Europe/Berln" }},
		{"billing months of a sliding window", billed, func(m *wire.Rule) { m.Algorithm = uint32(ratelimit.SlidingWindow) }},
		{"several billing months", billed, func(m *wire.Rule) { m.Multiplier = 2 }},
		{"a unit without billing months", billed, func(m *wire.Rule) { m.Unit = uint32(ratelimit.Month) }},
		{"a unit that is none", billed, func(m *wire.Rule) { m.Unit = 10 }},
		{"a long name", plain, func(m *wire.Rule) { m.Path = strings.Repeat("x", 1024) }},
	} {
		r := routed(1000)
		c.of(r)
		m := routing.RuleMessage(r)
		if _, err := routing.ReadRule(m); err != nil {
			t.Fatal(err)
		}
		c.spoil(m)
		if got, err := routing.ReadRule(m); err == nil {
			t.Errorf("%s: read as %+v", c.what, got)
		}
	}
}
