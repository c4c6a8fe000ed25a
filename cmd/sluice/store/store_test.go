package store

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/etcdtest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
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

// Eight nodes apply for four seats at once: each seat has one tenant. The store's clock is what counts. The store says how
// it keeps its data.
func TestSeatsOnStores(t *testing.T) {
	for kind, url := range map[string]func(t *testing.T) string{
		"redis": func(t *testing.T) string {
			server := redistest.Start(t)
			server.Do("HSET", "sluice:seats", "f", "7") // as a release with seats in a hash left it
			return server.URL()
		},
		"postgres": func(t *testing.T) string { return pgtest.Start(t).URL() },
		"etcd":     func(t *testing.T) string { return etcdtest.Start(t).URL() },
	} {
		t.Run(kind, func(t *testing.T) {
			s := started(t, Flags{URL: url(t), Redis: few})
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

// Redis keeps the registration of a silent node for a day, of the newest ones only, and none of another form.
func TestSilentNodesAreKept(t *testing.T) {
	server := redistest.Start(t)
	s := started(t, Flags{URL: "redis://" + server.Addr, Redis: few})
	now := time.Now().Unix()
	said := func(name string, ago time.Duration) {
		server.Do("HSET", "sluice:nodes", name, fmt.Sprint(now-int64(ago/time.Second), " {}"))
	}
	said("silent", 3*time.Hour)
	said("forgotten", 25*time.Hour)
	said("ahead", -time.Hour)
	server.Do("HSET", "sluice:nodes", "foreign", "text")
	names := func() (all []string) {
		nodes, err := s.Register(t.Context(), "here", "{}")
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			all = append(all, n.Node)
		}
		return all
	}
	if all := names(); !slices.Equal(all, []string{"here", "silent"}) {
		t.Errorf("listed are %v", all)
	}
	for i := range 3 * mostSilent {
		said(fmt.Sprint(i), 2*time.Hour)
	}
	if all := names(); len(all) != 1+mostSilent || slices.Contains(all, "silent") {
		t.Errorf("%d are listed, of %d silent ones", len(all), 3*mostSilent)
	}
	if n := server.Do("HLEN", "sluice:nodes"); fmt.Sprint(n) != fmt.Sprint(1+mostSilent) {
		t.Errorf("Redis keeps %v", n)
	}
}

// A node that starts while a shard of a Cluster is down serves the keys of the others.
func TestStartWithAShardDown(t *testing.T) {
	servers := redistest.Cluster(t, 3)
	servers[2].Kill()
	f := few
	f.URL, f.Type = servers[0].Addr, "CLUSTER"
	started(t, Flags{Redis: f})
}

// In a Cluster, nodes and seats of the drift budget are counted by one clock each, that of the server that has them:
// clocks of servers differ.
func TestNodesAndSeatsHaveOneClock(t *testing.T) {
	servers := redistest.Cluster(t, 3)
	f := few
	f.URL, f.Type = servers[0].Addr, "CLUSTER"
	s := started(t, Flags{Redis: f}) // without a fleet, which reads the clock of each server
	for name, reads := range map[string]func() error{
		"nodes": func() error { _, err := s.Register(t.Context(), "a", "{}"); return err },
		"seats": func() error { _, _, _, err := s.Seats().Load(t.Context()); return err },
	} {
		for _, server := range servers {
			server.Do("CONFIG", "RESETSTAT")
		}
		for range 20 { // a command without a key goes to any of them
			if err := reads(); err != nil {
				t.Fatal(err)
			}
		}
		if n := redistest.Used(servers, "time"); n != 1 {
			t.Errorf("%s: the clocks of %d servers were read", name, n)
		}
	}
}

// permit makes the user of the page on servers, with further rules of an ACL.
func permit(t *testing.T, servers []*redistest.Server, rules ...any) {
	page, err := os.ReadFile("../../../docs/explain/leasing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(page), "\n    ACL SETUSER sluice ")
	line, _, _ = strings.Cut(line, "\n")
	user := []any{"ACL", "SETUSER", "sluice"}
	for _, rule := range strings.Fields(line) {
		user = append(user, rule)
	}
	for _, s := range servers {
		s.Do(append(user, rules...)...)
	}
}

func permitted(t *testing.T, kind string, servers []*redistest.Server) Store {
	f := few
	f.URL, f.Type, f.Auth = servers[0].Addr, kind, "sluice:PASSWORD"
	return started(t, Flags{Redis: f})
}

// The user of the page can do all that nodes, sluice limit do.
func TestPermissionsSuffice(t *testing.T) {
	for kind, start := range map[string]func(*testing.T) []*redistest.Server{
		"SINGLE":  func(t *testing.T) []*redistest.Server { return []*redistest.Server{redistest.Start(t)} },
		"CLUSTER": func(t *testing.T) []*redistest.Server { return redistest.Cluster(t, 2) },
	} {
		t.Run(kind, func(t *testing.T) {
			servers := start(t)
			permit(t, servers)
			s := permitted(t, kind, servers)
			ctx, ledger := t.Context(), s.Ledger().(*account.Redis)
			check := func(of string, err error) {
				t.Helper()
				if err != nil {
					t.Errorf("%s: %v", of, err)
				}
			}
			l, bucket := yearly, yearly
			bucket.Algorithm, bucket.Burst = ratelimit.TokenBucket, 10
			third, draw := halfOf(l, 3), halfOf(l, 4)
			draw.Seq = 0 // in hand, so that a claim recalls it
			for _, c := range []account.Claim{draw, halfOf(l, 1), halfOf(bucket, 1), halfOf(bucket, 2), third} {
				settled(t, ledger, c)
			}
			answers := make([]account.SlotAnswer, 1)
			for _, op := range []account.SlotOp{account.SlotTake, account.SlotGive, account.SlotClear} {
				ledger.Slots(ctx, []account.SlotAsk{{Key: "s", Op: op, Slot: 1, Limit: 1, TTL: time.Minute}}, answers)
				check("a slot", answers[0].Err)
			}
			check("an override", overridden(t, s))
			check("a registration", ledger.Register(ctx, account.NewHolder()))
			_, err := ledger.Over(ctx, []ratelimit.Holder{1})
			check("registrations", err)
			_, err = ledger.Look(ctx, "k", third.Window, &l)
			check("a look", err)
			_, err = ledger.Verify(ctx)
			check("the epoch", err)
			_, _, err = s.Safety(ctx)
			check("safety", err)
			for _, text := range []string{"text", ""} {
				_, err = s.Register(ctx, "node", text)
				check("the registry", err)
			}
			_, version, _, err := s.Seats().Load(ctx)
			check("seats", err)
			_, err = s.Seats().Save(ctx, version, []byte("seats"))
			check("seats", err)
			user := redis.NewClient(&redis.Options{Addr: servers[0].Addr, Username: "sluice", Password: "PASSWORD"})
			defer user.Close()
			subscribed := user.Subscribe(t.Context(), "sluice:recalled:1")
			defer subscribed.Close()
			if _, err := subscribed.Receive(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without permission to publish, recalls are lost, and claims and overrides are settled.
func TestRecallsNeedNoPermission(t *testing.T) {
	for _, denied := range []string{"resetchannels", "-publish"} {
		server := []*redistest.Server{redistest.Start(t)}
		permit(t, server, denied)
		s := permitted(t, "SINGLE", server)
		settled(t, s.Ledger(), halfOf(yearly, 1))
		settled(t, s.Ledger(), halfOf(yearly, 2))
		if err := overridden(t, s); err != nil {
			t.Errorf("%s: an override: %v", denied, err)
		}
	}
}

var yearly = ratelimit.Limit{Unit: ratelimit.Year, Requests: 10, Ceiling: 100}

func overridden(t *testing.T, s Store) error {
	page, err := s.Table().Since(t.Context(), "", 0, 10)
	if err != nil {
		return err
	}
	if _, err := s.Table().Set(t.Context(), page.Life, table.Record{Key: "k", Value: "v"}, table.Any); err != nil {
		return err
	}
	if _, err := s.Table().Since(t.Context(), page.Life, page.Place, 10); err != nil {
		return err
	}
	old := []table.Record{{Key: "k", Version: 1, Value: "u"}, {Key: "l", Version: 2}}
	return s.Table().Merge(t.Context(), page.Life, old)
}

// A user who may not set expiries writes no account: it would stay for ever.
func TestNoAccountWithoutItsExpiry(t *testing.T) {
	server := []*redistest.Server{redistest.Start(t)}
	permit(t, server, "-pexpireat")
	ledger := permitted(t, "SINGLE", server).Ledger()
	bucket, draw := yearly, halfOf(yearly, 2)
	bucket.Algorithm, bucket.Burst = ratelimit.TokenBucket, 10
	draw.Seq = 0
	for _, c := range []account.Claim{halfOf(yearly, 1), halfOf(yearly, 1), draw, halfOf(bucket, 1)} {
		g := make([]account.Grant, 1)
		if _, _, err := ledger.Settle(t.Context(), []account.Claim{c}, g); err == nil && g[0].Err == nil {
			t.Errorf("%+v is settled", c)
		}
	}
	if names := server[0].Do("KEYS", "*k*"); fmt.Sprint(names) != "[]" {
		t.Errorf("accounts are left: %v", names)
	}
}

// halfOf is a claim of more than half of a limit of 10: a second holder recalls the first.
func halfOf(l ratelimit.Limit, h ratelimit.Holder) account.Claim {
	c := account.Claim{Key: "k", Limit: l, Holder: h, Seq: 1, Need: 6, Want: 6}
	if l.Algorithm != ratelimit.TokenBucket {
		c.Window = l.WindowAt(ratelimit.LedgerTime(time.Now().UnixMicro()))
	}
	return c
}

func settled(t *testing.T, l account.Ledger, c account.Claim) {
	t.Helper()
	g := make([]account.Grant, 1)
	if _, _, err := l.Settle(t.Context(), []account.Claim{c}, g); err != nil || g[0].Err != nil {
		t.Errorf("%+v: %v, %v", c, err, g[0].Err)
	}
}
