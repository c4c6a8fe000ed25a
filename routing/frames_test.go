package routing_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/wire"
)

// What nodes say and answer, frame by frame. The other node is a peer whose frames the test writes.

// peer is a node of the ring that says what a test has it say. Of itself it answers pings and announcements.
type peer struct {
	*node
	to     *node         // the node under test
	hello  wire.Hello    // how it introduces itself
	mute   bool          // it confirms no announcement
	shy    bool          // it opens no stream
	frames []*wire.Frame // of the other node, but pings and announcements
}

// newPeer is a node at a:1, and its peers, which have met it, and may have accounts of its keys.
func newPeer(t testing.TB, addrs ...string) (w *world, a *node, p *peer) {
	w = newWorld(t, 1, 10)
	p = w.peers(addrs...)
	a = w.join("a:1")
	w.until("they have met", a.sees(len(addrs)+1))
	w.play(10 * time.Millisecond)
	return w, a, p
}

// peers adds peers of node a:1, and returns the first.
func (w *world) peers(addrs ...string) (first *peer) {
	for _, addr := range slices.Backward(addrs) {
		first = &peer{node: w.add(addr)}
		first.hello = wire.Hello{Addr: addr, Nonce: make([]byte, 16), Incarnation: first.life, Changes: 2}
		first.at = first
		w.addrs = append(w.addrs, addr)
	}
	return first
}

func (w *world) peer(addr string) *peer { return w.nodes[addr].at.(*peer) }

// Accept implements end.
func (p *peer) Accept(hello []byte) ([]byte, error) {
	var h wire.Hello
	if err := proto.Unmarshal(hello, &h); err != nil {
		p.Fatal(err)
	}
	p.to, p.hello.Version = p.nodes[h.GetAddr()], h.GetVersion()
	if p.streams[h.GetAddr()] == nil && !p.shy {
		p.in(1, p.dials)
	}
	return proto.Marshal(&p.hello)
}

// dials introduces the peer to the other node.
func (p *peer) dials() {
	b, _ := proto.Marshal(&p.hello)
	p.Dial(p.to.addr, b)
}

// Opened implements end.
func (p *peer) Opened(string, []byte) {}

// Closed implements end.
func (p *peer) Closed(string) {}

// Receive implements end.
func (p *peer) Receive(_ string, answer bool, frame []byte) {
	f, a := &wire.Frame{}, &wire.Frame{}
	if err := proto.Unmarshal(frame, f); err != nil {
		p.Fatal(err)
	}
	if id := f.GetPing(); id != 0 {
		a.Replies = append(a.Replies, &wire.Reply{Id: id})
	}
	for _, m := range f.GetPresences() {
		if !p.mute {
			a.Replies = append(a.Replies, &wire.Reply{Id: m.GetId()})
		}
	}
	if len(a.Replies) > 0 {
		p.sends(a, true)
	}
	if answer || len(f.GetAsks())+len(f.GetFetches()) > 0 || f.GetParcel() != nil || f.GetDone() != 0 {
		p.frames = append(p.frames, f)
	}
}

func (p *peer) sends(f *wire.Frame, answer bool) {
	b, err := proto.Marshal(f)
	if err != nil {
		p.Fatal(err)
	}
	p.Send(p.to.addr, answer, b)
}

// says sends a frame, and returns what is answered to it, or sent soon after.
func (p *peer) says(f *wire.Frame) *wire.Frame {
	p.frames = nil
	p.sends(f, false)
	return p.heard()
}

// answers sends answers to what the other node has sent, and returns what it sends soon after.
func (p *peer) answers(f *wire.Frame) *wire.Frame {
	p.frames = nil
	p.sends(f, true)
	return p.heard()
}

// heard is what the other node sends soon, as one frame.
func (p *peer) heard() *wire.Frame {
	p.play(5 * time.Millisecond)
	all := merged(p.frames)
	p.frames = nil
	return all
}

