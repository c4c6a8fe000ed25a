package postgres

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/ratelimit/table/tabletest"
)

var node, settle, claim, grants = ledgertest.Node, ledgertest.Settle, ledgertest.Claim, ledgertest.Grants

func prepared(t *testing.T, url string) *Store {
	t.Helper()
	return ledgertest.Prepared(t, Open, url, "t:")
}

// What all stores must do, on a real server.
func TestConformance(t *testing.T) { ledgertest.Store(t, pgtest.Start(t), Open) }

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
	grants(t, l, claim("k", 0xa00, 1, 0, 700), 700)
	server.Kill()
	if _, err := settle(t, l, claim("k", 0xa00, 2, 700, 1)); err == nil {
		t.Error("a dead primary and a standby that is none yet have answered")
	}
	standby.Promote()
	after, err := l.Verify(t.Context())
	for ; err != nil && t.Context().Err() == nil; after, err = l.Verify(t.Context()) {
		time.Sleep(time.Millisecond) // connections to the dead primary end one by one
	}
	if after.ID == before.ID || after.Ends == 0 {
		t.Errorf("after the promotion the epoch is %+v, was %+v: %v", after, before, err)
	}
	g, err := settle(t, l, claim("k", 0xb00, 1, 0, 1000))
	if err != nil || g.Sum-g.Granted != 700 || g.Granted > 300 {
		t.Errorf("700 were granted before: %+v, %v", g, err)
	}
}

// A host that accepts connections without an answer, as a machine that hangs, does not hold up the next one.
func TestHostThatHangs(t *testing.T) {
	hung := httptest.NewUnstartedServer(nil) // it only listens
	defer hung.Close()
	url := "postgres://sluice@%s,127.0.0.1:%s/postgres"
	prepared(t, fmt.Sprintf(url, hung.Listener.Addr(), pgtest.Start(t).Port))
}

// Messages from a host that hangs are received from the next one, soon.
func TestListenerNoticesHostThatHangs(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	s := prepared(t, server.URL())
	ready, ended := make(chan bool), make(chan error)
	go func() { ended <- s.Listen(t.Context(), 1, func() { close(ready) }, func(string) {}) }()
	<-ready
	var pid int
	err := s.pool.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").Scan(&pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	if err := <-ended; !pgconn.Timeout(err) {
		t.Errorf("it ends with %v", err)
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
	grants(t, l, claim("k", 0xa00, 1, 0, 700), 700)
	copied.Promote()
	after, err := node(prepared(t, copied.URL())).Verify(t.Context())
	if err != nil || after.ID == before.ID {
		t.Errorf("the copy's epoch is %+v, the original's was %+v: %v", after, before, err)
	}
}

// Bad URLs, later schemas and full servers are errors that say so.
func TestErrors(t *testing.T) {
	if _, err := Open("postgres://u:geheim@host:port/db", ""); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("the error of a bad URL is %v", err)
	}
	server := pgtest.Start(t, "max_connections=20", "superuser_reserved_connections=1")
	prepared(t, server.URL())
	server.Exec("INSERT INTO sluice_schema VALUES (99)")
	later := ledgertest.Opened(t, Open, server.URL(), "t:")
	if err := later.Prepare(t.Context()); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "99") {
		t.Errorf("a later release's tables are answered %v", err)
	}
	later.Close()
	server.Exec("DELETE FROM sluice_schema WHERE version = 99")
	// All connections are taken by others.
	var rest []*Store
	full := error(nil)
	for range 20 {
		other := ledgertest.Opened(t, Open, server.URL(), "t:")
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
	began := ledgertest.Snapshot(t, s)
	now, life := began.Now, began.Life
	minute := ratelimit.LedgerTime(time.Minute / time.Microsecond)
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
		return server.Int("SELECT sum(pg_total_relation_size(inhrelid))::bigint FROM pg_inherits " +
			"WHERE inhparent = 'sluice_accounts'::regclass")
	}
	most := size()
	begun := time.Now()
	if _, more, err := s.Drop(t.Context(), now+minute+2*partitionWidth); err != nil || more {
		t.Fatal(more, err)
	}
	took := time.Since(begun)
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
	// Buckets go one by one.
	for i := range 100 {
		c := account.Change{StoreKey: account.StoreKey{Name: fmt.Sprint("b", i)}, Data: []byte{1}}
		c.Until = now + ratelimit.LedgerTime(i)
		if _, err := s.Write(t.Context(), life, []account.Change{c}); err != nil {
			t.Fatal(err)
		}
	}
	n, _, err := s.Drop(t.Context(), now+49)
	if left := server.Int("SELECT count(*) FROM sluice_accounts_0"); err != nil || n < 50 || left != 50 {
		t.Errorf("%d were dropped, and %d are left: %v", n, left, err)
	}
}

// A node whose last report is later than now has ended before the server's clock was set back.
func TestNodesOfALaterClock(t *testing.T) {
	server := pgtest.Start(t)
	s := ledgertest.Prepared(t, Open, server.URL(), "t:")
	for name, later := range map[string]string{"late": "1 hour", "near": "1 second", "old": "-1 hour"} {
		server.Exec(`INSERT INTO sluice_nodes (prefix, name, said, at)
VALUES ('t:', $1, 'text', now() + $2::interval)`, name, later)
	}
	var seen []string
	see := func(node, _ string, _ time.Duration) { seen = append(seen, node) }
	err := s.Register(t.Context(), "here", "text", time.Minute, see)
	slices.Sort(seen)
	if err != nil || !slices.Equal(seen, []string{"here", "near"}) {
		t.Errorf("nodes are %v, %v", seen, err)
	}
}

// Nodes that start together on an empty database all get their tables.
func TestMigrateTogether(t *testing.T) {
	server := pgtest.Start(t)
	var all sync.WaitGroup
	for range 6 {
		s := ledgertest.Opened(t, Open, server.URL(), "t:")
		all.Go(func() {
			if err := s.Prepare(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// What all stores of a table must do.
func TestPostgresTable(t *testing.T) {
	s := pgtest.Start(t)
	tabletest.Run(t, tabletest.Server{
		Open: func(t testing.TB) table.Store {
			return Feed{ledgertest.Prepared(t, Open, s.URL(), "t:")}
		},
		Restart: func() { s.Kill(); s.Run() },
		Lose:    func() { s.Exec("TRUNCATE sluice_table, sluice_feed") },
	})
}
