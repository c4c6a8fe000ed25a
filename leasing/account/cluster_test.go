package account

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

func newClustered(t *testing.T, servers []*redistest.Server, l ratelimit.Limit) *live {
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr
	}
	return newLive(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true}), l)
}

// heldBy is a key whose account is on a server.
func (r *live) heldBy(s *redistest.Server) string {
	for i := range 1000 {
		key := fmt.Sprint("k", i)
		c, err := r.cluster.MasterForKey(r.Context(), r.nameOf(key, 1))
		if err != nil {
			r.Fatal(err)
		}
		if c.Options().Addr == s.Addr {
			return key
		}
	}
	r.Fatalf("no key is on %v", s)
	return ""
}

// In a Cluster each server has its own epoch. A loss at one of them makes that of its parts another one, and of no
// other part.
func TestCluster(t *testing.T) {
	servers := redistest.Cluster(t, 3)
	r := newClustered(t, servers, limitOf(t, "sliding 100 a week"))
	if n := len(r.current.Load().all); n != 3 {
		t.Fatalf("%d servers are known", n)
	}
	x := r.current.Load()
	first := epochOf(t, r)
	if first.ID == 0 || first.Ends != 0 {
		t.Errorf("%+v: nobody else is alive", first)
	}
	var claims []Claim
	for _, s := range servers {
		key := r.heldBy(s)
		claims = append(claims, r.draw(key, 1, 60), r.claim(key, 2, 1, 50))
	}
	for i, g := range r.settle(claims...) {
		if want := []Grant{{Total: 60, Sum: 60}, {Granted: 40, Total: 40, Sum: 100}}[i%2]; g.Err != nil ||
			g.Granted != want.Granted || g.Total != want.Total || g.Sum != want.Sum {
			t.Errorf("message %d: %+v", i, g)
		}
	}
	for _, s := range servers {
		expires(t, s.Client())
		if s.Commands("pexpireat") > s.Commands("evalsha")+s.Commands("eval") {
			t.Error("a draw was no script")
		}
	}
	known := make([]ratelimit.Epoch, r.Partitions())
	for part := range known {
		known[part], _, _ = r.part(part)
	}
	for i, s := range servers {
		key := r.heldBy(s)
		s.Do("FLUSHALL")
		e, at, err := r.Settle(t.Context(), []Claim{r.draw(key, 1, 1)}, make([]Grant, 1))
		if err != nil || e.Ends == 0 {
			t.Errorf("%v has lost its data: %+v, %v", s, e, err)
		}
		if p := r.Partition(key); (at != 0) != (len(x.parts[p]) == 1) {
			t.Errorf("part %d has %d clocks, and it is said to be %d", p, len(x.parts[p]), at)
		}
		for part, was := range known {
			is, from, to := r.part(part)
			if lost := slices.Contains(x.parts[part], x.all[i]); lost == (is.ID == was.ID) ||
				part == r.Partition(key) && is != e {
				t.Errorf("part %d was in %+v, and is in %+v; it lost its data: %v", part, was, is, lost)
			}
			if from > to || from < to && len(x.parts[part]) == 1 {
				t.Errorf("part %d: it is from %d to %d", part, from, to)
			}
			known[part] = is
		}
	}
	// A server that hangs does not keep others from being looked at.
	servers[0].Signal(syscall.SIGSTOP)
	var lives []ratelimit.Epoch
	for i, s := range servers[1:] {
		lives = append(lives, x.all[i+1].life.Load().Epoch)
		s.Do("FLUSHALL")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := r.Verify(ctx); err == nil {
		t.Error("a server that hangs was looked at")
	}
	servers[0].Signal(syscall.SIGCONT)
	for i, s := range x.all[1:] {
		if s.life.Load().Epoch == lives[i] {
			t.Errorf("%v has lost its data, and was not looked at", servers[i+1])
		}
	}
	servers[2].Kill()
	for _, part := range []int{0, len(known) * 2 / 3, len(known) - 1} {
		_, _, _, err := r.Ask(t.Context(), part)
		if dead := slices.Contains(x.parts[part], x.all[2]); dead != (err != nil) {
			t.Errorf("part %d, of a server that is dead: %v: %v", part, dead, err)
		}
	}
}

// part asks a part of the ledger.
func (r *live) part(part int) (e ratelimit.Epoch, from, to instant) {
	r.Helper()
	e, from, to, err := r.Ask(r.Context(), part)
	if err != nil || e.ID == 0 {
		r.Fatalf("part %d: %+v, %v", part, e, err)
	}
	return e, from, to
}

// A master that is new to the Cluster may lose its slots' data before this process has read its epoch. That is a loss of
// its parts. Slots that it keeps are none.
func TestClusterWithANewMaster(t *testing.T) {
	for name, lost := range map[string]bool{"keeps its data": false, "loses it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Cluster(t, 2)
			r := newClustered(t, servers, weekly(100))
			size := clusterSlots / r.Partitions()
			before := make([]ratelimit.Epoch, r.Partitions())
			for part := range before {
				before[part], _, _ = r.part(part)
			}
			joined := redistest.Join(t, servers)
			slots := make([]int, size+10) // part 0, and the lowest of part 1
			for slot := range slots {
				slots[slot] = slot
			}
			redistest.Move(append(servers, joined), servers[0], joined, slots, func(moved int) {
				if lost && moved == size+5 { // slots that come later bring their names
					joined.Do("FLUSHALL")
				}
			})
			r.reading.Lock()
			err := r.readLocked(t.Context())
			r.reading.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			epochOf(t, r)
			for part, was := range before {
				if is, _, _ := r.part(part); (is.ID != was.ID) != (lost && part < 2) {
					t.Errorf("part %d was in %+v, and is in %+v", part, was, is)
				}
			}
		})
	}
}