// merged is several frames as one.
func merged(frames []*wire.Frame) *wire.Frame {
	all := &wire.Frame{}
	for _, f := range frames {
		proto.Merge(all, f)
	}
	return all
}

// asks are those that the peer was sent, and fetches the searches.
func (p *peer) asks() []*wire.Ask      { return merged(p.frames).GetAsks() }
func (p *peer) fetches() []*wire.Fetch { return merged(p.frames).GetFetches() }

// settles says that it has no account of others.
func (p *peer) settles() {
	p.says(&wire.Frame{Done: p.to.Stats().Ring, DoneChanges: p.hello.Changes})
}

// here is the time of all ledgers.
func (w *world) here() ratelimit.LedgerTime { return ratelimit.LedgerTime(w.wall().UnixMicro()) }

// used is an account of the present window, in which so many are used.
func (w *world) used(n tokens) local.Account {
	here := w.here()
	window := w.rule.Limit.WindowAt(here)
	return local.Account{State: int64(window), Sum: n, Begins: here, Ends: here.Add(time.Minute)}
}

// parcel has accounts of keys in which 4 are used.
func (w *world) parcel(number uint64, keys ...[]byte) *wire.Parcel {
	to, a := moved.NewWriter(w.here()), w.used(4)
	for _, k := range keys {
		to.Account(k, &a)
	}
	return &wire.Parcel{Number: number, First: 1, Sent: int64(w.here()), Accounts: to.B}
}

// has gives a node an account, wherever it belongs.
func (n *node) has(key []byte) {
	n.local.Decide(n.Context(), n.now, []ask{{Rule: n.rule, Key: key, Cost: 1}}, make([]verdict, 1))
}

// accounts are the keys in a parcel.
func accounts(p *wire.Parcel) (keys []string) {
	_ = moved.Read(p.GetAccounts(), func(m moved.Entry) { keys = append(keys, string(m.Key)) })
	return keys
}

// A node's announcements travel on two streams, and may arrive in another order. One from before its last join or
// departure, or of an earlier life, no longer counts: otherwise accounts on their way to it would begin again here.
func TestOldWordsOfANodeCountNoMore(t *testing.T) {
	first := newWorld(t, 1, 10)
	first.ring("a:1")
	alone := first.nodes["a:1"].Stats().Ring
	w, a, p := newPeer(t, "b:1")
	here := func(is bool, changes uint64) *wire.Frame {
		return &wire.Frame{Presences: []*wire.Presence{{Id: 1, Here: is, Changes: changes}}}
	}
	for i, x := range []struct {
		says    *wire.Frame
		owner   string // of a key in the ring of both
		members int
		settled bool // a key of that owner without an account is new
	}{
		{here(false, 1), "a:1", 2, false},
		{&wire.Frame{Done: a.Stats().Ring, DoneChanges: 1}, "a:1", 2, false},
		{&wire.Frame{Done: a.Stats().Ring, DoneChanges: 2}, "a:1", 2, true},
		{&wire.Frame{Done: alone, DoneChanges: 2}, "a:1", 2, true},
		{here(false, 3), "b:1", 1, false}, // it was done before that
		{here(true, 2), "b:1", 1, false},
		{here(true, 4), "a:1", 2, true}, // it has been this node's all the time
	} {
		p.says(x.says)
		other := map[string]string{"a:1": "b:1", "b:1": "a:1"}[x.owner]
		v := w.one("a:1", ask{Key: keyIn(100*i, x.owner, other), Cost: 1})
		if settled := v.Source != ratelimit.FromFallback; !a.sees(x.members)() || settled != x.settled {
			t.Errorf("row %d: it sees %v, and a new key has %+v", i, a.Stats().Members, v)
		}
	}
	p.hello.Incarnation++
	a.streams["b:1"].breaks()
	w.play(time.Second)                       // it has met the next life
	if p.says(here(false, 5)); !a.sees(2)() { // on the stream of the life before
		t.Error("the next life has left with the last one")
	}
}

