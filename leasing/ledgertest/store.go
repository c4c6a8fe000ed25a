package ledgertest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

var kills = flag.Int("kills", 3, "how often a test kills the server of a store")

// Store tests a store on a server without other users. Each of its tests is a fleet of its own.
func Store[S Database](t *testing.T, server Server, open Opener[S]) {
	on := func(t *testing.T) S { return Prepared(t, open, server.URL(), t.Name()) }
	t.Run("fleet", func(t *testing.T) { fleet(t, on(t), on(t)) })
	t.Run("record", func(t *testing.T) { record(t, on(t), on(t)) })
	t.Run("write", func(t *testing.T) { write(t, on(t)) })
	t.Run("ledger", func(t *testing.T) {
		Ledger(t, func(t *testing.T) account.Ledger { return Node(on(t)) })
	})
	t.Run("hang", func(t *testing.T) { hang(t, server, Opened(t, open, server.URL(), t.Name())) })
	t.Run("kill", func(t *testing.T) { kill(t, server, func() *account.CAS { return Node(on(t)) }) })
}

// fleet makes nodes register and count each other.
func fleet(t *testing.T, one, other Database) {
	for _, text := range []string{"hello", "bye", ""} {
		said := map[string]string{}
		for name, s := range map[string]Database{"a": one, "b": other} {
			if name == "a" && text == "" {
				continue
			}
			for range 2 { // the second time all have registered
				err := s.Register(t.Context(), name, text, time.Minute, func(node, text string, ago time.Duration) {
					said[node] = text
					if ago < 0 || ago > time.Minute {
						t.Errorf("%s said %q %v ago", node, text, ago)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if text == "" && len(said) != 1 || text != "" && (said["a"] != text || said["b"] != text) {
			t.Errorf("nodes said %v after %q", said, text)
		}
	}
	if durable, err := one.Durable(t.Context()); !durable || err != nil {
		t.Errorf("durable: %v, %v", durable, err)
	}
}

// record checks that other nodes see the work of one node: settled messages and recalls.
func record(t *testing.T, s, twin Database) {
	first, second := Node(s), Node(twin)
	if e, err := first.Verify(t.Context()); err != nil || e.ID == 0 || e.Ends != 0 {
		t.Fatalf("the first epoch is %+v, %v", e, err)
	}
	one := ratelimit.Holder(0xaaaa) << 40
	heard, ctx := make(chan string, 1000), t.Context()
	go second.Recalls(ctx, one, func(key string, w ratelimit.Window) { heard <- fmt.Sprint(key, " ", w) })
	go first.Recalls(ctx, 1<<50, func(string, ratelimit.Window) {})
	for listens := false; !listens; { // events arrive when the node listens
		if err := s.Send(ctx, map[ratelimit.Holder][]string{one: {"t:{}7"}}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-heard:
			listens = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	c := Claim("k\x01\n", one, 0, 0, 900) // a draw, so that all is in hand
	if g, err := Settle(t, first, c); err != nil || g.Total != 900 {
		t.Fatalf("%+v, %v", g, err)
	}
	c = Claim(c.Key, one+1<<40, 1, 0, 200)
	if g, err := Settle(t, second, c); err != nil || g.Granted != 100 || g.InHand != 900 || !g.Recalling {
		t.Fatalf("%+v, %v", g, err)
	}
	got := <-heard
	for got == " 7" {
		got = <-heard
	}
	if want := fmt.Sprint(c.Key, " ", c.Window); got != want {
		t.Errorf("recalled was %q, not %q", got, want)
	}
	look, err := first.Look(t.Context(), c.Key, c.Window, &Year)
	if err != nil || look.Charged != 1000 || len(look.Holders) != 2 {
		t.Errorf("people see %+v, %v", look, err)
	}
}

// Snapshot reads records by their names.
func Snapshot(t testing.TB, s account.Store, names ...string) account.Snapshot {
	t.Helper()
	keys := make([]account.StoreKey, len(names))
	for i, name := range names {
		keys[i].Name = name
	}
	x, err := s.Read(t.Context(), keys)
	if err != nil || len(x.Records) != len(names) {
		t.Fatal(x, err)
	}
	return x
}

// write makes changes of one message separately; and all of 300, which exceeds a transaction of etcd.
func write(t *testing.T, s Database) {
	names, changes := make([]string, 300), make([]account.Change, 300)
	x := Snapshot(t, s)
	until := x.Now + ratelimit.LedgerTime(10*time.Minute/time.Microsecond)
	for i := range changes {
		names[i] = fmt.Sprint(t.Name(), i)
		changes[i] = account.Change{StoreKey: account.StoreKey{Name: names[i]}, Data: []byte{1}, Until: until}
	}
	// Together they exceed a request of etcd.
	changes[7].Data, changes[8].Data = make([]byte, 1<<20), make([]byte, 1<<20)
	life := x.Life
	made, err := s.Write(t.Context(), life, changes)
	for i := range made {
		if !made[i] {
			t.Fatalf("change %d was not made", i)
		}
	}
	x = Snapshot(t, s, names...)
	if err != nil || x.Records[299].Version == 0 || len(x.Records[7].Data) != 1<<20 || x.Life != life {
		t.Fatal(err, x.Life)
	}
	change := func(name string, version uint64) account.Change {
		return account.Change{StoreKey: account.StoreKey{Name: name}, Version: version, Data: []byte{2}, Until: until}
	}
	some := []account.Change{
		change(names[0], x.Records[0].Version), change(names[1], x.Records[1].Version+1), change(names[2], 0),
		change(t.Name()+"new", 3),
	}
	made, err = s.Write(t.Context(), life, some)
	if err != nil || fmt.Sprint(made) != "[true false false false]" {
		t.Errorf("made were %v, %v", made, err)
	}
	y := Snapshot(t, s, names[0], names[1], t.Name()+"new")
	if y.Records[0].Data[0] != 2 || y.Records[0].Version <= x.Records[0].Version ||
		y.Records[1].Data[0] != 1 || y.Records[2].Version != 0 {
		t.Errorf("the records are %+v", y)
	}
	some[0].Version = Snapshot(t, s, names[0]).Records[0].Version
	made, err = s.Write(t.Context(), life+"1", some[:1])
	if !errors.Is(err, account.ErrLife) && (err != nil || made[0]) {
		t.Errorf("in another life it made %v, %v", made, err)
	}
}

// hang checks that a call ends at its deadline while the server hangs, and fails at once before the store is
// prepared.
func hang(t *testing.T, server Server, s Database) {
	if _, err := s.Read(t.Context(), nil); err == nil {
		t.Error("it answers before it is prepared")
	}
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	l, g := Node(s), make([]account.Grant, 1)
	server.Signal(syscall.SIGSTOP)
	began := time.Now()
	_, _, err := l.Settle(ctx, []account.Claim{Claim("hangs", 0xa00, 1, 0, 1)}, g)
	server.Signal(syscall.SIGCONT)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Errorf("a server that hangs: %v after %v", err, time.Since(began))
	}
	if g, err := Settle(t, l, Claim("hangs", 0xa00, 2, 0, 1)); err != nil || g.Granted != 1 {
		t.Errorf("after it went on: %+v, %v", g, err)
	}
}

// kill kills the server at any instant, several times, while four nodes claim: grants are charged, no epoch learns,
// and beyond answered grants only unanswered ones are charged.
func kill(t *testing.T, server Server, open func() *account.CAS) {
	const nodes = 4
	l := open()
	before, err := l.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	claim := func(h ratelimit.Holder, seq uint64, has, need tokens) account.Claim {
		c := Claim("killed", h, seq, has, need)
		c.Limit.Requests, c.Want = 100_000, 3*need
		return c
	}
	var granted, unanswered atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for n := range nodes {
		l := open()
		all.Go(func() {
			has := tokens(0)
			for seq := uint64(1); ctx.Err() == nil; seq++ {
				g, err := Settle(t, l, claim(ratelimit.Holder(0xa00+n), seq, has, 1))
				if err != nil || g.Err != nil {
					unanswered.Add(1)
					time.Sleep(time.Millisecond)
					continue
				}
				has += g.Granted
				granted.Add(int64(g.Granted))
			}
		})
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range *kills {
		for at := granted.Load() + 1 + rnd.Int64N(200); granted.Load() < at; {
			time.Sleep(time.Millisecond)
		}
		server.Kill()
		server.Run()
	}
	stop()
	all.Wait()
	g, err := Settle(t, l, claim(0xfff, 1, 0, 0))
	// Commits without an answer are in the sum as well; a node's next claim takes them back.
	if total := granted.Load(); err != nil || int64(g.Sum) < total || int64(g.Sum) > total+3*nodes {
		t.Errorf("%d tokens were granted, and %d are charged: %v", total, g.Sum, err)
	}
	if e, err := l.Verify(t.Context()); err != nil || e != before {
		t.Errorf("after a crash the epoch is %+v, was %+v, %v: nothing was lost", e, before, err)
	}
	t.Logf("%d kills: %d tokens granted, %d charged, %d claims without an answer", *kills, granted.Load(), g.Sum,
		unanswered.Load())
}
