package postgres

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/postgres/pgtest"
	"github.com/sluice-gate/sluice/ratelimit"
)

type tokens = ratelimit.Tokens

var kills = flag.Int("kills", 3, "how often TestKilledServer kills the server")

func open(t *testing.T, url string) *Store {
	t.Helper()
	s, err := Open(url, "t:")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func prepared(t *testing.T, url string) *Store {
	t.Helper()
	s := open(t, url)
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func node(s *Store) *account.CAS { return account.NewCAS(s, "t:", func() bool { return true }) }

var year = ratelimit.Limit{Unit: ratelimit.Year, Requests: 1000}

func claim(key string, h ratelimit.Holder, seq uint64, has, need tokens) account.Claim {
	now := ratelimit.LedgerTime(time.Now().UnixMicro())
	return account.Claim{
		Key: key, Window: year.WindowAt(now), Limit: year, Holder: h, Seq: seq, Taken: has, Spent: has, Need: need, Want: need,
	}
}

func settle(t *testing.T, l account.Ledger, c account.Claim) (account.Grant, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	g := make([]account.Grant, 1)
	_, _, err := l.Settle(ctx, []account.Claim{c}, g)
	return g[0], err
}

// A message is settled, stays, and is another node's to see; what is recalled is heard; what is audited is on record.
func TestLedger(t *testing.T) {
	server := pgtest.Start(t)
	s := prepared(t, server.URL())
	first, second := node(s), node(prepared(t, server.URL()))
	if e, err := first.Verify(t.Context()); err != nil || e.ID == 0 || e.Learning > e.Began {
		t.Fatalf("the first epoch is %+v, %v", e, err)
	}
	one := ratelimit.Holder(0xaaaa) << 40
	heard, ctx := make(chan string, 10), t.Context()
	go second.Recalls(ctx, one, func(key string, w ratelimit.Window) { heard <- fmt.Sprint(key, " ", w) })
	go first.Recalls(ctx, 1<<50, func(string, ratelimit.Window) {})
	for server.Int("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'") < 2 {
		time.Sleep(time.Millisecond)
	}
	c := claim("k", one, 1, 0, 900)
	c.Audit = "7 d.rule"
	if g, err := settle(t, first, c); err != nil || g.Granted != 900 {
		t.Fatalf("%+v, %v", g, err)
	}
	c = claim("k", one+1<<40, 1, 0, 200)
	c.Audit = "7 d.rule"
	if g, err := settle(t, second, c); err != nil || g.Granted != 100 || g.InHand != 900 || !g.Recalling {
		t.Fatalf("%+v, %v", g, err)
	}
	if got, want := <-heard, fmt.Sprint("k ", c.Window); got != want {
		t.Errorf("recalled was %q, not %q", got, want)
	}
	var events []account.Event
	if err := s.Events(t.Context(), func(e *account.Event) { events = append(events, *e) }); err != nil {
		t.Fatal(err)
	}
	if len(events) != 2 || events[0].Kind != account.WasGrant || events[1].Kind != account.WasRefused ||
		events[1].Granted != 100 || events[1].Rule != "d.rule" || events[1].Bound != 7 || events[1].Ends == 0 {
		t.Errorf("on record is %+v", events)
	}
	look, err := first.Look(t.Context(), "k", c.Window, &year)
	if err != nil || look.Charged != 1000 || len(look.Holders) != 2 {
		t.Errorf("people see %+v, %v", look, err)
	}
	if err := s.Forget(t.Context(), time.Now().Add(time.Hour)); err != nil || server.Int("SELECT count(*) FROM sluice_events") != 0 {
		t.Errorf("events are still there: %v", err)
	}
}

// A server that is killed at any instant, some times, while four nodes claim: what was granted is charged, and all of the
// limit is granted in the end, and no more.
func TestKilledServer(t *testing.T) {
	const nodes = 4
	server := pgtest.Start(t)
	var granted [nodes]atomic.Int64
	var unknown [nodes]atomic.Int64 // claims without an answer
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for n := range nodes {
		l := node(prepared(t, server.URL()))
		all.Go(func() {
			for seq := uint64(1); ctx.Err() == nil; seq++ {
				has := tokens(granted[n].Load())
				c := claim("k", ratelimit.Holder(0xa00+n), seq, has, 1)
				c.Limit.Requests = 100_000
				c.Want = 3
				g, err := settle(t, l, c)
				if err != nil || g.Err != nil {
					unknown[n].Add(1)
					time.Sleep(time.Millisecond)
					continue
				}
				granted[n].Add(int64(g.Granted))
			}
		})
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	total := func() (n int64) {
		for i := range granted {
			n += granted[i].Load()
		}
		return n
	}
	for range *kills {
		for at := total() + 1 + rnd.Int64N(200); total() < at; {
			time.Sleep(time.Millisecond)
		}
		server.Kill()
		server.Run()
	}
	stop()
	all.Wait()
	l := node(prepared(t, server.URL()))
	c := claim("k", 0xfff, 1, 0, 0)
	c.Limit.Requests = 100_000
	g, err := settle(t, l, c)
	// What was committed and not answered is in the sum as well; a node's next claim takes it back.
	if err != nil || int64(g.Sum) < total() || int64(g.Sum) > total()+3*nodes {
		t.Errorf("%d tokens were granted, and %d are charged: %v", total(), g.Sum, err)
	}
	missed := int64(0)
	for n := range nodes {
		missed += unknown[n].Load()
	}
	if e, err := l.Verify(t.Context()); err != nil || e.Learning > e.Began+1 {
		t.Errorf("after a crash the epoch is %+v, %v: nothing was lost, so that nothing is to be learnt", e, err)
	}
	t.Logf("%d kills: %d tokens granted, %d charged, %d claims without an answer", *kills, total(), g.Sum, missed)
}

// A synchronous standby is promoted when the primary dies: nothing is lost, and the ledger learns, for it cannot tell.
func TestPromotedStandby(t *testing.T) {
	server := pgtest.Start(t, "synchronous_standby_names=twin")
	standby := server.Standby("twin")
	url := fmt.Sprintf("postgres://sluice@127.0.0.1:%s,127.0.0.1:%s/postgres", server.Port, standby.Port)
	l := node(prepared(t, url))
	before, err := l.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if g, err := settle(t, l, claim("k", 0xa00, 1, 0, 700)); err != nil || g.Granted != 700 {
		t.Fatalf("%+v, %v", g, err)
	}
	server.Kill()
	if _, err := settle(t, l, claim("k", 0xa00, 2, 700, 1)); err == nil {
		t.Error("a dead primary and a standby that is none yet have answered")
	}
	standby.Promote()
	after, err := l.Verify(t.Context())
	for ; err != nil && t.Context().Err() == nil; after, err = l.Verify(t.Context()) {
		time.Sleep(time.Millisecond) // connections to the dead primary end one by one
	}
	if after.ID == before.ID || after.Learning <= after.Began {
		t.Errorf("after the promotion the epoch is %+v, was %+v: %v", after, before, err)
	}
	g, err := settle(t, l, claim("k", 0xb00, 1, 0, 1000))
	if err != nil || g.Sum-g.Granted != 700 || g.Granted > 300 {
		t.Errorf("700 were granted before: %+v, %v", g, err)
	}
}

// An older copy that goes on in another place is another life.
func TestRestoredCopy(t *testing.T) {
	server := pgtest.Start(t)
	l := node(prepared(t, server.URL()))
	before, err := l.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	copied := server.Standby("copy") // as of now
	if g, err := settle(t, l, claim("k", 0xa00, 1, 0, 700)); err != nil || g.Granted != 700 {
		t.Fatalf("%+v, %v", g, err)
	}
	copied.Promote()
	after, err := node(prepared(t, copied.URL())).Verify(t.Context())
	if err != nil || after.ID == before.ID || after.Learning <= after.Began {
		t.Errorf("the copy's epoch is %+v, the original's was %+v: %v", after, before, err)
	}
}

// Bad URLs, later schemas and full servers are errors that say so. A call to a server that hangs ends with its deadline.
func TestErrors(t *testing.T) {
	if _, err := Open("postgres://u:geheim@host:port/db", ""); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("the error of a bad URL is %v", err)
	}
	server := pgtest.Start(t, "max_connections=20", "superuser_reserved_connections=1")
	s := open(t, server.URL())
	if _, err := s.Read(t.Context(), nil); !errors.Is(err, errUnprepared) {
		t.Errorf("before it is prepared it answers %v", err)
	}
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Exec("INSERT INTO sluice_schema VALUES (99)")
	later := open(t, server.URL())
	if err := later.Prepare(t.Context()); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "99") {
		t.Errorf("a later release's tables are answered %v", err)
	}
	later.Close()
	server.Exec("DELETE FROM sluice_schema WHERE version = 99")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	l := node(s)
	server.Signal(syscall.SIGSTOP)
	began := time.Now()
	g := make([]account.Grant, 1)
	_, _, err := l.Settle(ctx, []account.Claim{claim("k", 0xa00, 1, 0, 1)}, g)
	server.Signal(syscall.SIGCONT)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Errorf("a server that hangs: %v after %v", err, time.Since(began))
	}
	if g, err := settle(t, l, claim("k", 0xa00, 2, 0, 1)); err != nil || g.Granted != 1 {
		t.Errorf("after it went on: %+v, %v", g, err)
	}
	// All connections are taken by others.
	var rest []*Store
	full := error(nil)
	for range 20 {
		other := open(t, server.URL())
		rest = append(rest, other)
		if full = other.Ping(t.Context()); full != nil {
			break
		}
	}
	if full == nil || !strings.Contains(full.Error(), "connection") {
		t.Errorf("the error of a server without connections is %v", full)
	}
	for _, other := range rest {
		other.Close()
	}
}