// Receipts are remembered for a bounded number of lives of nodes. The one with the longest silence is dropped.
func TestReceiptsOfManyLivesAreBounded(t *testing.T) {
	const most = 2000
	w, a, p := newPeer(t, "b:1")
	key, first := keyIn(0, "a:1", "b:1"), p.hello.Incarnation
	counts := func(life uint64) bool {
		p.hello.Incarnation = life
		w.breakAll("a:1", "b:1")
		w.play(time.Second) // they have met again
		if f := p.says(&wire.Frame{Parcel: w.parcel(1, key)}); len(f.GetReceipts()) != 1 {
			t.Fatalf("a parcel of life %d is answered %v", life, f)
		}
		_, ok := a.local.TakeOut(w.now, key)
		return ok
	}
	for i := range uint64(most + 1) {
		if !counts(first + i) {
			t.Fatalf("the parcel of life %d does not count", i)
		}
	}
	if counts(first+2) || !counts(first) {
		t.Error("a parcel of late counts twice, or one of the first life is remembered")
	}
}

// A node may join and leave so often; each time all tables are walked through.
func TestNodesMayNotComeAndGoForEver(t *testing.T) {
	w, a, p := newPeer(t, "b:1")
	turns := func(from, to int) (done int) {
		for i := from; i < to; i++ {
			f := p.says(&wire.Frame{Presences: []*wire.Presence{{Id: 1, Here: i%2 == 1, Changes: uint64(3 + i)}}})
			if f.GetReplies()[0].GetStatus() == 0 {
				done++
			}
		}
		return done
	}
	if n, bad := turns(0, 30), a.Stats().RejectedBy["presence"]; n > 25 || n < 20 || bad == 0 {
		t.Errorf("it has come and gone %d times, and %d more are counted", n, bad)
	}
	w.play(11 * time.Second)
	if n := turns(30, 40); n != 10 {
		t.Errorf("its time has begun anew, and it has come and gone %d times", n)
	}
}

// What a node says of an account that another looks for. A key counts as new when all have said none: so that is said
// only of what certainly is not here, and not on its way. What is here leaves at once.
func TestWhereAnAccountIs(t *testing.T) {
	w, a, p := newPeer(t, "b:1", "c:1")
	ring, own, other := a.Stats().Ring, keyIn(0, "a:1", "b:1", "c:1"), keyIn(0, "b:1", "a:1", "c:1")
	says := func(why string, key []byte, ring uint64, want wire.Found) *wire.Frame {
		t.Helper()
		f := p.says(&wire.Frame{Fetches: []*wire.Fetch{{Id: 3, Key: key, Ring: ring}}})
		if got := f.GetReplies()[0].GetFound(); got != want {
			t.Errorf("%s: it says %v and should say %v", why, got, want)
		}
		return f
	}
	says("it is the owner, and the other sees another ring", own, ring+1, wire.Found_OTHER_RING)
	says("it has none", other, ring, wire.Found_NONE)
	says("it has none now, but may take some in under the ring that it sees", other, ring+1, wire.Found_OTHER_RING)
	a.has(other)
	says("it has it, and the other sees another ring", other, ring+1, wire.Found_OTHER_RING)
	f := says("it has it", other, ring, wire.Found_ELSEWHERE)
	if got := accounts(f.GetParcel()); len(got) != 1 || got[0] != string(other) {
		t.Errorf("it sends accounts of %q", got)
	}
	if f := says("it is on its way", other, ring, wire.Found_ELSEWHERE); f.GetParcel() != nil {
		t.Error("it is sent twice")
	}
	p.answers(&wire.Frame{Receipts: []*wire.Receipt{{Number: f.GetParcel().GetNumber()}}})
	says("it is there", other, ring, wire.Found_NONE)
	last := keyIn(0, "c:1", "a:1", "b:1")
	a.has(last)
	w.peer("c:1").says(&wire.Frame{Fetches: []*wire.Fetch{{Id: 3, Key: last, Ring: ring}}})
	says("it is on its way to another", last, ring, wire.Found_ELSEWHERE)
}

