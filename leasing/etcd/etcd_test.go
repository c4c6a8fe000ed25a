package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest/etcdtest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/ratelimit/table/tabletest"
)

type tokens = ratelimit.Tokens

var (
	node, settle, claim = ledgertest.Node, ledgertest.Settle, ledgertest.Claim
	grants, snapshot    = ledgertest.Grants, ledgertest.Snapshot
)

func prepared(t *testing.T, url string) *Store {
	t.Helper()
	return ledgertest.Prepared(t, Open, url, "t:")
}

// What all stores must do, on a real server.
func TestConformance(t *testing.T) {
	t.Parallel()
	ledgertest.Store(t, etcdtest.Start(t), Open)
}

// The leader of three members is killed and returns, and then a member hangs, while four nodes claim. No grant is
// lost, the life stays, and claims continue.
func TestFailover(t *testing.T) {
	t.Parallel()
	const nodes = 4
	members := etcdtest.StartCluster(t, 3)
	url := members[0].URL() + ",127.0.0.1:" + members[1].Port + ",127.0.0.1:" + members[2].Port
	first := prepared(t, url)
	life := snapshot(t, first).Life
	var granted atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for n := range nodes {
		l := node(prepared(t, url))
		all.Go(func() {
			has := tokens(0)
			for seq := uint64(1); ctx.Err() == nil; seq++ {
				bounded, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				c, g := claim("k", ratelimit.Holder(0xa00+n), seq, has, 1), make([]account.Grant, 1)
				c.Limit.Requests = 1_000_000
				_, _, err := l.Settle(bounded, []account.Claim{c}, g)
				cancel()
				if err == nil && g[0].Err == nil {
					has += g[0].Granted
					granted.Add(int64(g[0].Granted))
				}
			}
		})
	}
	goesOn := func() {
		for at := granted.Load() + 50; granted.Load() < at; time.Sleep(time.Millisecond) { // the test's deadline bounds it
		}
	}
	goesOn()
	leader := slices.IndexFunc(members, (*etcdtest.Server).Leads)
	if leader < 0 {
		t.Fatal("there is no leader")
	}
	members[leader].Kill()
	goesOn()
	members[leader].Run()
	goesOn()
	members[0].Signal(syscall.SIGSTOP)
	goesOn()
	members[0].Signal(syscall.SIGCONT)
	stop()
	all.Wait()
	c := claim("k", 0xfff, 1, 0, 0)
	c.Limit.Requests = 1_000_000
	g, err := settle(t, node(first), c)
	if err != nil || int64(g.Sum) < granted.Load() || int64(g.Sum) > granted.Load()+nodes {
		t.Errorf("%d tokens were granted, and %d are charged: %v", granted.Load(), g.Sum, err)
	}
	if now := snapshot(t, first).Life; now != life {
		t.Errorf("after the failover the life is %q, was %q", now, life)
	}
}

// Where clocks differ by a minute no fixed window is over its limit; and a clock that is set back stands still.
func TestClocks(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	right, ahead := prepared(t, server.URL()), prepared(t, server.URL())
	later := ahead.now() + ratelimit.LedgerTime(time.Minute/time.Microsecond)
	ahead.clock.Store(int64(later))
	if a, b := snapshot(t, ahead).Now, snapshot(t, ahead).Now; a != later || b != later {
		t.Errorf("a clock that was set back from %d says %d and %d", later, a, b)
	}
	before := time.Now().UnixMicro()
	if now := snapshot(t, right).Now; int64(now) < before || int64(now) > time.Now().UnixMicro() {
		t.Errorf("read at %d, and the time is %d", before, now)
	}
	minute := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 1000}
	has := []map[ratelimit.Window]tokens{{}, {}}
	for seq := range uint64(20) {
		for n, s := range []*Store{right, ahead} {
			c := claim("k", ratelimit.Holder(0xa00+n), seq+1, has[n][minute.WindowAt(s.now())], 90)
			c.Limit, c.Window = minute, minute.WindowAt(s.now())
			g, err := settle(t, node(s), c)
			if err != nil || g.Err != nil {
				t.Fatal(g, err)
			}
			has[n][c.Window] += g.Granted
		}
	}
	for w := range has[0] {
		if sum := has[0][w] + has[1][w]; sum > 1000 {
			t.Errorf("of window %d %d of 1000 were granted", w, sum)
		}
	}
}