// Accounts of one window go as a table: 16,000 of them in less than a second, and minute windows leave nothing behind.
func TestDrop(t *testing.T) {
	server := pgtest.Start(t)
	s := prepared(t, server.URL())
	now := s.now(t)
	minute := ratelimit.LedgerTime(time.Minute / time.Microsecond)
	life := s.lifeNow(t)
	write := func(over ratelimit.LedgerTime, n int) {
		t.Helper()
		for from := 0; from < n; from += 1000 {
			changes := make([]account.Change, min(1000, n-from))
			for i := range changes {
				changes[i] = account.Change{
					StoreKey: account.StoreKey{Name: fmt.Sprint("k", from+i), Over: over}, Data: make([]byte, 60), Until: over,
				}
			}
			made, err := s.Write(t.Context(), life, changes)
			if err != nil || !made[0] {
				t.Fatal(made[:1], err)
			}
		}
	}
	const accounts = 16_000
	write(now+minute, accounts)
	size := func() int64 {
		return server.Int("SELECT sum(pg_total_relation_size(inhrelid))::bigint FROM pg_inherits WHERE inhparent = 'sluice_accounts'::regclass")
	}
	most := size()
	began := time.Now()
	if _, more, err := s.Drop(t.Context(), now+minute+2*partitionWidth); err != nil || more {
		t.Fatal(more, err)
	}
	took := time.Since(began)
	if n := server.Int("SELECT count(*) FROM sluice_accounts"); n != 0 || took > time.Second {
		t.Errorf("%d accounts are left after %v", n, took)
	}
	// An hour of minute windows.
	for i := range ratelimit.LedgerTime(60) {
		at := now + (10+i)*minute
		write(at+2*minute, 500)
		if _, _, err := s.Drop(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if n := size(); n > most {
		t.Errorf("after an hour of windows the tables have %d bytes; %d accounts had %d", n, accounts, most)
	}
	t.Logf("%d accounts went in %v; they had %d bytes, and an hour of minute windows left %d", accounts, took, most, size())
	// Buckets go one by one.
	for i := range 100 {
		c := account.Change{StoreKey: account.StoreKey{Name: fmt.Sprint("b", i)}, Data: []byte{1}, Until: now + ratelimit.LedgerTime(i)}
		if _, err := s.Write(t.Context(), life, []account.Change{c}); err != nil {
			t.Fatal(err)
		}
	}
	if n, _, err := s.Drop(t.Context(), now+49); err != nil || n < 50 || server.Int("SELECT count(*) FROM sluice_accounts_0") != 50 {
		t.Errorf("%d were dropped, %v", n, err)
	}
}

func (s *Store) now(t *testing.T) ratelimit.LedgerTime {
	t.Helper()
	x, err := s.Read(t.Context(), nil)
	if err != nil || len(x.Records) != 0 {
		t.Fatal(x, err)
	}
	return x.Now
}

func (s *Store) lifeNow(t *testing.T) string {
	t.Helper()
	x, err := s.Read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return x.Life
}

// Nodes that start together on an empty database all get their tables.
func TestMigrateTogether(t *testing.T) {
	server := pgtest.Start(t)
	var all sync.WaitGroup
	for range 6 {
		s := open(t, server.URL())
		all.Go(func() {
			if err := s.Prepare(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
