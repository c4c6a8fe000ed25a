package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/etcdtest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var few = Redis{Type: "SINGLE", PoolSize: 2, Timeout: time.Second}

// started opens a store, and returns when it has come.
func started(t *testing.T, f Flags) Store {
	t.Helper()
	s, err := Open(Options{Flags: f})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	came := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		if err := s.Start(ctx, func() { close(came) }, func(err error) { t.Log(err) }); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); all.Wait(); s.Close() })
	select {
	case <-came:
	case <-time.After(30 * time.Second):
		t.Fatal("the store did not come")
	}
	return s
}

// eachStore runs a test on each kind of store.
func eachStore(t *testing.T, test func(*testing.T, Store)) {
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		server.Do("HSET", "sluice:seats", "f", "7") // as a release with seats in a hash left it
		f := Flags{URL: "redis://" + server.Addr, Redis: few}
		test(t, started(t, f))
	})
	t.Run("postgres", func(t *testing.T) {
		test(t, started(t, Flags{URL: pgtest.Start(t).URL(), Redis: few}))
	})
	t.Run("etcd", func(t *testing.T) {
		test(t, started(t, Flags{URL: etcdtest.Start(t).URL(), Redis: few}))
	})
}

// Eight nodes apply for four seats at once: each seat has one tenant. The store's clock is what counts. The store says how
// it keeps its data.
func TestSeatsOnStores(t *testing.T) {
	eachStore(t, func(t *testing.T, s Store) {
		var all sync.WaitGroup
		tenants := make([]approx.Tenancy, 8)
		for i := range tenants {
			all.Go(func() {
				var err error
				tenants[i], err = approx.NewStored(s.Seats()).Sit(t.Context(), approx.Application{
					Holder: ratelimit.Holder(i + 1), Seats: 4, Now: approx.Tenancy{Seat: -1}, Plan: 1,
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		taken := map[int]bool{}
		for _, x := range tenants {
			if x.Seat < 0 {
				continue
			}
			at := time.UnixMicro(int64(x.Fence))
			if taken[x.Seat] || time.Since(at).Abs() > time.Minute {
				t.Errorf("seat %d is taken twice, or its fence %v is not the time", x.Seat, at)
			}
			taken[x.Seat] = true
		}
		if len(taken) != 4 {
			t.Errorf("%d of 4 seats are taken: %+v", len(taken), tenants)
		}
		if x, _, err := s.Safety(t.Context()); err != nil || !x.Known {
			t.Errorf("how it keeps its data: %+v, %v", x, err)
		}
	})
}

// A user that may create tables and nothing else suffices. A wrong password is an error with advice, and without the
// password.
func TestPostgresUser(t *testing.T) {
	server := pgtest.Start(t)
	server.Exec("CREATE ROLE app LOGIN PASSWORD 'right'; CREATE SCHEMA app AUTHORIZATION app; REVOKE ALL ON SCHEMA public FROM app")
	server.AskForPasswords()
	url := func(password string) string {
		return fmt.Sprintf("postgres://app:%s@127.0.0.1:%s/postgres?search_path=app", password, server.Port)
	}
	s := started(t, Flags{URL: url("right"), Redis: few})
	l := ratelimit.Limit{Unit: ratelimit.Year, Requests: 10}
	g := make([]account.Grant, 1)
	_, _, err := s.Ledger().Settle(t.Context(), []account.Claim{{
		Key: "k", Window: l.WindowAt(ratelimit.LedgerTime(time.Now().UnixMicro())), Limit: l, Holder: 1, Seq: 1, Need: 4, Want: 4,
	}}, g)
	if err != nil || g[0].Granted != 4 {
		t.Errorf("%+v, %v", g[0], err)
	}
	wrong, err := Open(Options{Flags: Flags{URL: url("hunter2"), Redis: few}})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var said string
	_ = wrong.Start(ctx, func() { t.Error("it came") }, func(err error) {
		said = wrong.Advise(err) + " " + err.Error()
		cancel()
	})
	if !strings.Contains(said, "the password in STORE_URL") || strings.Contains(said, "hunter2") {
		t.Errorf("a wrong password is answered %q", said)
	}
}
