package account

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// replicate makes one server the replica of another.
func replicate(of, from *redistest.Server) {
	host, port, _ := net.SplitHostPort(from.Addr)
	of.Do("REPLICAOF", host, port)
	of.UntilInfo("replication", "master_link_status:up")
}

// A master is a replica of older data for a moment, and is asked to draw then. Its refusal ends the watch that was
// touched, and the data of afterwards does not count in the epoch of before.
func TestDrawAtAReplica(t *testing.T) {
	a := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	b := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	r := newLive(t, a.Client(), daily(100))
	draw := func() (Grant, uint64, error) {
		g := make([]Grant, 1)
		e, _, err := r.Settle(t.Context(), []Claim{r.draw("k", 1, 1)}, g)
		return g[0], e.ID, err
	}
	replicate(b, a)
	_, _, _ = draw()
	_, first, err := draw()
	if err != nil {
		t.Fatal(err)
	}
	b.Do("REPLICAOF", "NO", "ONE")
	for range 20 {
		_, _, _ = draw()
	}
	replicate(a, b)
	if g, _, err := draw(); err == nil && g.Err == nil {
		t.Fatalf("a replica grants: %+v", g)
	}
	a.Do("REPLICAOF", "NO", "ONE")
	for range 3 {
		if g, id, err := draw(); err == nil && g.Err == nil && id == first {
			t.Errorf("older data counts: %+v", g)
		}
	}
}

// A server answers late while a connection introduces itself. The connection is not used: an answer of before would be
// taken for that of a later command.
func TestSlowIntroduction(t *testing.T) {
	s := redistest.Start(t)
	other := s.Client()
	defer other.Close()
	full := SlotAsk{Key: "full", Op: SlotTake, Slot: 1, Limit: 1, TTL: time.Hour}
	before, err := NewRedis(other, "t:")
	if err != nil {
		t.Fatal(err)
	}
	before.Slots(t.Context(), []SlotAsk{full}, make([]SlotAnswer, 1))

	proxy := redistest.NewProxy(t, s.Addr)
	client := redis.NewClient(&redis.Options{
		Addr: proxy.Addr, MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: 200 * time.Millisecond, DisableIdentity: true,
		OnConnect: func(context.Context, *redis.Conn) error {
			proxy.Delay(300 * time.Millisecond)
			time.AfterFunc(250*time.Millisecond, func() { proxy.Delay(0) })
			return nil
		},
	})
	defer client.Close()
	ledger, err := NewRedis(client, "t:")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	free := full
	free.Key, free.Slot, full.Slot = "free", 2, 3
	answers := make([]SlotAnswer, 2)
	ledger.Slots(ctx, []SlotAsk{free, full}, answers)
	if answers[1].Err == nil && answers[1].Has {
		t.Error("the slot of another request was taken")
	}
}
