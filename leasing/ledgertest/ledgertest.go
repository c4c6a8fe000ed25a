// Package ledgertest has the common tests of all ledgers and of their stores.
//
// Guarantee: [Ledger] compares any ledger with the one in memory. [Store] tests a store on a real server, which it
// hangs and kills. Special features of a store are left to its own tests.
package ledgertest

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

type tokens = ratelimit.Tokens

// Server is a real server of a store. It runs again with its data.
type Server interface {
	URL() string
	Run()
	Kill()
	Signal(sig syscall.Signal)
}

// Database is a store with the data of a fleet.
type Database interface {
	account.Store
	account.Messenger
	Prepare(ctx context.Context) error
	Close()
	Register(
		ctx context.Context, node, text string, within time.Duration, see func(node, text string, ago time.Duration),
	) error
	Durable(ctx context.Context) (bool, error)
}

// Opener opens a store of a URL, for a fleet with a prefix.
type Opener[S Database] func(url, prefix string) (S, error)

// Opened is a store that the test closes.
func Opened[S Database](t testing.TB, open Opener[S], url, prefix string) S {
	t.Helper()
	s, err := open(url, prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Prepared is a store that can be used.
func Prepared[S Database](t testing.TB, open Opener[S], url, prefix string) S {
	t.Helper()
	s := Opened(t, open, url, prefix)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for err := s.Prepare(ctx); err != nil; err = s.Prepare(ctx) { // a busy machine is slow to answer
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Node is a node's ledger on a store of the fleet "t:". In an empty store no other node is alive.
func Node(s account.Store) *account.CAS { return account.NewCAS(s, "t:") }

// Year is the limit of [Claim].
var Year = ratelimit.Limit{Unit: ratelimit.Year, Requests: 1000}

// Claim is a holder's message of this year, with taken, spent and need.
func Claim(key string, h ratelimit.Holder, seq uint64, has, need tokens) account.Claim {
	return account.Claim{
		Key: key, Window: Year.WindowAt(ratelimit.LedgerTime(time.Now().UnixMicro())), Limit: Year,
		Holder: h, Seq: seq, Taken: has, Spent: has, Need: need, Want: need,
	}
}

// Settle settles one claim within ten seconds.
func Settle(t testing.TB, l account.Ledger, c account.Claim) (account.Grant, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	g := make([]account.Grant, 1)
	_, _, err := l.Settle(ctx, []account.Claim{c}, g)
	return g[0], err
}

// Grants settles one claim, which must be granted so much.
func Grants(t testing.TB, l account.Ledger, c account.Claim, want tokens) {
	t.Helper()
	if g, err := Settle(t, l, c); err != nil || g.Err != nil || g.Granted != want {
		t.Fatalf("granted are %+v, %v, and not %d", g, err, want)
	}
}
