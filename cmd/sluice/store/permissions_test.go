package store

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

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
			tryAll(t, permitted(t, kind, servers))
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

// tryAll does all that nodes do with a store.
func tryAll(t *testing.T, s Store) {
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
}