// What is made of the answers: a key is new when all have said that they have none, and not before. Everything else is
// asked again. Who sees another ring for longer than others need to see it counts no more.
func TestAnswersToAFetch(t *testing.T) {
	const none, elsewhere, other = wire.Found_NONE, wire.Found_ELSEWHERE, wire.Found_OTHER_RING
	for _, x := range []struct {
		why  string
		b, c wire.Found // NOT_SAID: nothing yet
		age  time.Duration
		new  bool
	}{
		{"one has not answered", none, wire.Found_NOT_SAID, 0, false},
		{"nobody has any", none, none, 0, true},
		{"one is on its way", elsewhere, none, 0, false},
		{"one says what this node does not know", 4, none, 0, false},
		{"one sees another ring", other, none, 2*routing.TakeOver - 100*time.Millisecond, false},
		{"and goes on to", other, none, 2 * routing.TakeOver, true},
		{"and another has some", other, elsewhere, 2 * routing.TakeOver, false},
	} {
		w, a, _ := newPeer(t, "b:1", "c:1")
		w.play(x.age)
		key, v := keyIn(0, "a:1", "b:1", "c:1"), make([]verdict, 1)
		a.Ask([]ask{{Rule: w.rule, Key: key, Cost: 1}}, v, nil, func() {})
		for addr, found := range map[string]wire.Found{"b:1": x.b, "c:1": x.c} {
			p := w.peer(addr)
			w.until("it is asked", func() bool { return len(p.fetches()) > 0 })
			asked := p.fetches()[0]
			if asked.GetRing() != a.Stats().Ring || string(asked.GetKey()) != string(key) {
				t.Fatalf("%s was asked %v", addr, asked)
			}
			if found != wire.Found_NOT_SAID {
				p.sends(&wire.Frame{Replies: []*wire.Reply{{Id: asked.GetId(), Found: found}}}, true)
			}
		}
		w.play(3 * time.Millisecond)
		again := len(w.peer("c:1").fetches()) > 1
		if isNew := v[0].Charged == 1; isNew != x.new || again != (!x.new && x.c != wire.Found_NOT_SAID) {
			t.Errorf("%s: it is new %v, and asked for again %v", x.why, isNew, again)
		}
	}
}

// Waiting requests are answered before a parcel of the same message is adopted.
func TestAnswersBeforeAParcel(t *testing.T) {
	w, a, p := newPeer(t, "b:1")
	fetch := &wire.Fetch{Id: 3, Key: keyIn(0, "b:1", "a:1"), Ring: a.Stats().Ring}
	p.heard()
	p.sends(&wire.Frame{Fetches: []*wire.Fetch{fetch}, Parcel: w.parcel(1, keyIn(0, "a:1", "b:1"))}, false)
	w.until("all is answered", func() bool { return len(p.frames) == 2 })
	first, second := p.frames[0], p.frames[1]
	if len(first.GetReplies()) != 1 || len(first.GetReceipts()) != 0 || len(second.GetReceipts()) != 1 {
		t.Errorf("it says %v", p.frames)
	}
}

// What another node asks is decided here or not at all: two nodes that take each other for the owner must not send an
// ask to and fro.
func TestForwardedAskIsNotForwarded(t *testing.T) {
	w, a, p := newPeer(t, "b:1", "c:1")
	w.peer("c:1").settles()
	p.settles()
	for owner, answered := range map[string]bool{"a:1": true, "b:1": false, "c:1": false} {
		key := keyIn(0, slices.Compact([]string{owner, "a:1", "b:1", "c:1"})...)
		f := p.says(&wire.Frame{Asks: []*wire.Ask{{Id: 7, Key: key, Cost: 1, Rule: routing.RuleBytes(w.rule)}}})
		r := f.GetReplies()
		if len(r) != 1 || r[0].GetId() != 7 || r[0].GetStatus() == 0 != answered || r[0].GetOverLimit() {
			t.Errorf("an ask for a key of %s is answered %v", owner, r)
		}
	}
	if n := a.Stats().Forwarded; n != 0 {
		t.Errorf("%d asks were forwarded", n)
	}
}