// Etcd deletes what is over, by the lease that all records of a time share, and grants anew what was revoked.
func TestExpiry(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	s, other := prepared(t, server.URL()), prepared(t, server.URL())
	const accounts = 16_000
	now := s.now()
	over, later := now+narrowSlot, now+3*narrowSlot
	life := snapshot(t, s).Life
	for from := 0; from < accounts; from += 1000 {
		changes := make([]account.Change, 1000)
		for i := range changes {
			changes[i] = account.Change{
				StoreKey: account.StoreKey{Name: fmt.Sprint("k", from+i), Over: over}, Data: make([]byte, 60),
				Until: over,
			}
		}
		if made, err := []*Store{s, other}[from/1000%2].Write(t.Context(), life, changes); err != nil || !made[0] {
			t.Fatal(made, err)
		}
	}
	// A bucket moves to a later lease, and what is never over has none.
	bucket := account.Change{StoreKey: account.StoreKey{Name: "bucket"}, Data: []byte{1}, Until: over}
	ever := account.Change{StoreKey: account.StoreKey{Name: "ever"}, Data: []byte{1}, Until: 1 << 62}
	if _, err := s.Write(t.Context(), life, []account.Change{bucket, ever}); err != nil {
		t.Fatal(err)
	}
	bucket.Version, bucket.Until = snapshot(t, s, "bucket").Records[0].Version, later
	if made, err := s.Write(t.Context(), life, []account.Change{bucket}); err != nil || !made[0] {
		t.Fatal(made, err)
	}
	var took time.Duration
	server.With(func(ctx context.Context, c *clientv3.Client) error {
		for share := range uint64(shares) {
			id, ttl := leaseOf(now, over, share)
			r, err := c.TimeToLive(ctx, id)
			if err != nil {
				return err
			}
			// Ten minutes after the last one is over, by the clock of the node that granted it.
			least := over.Sub(now) + grace + time.Duration(share)*shareApart
			if left := time.Duration(r.TTL) * time.Second; left < least-10*time.Second || left > ttl ||
				ttl > least+grace {
				t.Errorf("lease %d has %v left of %v, and the last record is over in %v", share, left, ttl,
					over.Sub(now))
			}
			began := time.Now()
			_, err = c.Revoke(ctx, id) // as etcd does it, when its time has come
			if took = max(took, time.Since(began)); err != nil {
				return err
			}
		}
		return nil
	})
	if n := server.Count(recordsKey); n != 2 || took > 500*time.Millisecond {
		t.Errorf("%d records are left after %v", n, took)
	}
	c := account.Change{StoreKey: account.StoreKey{Name: "k", Over: over}, Data: []byte{1}, Until: over}
	if made, err := s.Write(t.Context(), life, []account.Change{c}); err != nil || !made[0] {
		t.Errorf("a lease that was revoked is not granted anew: %v", err)
	}
	recall := map[ratelimit.Holder][]string{1: {"k"}}
	if err := s.Send(t.Context(), recall); err != nil {
		t.Error(err)
	}
	server.With(func(ctx context.Context, c *clientv3.Client) error {
		held, err := c.Get(ctx, recallsOf(1))
		if err != nil {
			return err
		}
		_, err = c.Revoke(ctx, clientv3.LeaseID(held.Kvs[0].Lease))
		return err
	})
	if err := s.Send(t.Context(), recall); err != nil {
		t.Errorf("a recall with a lease that was revoked: %v", err)
	}
	// A real one, of which the time comes.
	server.With(func(ctx context.Context, c *clientv3.Client) error {
		short, _ := leaseOf(now, over+6*narrowSlot, shareOf("short"))
		_, err := c.Revoke(ctx, short)
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
		_, err = clientv3.RetryLeaseClient(c).LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: int64(short), TTL: 1})
		return err
	})
	c = account.Change{StoreKey: account.StoreKey{Name: "short"}, Data: []byte{1}, Until: over + 6*narrowSlot}
	if made, err := other.Write(t.Context(), life, []account.Change{c}); err != nil || !made[0] {
		t.Fatal(made, err)
	}
	for snapshot(t, s, "short").Records[0].Version != 0 {
		time.Sleep(20 * time.Millisecond) // the test's deadline bounds it
	}
}