// The slots of a dead master are given to another, without their data: that is a loss.
func TestClusterWithoutADeadMaster(t *testing.T) {
	servers := redistest.Cluster(t, 2)
	r := newClustered(t, servers, weekly(100))
	key, dead := r.heldBy(servers[0]), servers[0].Do("CLUSTER", "MYID")
	claims, grants := []Claim{r.claim(key, 1, 1, 5)}, make([]Grant, 1)
	first, _, err := r.Settle(t.Context(), claims, grants)
	if err != nil {
		t.Fatal(err)
	}
	servers[0].Kill()
	for range silent {
		if _, _, err := r.Settle(t.Context(), claims, grants); err == nil {
			t.Error("a dead server answered")
		}
	}
	servers[1].Do("CLUSTER", "FORGET", dead)
	slots := []any{"CLUSTER", "ADDSLOTS"}
	for slot := range clusterSlots / 2 {
		slots = append(slots, slot)
	}
	servers[1].Do(slots...)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		e, _, err := r.Settle(t.Context(), claims, grants)
		if err == nil && grants[0].Err == nil {
			if e.ID == first.ID {
				t.Errorf("%+v at another server, without the data", e)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it is not settled: %v, %v", err, grants[0].Err)
		}
	}
}

func TestSlotTags(t *testing.T) {
	for prefix, want := range map[string]int{"": clusterSlots, "p{": clusterSlots, "p{}": clusterSlots, "p{x}:": 1} {
		if n := len(slotTags(prefix)); n != want {
			t.Errorf("%q: %d names, want %d", prefix, n, want)
		}
	}
	for slot, tag := range slotTags("") {
		if int(slotOf(strconv.FormatUint(uint64(tag), 36))) != slot {
			t.Fatalf("the tag %d is not in slot %d", tag, slot)
		}
	}
}

// In a Cluster, registrations are made and end by one clock, that of the server that has them: clocks of servers
// differ.
func TestRegistrationsHaveOneClock(t *testing.T) {
	servers := redistest.Cluster(t, 3)
	r := newClustered(t, servers, fixed(1))
	for _, s := range servers {
		s.Do("CONFIG", "RESETSTAT")
	}
	for range 20 { // a command without a key goes to any of them
		if err := r.Register(t.Context(), 1<<28); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Over(t.Context(), []ratelimit.Holder{1 << 28}); err != nil {
			t.Fatal(err)
		}
	}
	if n := redistest.Used(servers, "time"); n != 1 {
		t.Errorf("the clocks of %d servers were read", n)
	}
}