// What an owner answers is what a node that has asked it returns.
func TestVerdictOfAPeer(t *testing.T) {
	w, a, p := newPeer(t, "b:1")
	for _, x := range []struct {
		reply *wire.Reply
		want  verdict
	}{
		{
			&wire.Reply{OverLimit: true, Remaining: 1, Charged: 2, ResetUs: 3, Window: 4},
			verdict{OverLimit: true, Remaining: 1, Charged: 2, ResetAfter: 3 * time.Microsecond, Window: 4},
		},
		{&wire.Reply{Remaining: -1, ResetUs: -3}, verdict{}}, // nothing is negative
		{&wire.Reply{OverLimit: true, Charged: 1, Debt: 1}, verdict{OverLimit: true, Charged: 1, Debt: 1}},
		{&wire.Reply{Status: 2}, verdict{Source: ratelimit.FromFallback}},
		{&wire.Reply{Status: 3}, verdict{Source: ratelimit.FromFallback}},
	} {
		v := make([]verdict, 1)
		a.Ask([]ask{{Rule: w.rule, Key: keyIn(0, "b:1", "a:1"), Cost: 2}}, v, nil, func() {})
		x.reply.Id = p.heard().GetAsks()[0].GetId()
		p.answers(&wire.Frame{Replies: []*wire.Reply{x.reply}})
		if x.reply.GetStatus() > 0 {
			w.play(time.Second)
			v[0] = verdict{Source: v[0].Source}
		} else {
			x.want.Source = ratelimit.FromOwner
		}
		if v[0] != x.want {
			t.Errorf("%v: %+v", x.reply, v[0])
		}
	}
}

// A parcel counts once. It is answered as before if it comes again, as long as its sender may ask. One that makes no
// sense is counted, and not answered.
func TestParcelsCountOnce(t *testing.T) {
	w, a, p := newPeer(t, "b:1")
	sends := func(m *wire.Parcel) bool { return len(p.says(&wire.Frame{Parcel: m}).GetReceipts()) == 1 }
	if sends(w.parcel(0)) || a.Stats().RejectedBy["parcel"] != 1 {
		t.Error("a parcel without a number was accepted")
	}
	bad := w.parcel(1)
	if bad.Sent = -1; sends(bad) || a.Stats().RejectedBy["sent"] != 1 {
		t.Error("a parcel of another time was accepted")
	}
	const most = 33 // without a receipt
	for number := range uint64(most) {
		if !sends(w.parcel(number+1, keyIn(100*int(number), "a:1", "b:1"))) {
			t.Fatalf("parcel %d is not answered", number+1)
		}
	}
	key := keyIn(0, "a:1", "b:1")
	last := keyIn(100*(most-1), "a:1", "b:1")
	if !sends(w.parcel(1, key)) || !sends(w.parcel(most, last)) || w.left("a:1", key)+w.left("a:1", last) != 12 {
		t.Errorf("parcels that came again are not answered, or count again: %d and %d of 10 are left after 4",
			w.left("a:1", key), w.left("a:1", last))
	}
	only := sends(w.parcel(most+1)) && !sends(w.parcel(1)) && sends(w.parcel(most+1))
	if !only || a.Stats().RejectedBy["parcel"] != 2 {
		t.Errorf("of so many without a receipt, only the last is answered: %v", a.Stats().RejectedBy)
	}
}