// An older copy is another life: to a node that lived on, where it has the same cluster ID; and to all, where not.
func TestRestoredCopy(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", "other"} {
		server := etcdtest.Start(t)
		s := prepared(t, server.URL())
		l := node(s)
		before, err := l.Verify(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		life := snapshot(t, s).Life
		grants(t, l, claim("k", 0xa00, 1, 0, 100), 100)
		copied := server.Snapshot()
		grants(t, l, claim("k", 0xa00, 2, 100, 600), 600)
		ended := account.Change{StoreKey: account.StoreKey{Name: "ended"}, Data: []byte{1}, Until: s.now()}
		if _, err := s.Write(t.Context(), life, []account.Change{ended}); err != nil {
			t.Fatal(err)
		}
		server.Kill()
		server.Restore(copied, token)
		server.Run()
		young := prepared(t, server.URL()) // a process that began after the restore
		if now := snapshot(t, young).Life; (now == life) != (token == "") {
			t.Errorf("token %q: to a new process the life is %q, was %q", token, now, life)
		}
		// It writes more than was lost, to the same account, before the other one looks.
		for seq := range uint64(10) {
			if g, err := settle(t, node(young), claim("k", 0xb00, seq+1, tokens(seq), 1)); err != nil || g.Err != nil {
				t.Fatal(g, err)
			}
		}
		after, err := l.Verify(t.Context())
		if err != nil || after.ID == before.ID || token == "" && after.Ends == 0 {
			t.Errorf("token %q: the copy's epoch is %+v, the original's was %+v: %v", token, after, before, err)
		}
		if e, err := node(young).Verify(t.Context()); err != nil || e != after {
			t.Errorf("token %q: a new process has the epoch %+v, the old one %+v: %v", token, e, after, err)
		}
	}
}

// A restore of all that was written, and a restart, lose nothing, and the life stays; data that is gone is another
// one.
func TestLife(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	s := prepared(t, server.URL())
	grants(t, node(s), claim("k", 0xa00, 1, 0, 100), 100)
	life := snapshot(t, s).Life
	copied := server.Snapshot()
	stays := func(after string) {
		t.Helper()
		if now := snapshot(t, s).Life; now != life {
			t.Errorf("after %s the life is %q, was %q", after, now, life)
		}
	}
	server.Kill()
	server.Run()
	stays("a crash")
	server.Kill()
	server.Restore(copied, "")
	server.Run()
	stays("a restore of all")
	// Overwritten and compacted: it cannot be told, and is taken for lost, unless it is there as it was.
	compact := func() {
		server.With(func(ctx context.Context, c *clientv3.Client) error {
			r, err := c.Put(ctx, "-", "")
			if err == nil {
				_, err = c.Compact(ctx, r.Header.Revision)
			}
			return err
		})
		server.Kill()
		server.Run()
	}
	compact()
	stays("compaction")
	other := node(prepared(t, server.URL()))
	grants(t, other, claim("k", 0xb00, 1, 0, 100), 100)
	compact()
	if now := snapshot(t, s).Life; now == life {
		t.Errorf("the last write cannot be found any more, and the life is %q as before", now)
	}
	life = snapshot(t, s).Life
	server.With(func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Delete(ctx, root, clientv3.WithPrefix())
		return err
	})
	if now := snapshot(t, s).Life; now == life {
		t.Errorf("all is deleted, and the life is %q as before", now)
	}
}