// A node takes accounts of its own keys, and refuses others. Windows go on by their sender's clock, where that is behind
// for longer than messages take.
func TestAccountsGoOnByTheirSendersClock(t *testing.T) {
	const behind = 30 * time.Second
	w, a, p := newPeer(t, "b:1")
	w.rule.Limit.Unit = minute
	p.settles()
	for i, x := range []struct {
		begins time.Duration // from the sender's now
		owner  string
		taken  bool
	}{
		{0, "a:1", true},
		{0, "b:1", false},
		{moved.MostApart - time.Second, "a:1", true},
		{moved.MostApart + time.Second, "a:1", false},
	} {
		key, to := keyIn(100*i, slices.Compact([]string{x.owner, "a:1", "b:1"})...), moved.NewWriter(w.here())
		sent := w.used(4)
		sent.Begins = w.here().Add(x.begins)
		sent.Ends = sent.Begins.Add(time.Minute)
		to.Account(key, &sent)
		before := a.Stats().RejectedBy["account"]
		at := int64(w.here().Add(-behind))
		f := p.says(&wire.Frame{Parcel: &wire.Parcel{Number: uint64(i + 1), Sent: at, Accounts: to.B}})
		got, ok := a.local.TakeOut(w.now, key)
		if refused := len(f.GetReceipts()[0].GetRefused()) > 0; ok != x.taken || refused != (x.owner != "a:1") {
			t.Errorf("%+v: it has it %v, and refuses it %v", x, ok, refused)
		}
		if by := got.Begins.Sub(sent.Begins); ok && (by < behind || by > behind+10*time.Millisecond) {
			t.Errorf("%+v: it goes on %v later", x, by)
		}
		if n := a.Stats().RejectedBy["account"] - before; (n > 0) != (x.begins > moved.MostApart) {
			t.Errorf("%+v: %d accounts were rejected", x, n)
		}
	}
}

// newSender is a node that hands an account over to a peer that has joined.
func newSender(t *testing.T, n int) (w *world, a *node, p *peer, key []byte) {
	w = newWorld(t, n, 10)
	a = w.join("a:1")
	w.until("it is alone", a.Ready)
	w.fill(1, "a:1")
	p = w.peers("b:1")
	a.Found(w.addrs)
	w.until("it hands over", func() bool { return w.parcels > 0 })
	return w, a, p, keyIn(0, "b:1", "a:1")
}

// An account counts as handed over when a receipt does not refuse it. A refused one is here again, and is sent again a
// moment later. So is what was on its way when the receiver has begun another life. A parcel is sent again on each new
// stream, until there is a receipt.
func TestReceipts(t *testing.T) {
	for _, how := range []string{"accepted", "refused", "another stream", "another life"} {
		w, a, p, key := newSender(t, 20)
		first := p.heard().GetParcel()
		if got := accounts(first); !slices.Contains(got, string(key)) || a.local.Has(key) {
			t.Fatalf("%s: it sends %q", how, got)
		}
		number := first.GetNumber()
		receipt := &wire.Receipt{Number: number}
		switch how {
		case "accepted":
			p.answers(&wire.Frame{Receipts: []*wire.Receipt{receipt}})
			p.answers(&wire.Frame{Receipts: []*wire.Receipt{receipt}})
			if n := a.Stats().Handed; n != uint64(len(accounts(first))) {
				t.Errorf("%d are handed over of %d", n, len(accounts(first)))
			}
			continue
		case "refused":
			for i := range accounts(first) {
				receipt.Refused = append(receipt.Refused, uint32(i))
			}
			p.sends(&wire.Frame{Receipts: []*wire.Receipt{receipt}}, true)
			w.play(2 * time.Millisecond)
			number++
		case "another life":
			p.hello.Incarnation++
			p.dials()
			w.breakAll("a:1", "b:1")
			number++
		case "another stream":
			w.breakAll("a:1", "b:1")
		}
		w.until("it is sent again", func() bool { return merged(p.frames).GetParcel() != nil })
		again := merged(p.frames).GetParcel()
		if again.GetNumber() != number || !slices.Equal(accounts(again), accounts(first)) || a.Stats().Handed != 0 {
			t.Errorf("%s: parcel %d has %q, want %d", how, again.GetNumber(), accounts(again), number)
		}
	}
}

// A node without receipts sends a bounded number of parcels. Each account is in one of them.
func TestParcelsWithoutReceiptsAreBounded(t *testing.T) {
	w, a, p, _ := newSender(t, 10_000)
	w.play(time.Second)
	seen, parcels := map[string]uint64{}, map[uint64]bool{}
	for range 3 {
		w.breakAll("a:1", "b:1")
		w.play(2 * time.Second)
	}
	for _, f := range p.frames {
		if m := f.GetParcel(); m != nil {
			parcels[m.GetNumber()] = true
			for _, key := range accounts(m) {
				if n, ok := seen[key]; ok && n != m.GetNumber() || a.local.Has([]byte(key)) {
					t.Fatalf("key %q is in parcels %d and %d, or here", key, n, m.GetNumber())
				}
				seen[key] = m.GetNumber()
			}
		}
	}
	if len(parcels) > 9 || len(parcels) < 2 {
		t.Errorf("%d parcels are without a receipt: %v", len(parcels), slices.Sorted(maps.Keys(parcels)))
	}
}

// A node joins when it has met all found nodes, or could not for long enough. It is ready when all have confirmed that,
// and it has its keys, or when the latter has taken too long.
func TestWhenANodeJoins(t *testing.T) {
	for _, x := range []struct {
		what          string
		of            func(p *peer)
		joins, readys time.Duration // at the earliest, and at most a second later
	}{
		{"it has a store, and a peer that may have accounts", func(p *peer) {
			p.ledger, p.mute = account.NewMemory(p.here), true
		}, 0, 0},
		{"it meets a peer that has nothing", func(*peer) {}, 0, 0},
		{"it meets a peer that may have accounts", func(p *peer) { p.shy = true }, 0, 10 * time.Second},
		{"its announcement is not confirmed", func(p *peer) { p.mute = true }, 0, 10 * time.Second},
		{"nobody answers", func(p *peer) { p.port = ratelimit.Instant(time.Hour) }, time.Second, time.Second},
		{"somebody introduces itself, and does not answer", func(p *peer) {
			p.port = ratelimit.Instant(time.Hour)
			p.in(1, func() { p.to, p.hello.Version = p.nodes["a:1"], routing.Version; p.dials() })
		}, routing.TakeOver, routing.TakeOver},
	} {
		w := newWorld(t, 1, 10)
		p := w.peers("b:1")
		w.addrs = append(w.addrs, "a:1")
		x.of(p)
		a, began := w.start("a:1"), w.now
		joined, ready, early := time.Hour, time.Hour, make([]verdict, 1)
		a.Ask([]ask{{Rule: w.rule, Key: keyIn(0, "a:1", "b:1"), Cost: 1}}, early, nil, func() {})
		for i := range 30 * 200 {
			at := w.now.Sub(began)
			if joined == time.Hour && slices.Contains(a.Stats().Members, "a:1") {
				joined = at
			}
			if ready == time.Hour && a.Ready() {
				ready = at
			}
			if !p.shy && i%20 == 0 && p.streams["a:1"] != nil {
				p.sends(&wire.Frame{Done: a.Stats().Ring, DoneChanges: p.hello.Changes}, false)
			}
			w.play(5 * time.Millisecond)
		}
		if joined < x.joins || joined > x.joins+time.Second || ready < x.readys || ready > x.readys+time.Second {
			t.Errorf("%s: it has joined after %v, want %v, and is ready after %v, want %v",
				x.what, joined, x.joins, ready, x.readys)
		}
		if outside := early[0].Source == ratelimit.FromFallback && early[0].OverLimit; x.joins > 0 && !outside {
			t.Errorf("%s: it decides as if it were alone: %+v", x.what, early[0])
		}
	}
}