// What was overwritten is compacted when it is old, once by all nodes, and not where the URL says so.
func TestCompaction(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	for n, url := range []string{server.URL() + "?compact=false", server.URL()} {
		s := prepared(t, url)
		var revisions [3]int64
		for i := range revisions {
			c := claim("k", ratelimit.Holder(n+1), uint64(i+1), 0, 1)
			if g, err := settle(t, node(s), c); err != nil || g.Err != nil {
				t.Fatal(g, err)
			}
			for range 2 {
				if _, _, err := s.Drop(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
			}
			revisions[i] = s.history.revision
			s.history.at = s.history.at.Add(-historyKept)
		}
		server.With(func(ctx context.Context, c *clientv3.Client) error {
			for i, revision := range revisions {
				_, err := c.Get(ctx, "-", clientv3.WithRev(revision))
				if gone := errors.Is(err, rpctypes.ErrCompacted); gone != (i == 0 && revision != 0) {
					t.Errorf("%s: revision %d, of look %d: %v", url, revision, i, err)
				}
			}
			return nil
		})
	}
}

// Bad URLs and passwords are errors that say what to do.
func TestErrors(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://u:geheim@host:1":              "must begin with etcd://",
		"etcd://u:geheim@":                     "is not a host with a port",
		"etcd://u:geheim@host":                 `"host" is not a host with a port`,
		"etcd://u:geheim@host:port":            `"host:port" is not a host with a port`,
		"etcd://u:geheim@host:1,host:99999":    `"host:99999" is not a host with a port`,
		"etcd://u:geheim%@host:1":              "write %25 for a %",
		"etcd://geheim@host:1":                 "a user or a password alone",
		"etcd://u:geheim@host:1?tsl=true":      `the setting "tsl"`,
		"etcd://u:geheim@host:1?tls=ja":        `tls is "ja", must be true or false`,
		"etcd://u:geheim@host:1?cacert=a":      "add tls=true",
		"etcd://u:geheim@host:1?tls=1&cert=a":  `cert is "a" and key is ""`,
		"etcd://u:ge/h?eim@host:1?x=1":         "is not a host with a port",
		"etcd://h:1?tls=true&cacert=/dev/null": "has no certificate in the form of PEM",
	} {
		if _, err := Open(url, ""); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "geheim") {
			t.Errorf("the error of %s is %v, must say %s", url, err, want)
		}
	}
	p, err := parse("etcd://a%40b:c%3Ad%2F@[::1]:2379,host-2:2380/?compact=false")
	if err != nil || p.config.Username != "a@b" || p.config.Password != "c:d/" || p.compacts ||
		fmt.Sprint(p.config.Endpoints) != "[[::1]:2379 host-2:2380]" {
		t.Errorf("%+v, %v", p.config, err)
	}
	server := etcdtest.Start(t)
	server.Protect("geheim:%")
	for user, want := range map[string]error{
		"":                   rpctypes.ErrUserEmpty,
		"root:geheimfalsch@": rpctypes.ErrAuthFailed,
		"root:geheim%3A%25@": nil,
	} {
		err := ledgertest.Opened(t, Open, strings.Replace(server.URL(), "://", "://"+user, 1), "t:").Prepare(t.Context())
		if !errors.Is(err, want) || err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("with %q: %v, must be %v", user, err, want)
		}
	}
	server.Kill()
	for _, user := range []string{"", "root:geheim@"} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err = ledgertest.Opened(t, Open, strings.Replace(server.URL(), "://", "://"+user, 1), "t:").Prepare(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), server.Port) {
			t.Errorf("nobody listens, and the error is %v", err)
		}
	}
}

// The user of the guide, with the keys below sluice/, can do all that a node does.
func TestUserOfTheGuideSuffices(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	server.With(func(ctx context.Context, c *clientv3.Client) error {
		if _, err := c.RoleAdd(ctx, "sluice"); err != nil {
			return err
		}
		end, both := clientv3.GetPrefixRangeEnd("sluice/"), clientv3.PermissionType(clientv3.PermReadWrite)
		if _, err := c.RoleGrantPermission(ctx, "sluice", "sluice/", end, both); err != nil {
			return err
		}
		if _, err := c.UserAdd(ctx, "sluice", "password"); err != nil {
			return err
		}
		_, err := c.UserGrantRole(ctx, "sluice", "sluice")
		return err
	})
	server.Protect("secret")
	s := prepared(t, strings.Replace(server.URL(), "://", "://sluice:password@", 1)+"?compact=false")
	ctx := t.Context()
	check := func(of string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", of, err)
		}
	}
	l := account.NewCAS(s, "t:")
	c := claim("k", 1, 1, 0, 6)
	g, _ := settle(t, l, c)
	check("a claim", g.Err)
	check("a recall", s.Send(ctx, map[ratelimit.Holder][]string{1: {"name"}}))
	check("the registry", s.Register(ctx, "node", "text", time.Minute, func(string, string, time.Duration) {}))
	check("the registry", s.Register(ctx, "node", "", time.Minute, func(string, string, time.Duration) {}))
	_, _, err := s.Drop(ctx, 0)
	check("a sweep", err)
	listening, cancel := context.WithCancel(ctx)
	check("recalls", s.Listen(listening, 1, cancel, func(string) {}))
	s.history = history{revision: 1}
	if _, _, err = s.Drop(ctx, 0); !errors.Is(err, ErrCompact) {
		t.Errorf("a compaction by that user: %v", err)
	}
}

// What all stores of a table must do.
func TestEtcdTable(t *testing.T) {
	s := etcdtest.Start(t)
	snapshot := s.Snapshot()
	tabletest.Run(t, tabletest.Server{
		Open: func(t testing.TB) table.Store {
			return Feed{ledgertest.Prepared(t, Open, s.URL(), "t:")}
		},
		Restart: func() { s.Kill(); s.Run() },
		Lose: func() {
			s.Kill()
			s.Restore(snapshot, "") // in the same place: its cluster has the same ID
			s.Run()
		},
	})
}
