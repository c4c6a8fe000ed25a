package leasing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// resharded is a fleet on a Cluster whose slots move.
type resharded struct {
	*onRedis
	masters []*redistest.Server
	owner   []int // of each slot, by its place in masters
	phase   int
	slow    atomic.Int64 // round trips that took longer than a second: the machine is too busy for a verdict on time
}

func newResharded(t *testing.T, masters int) *resharded {
	t.Helper()
	r := &resharded{masters: redistest.Cluster(t, masters), owner: make([]int, 16384)}
	for slot := range r.owner {
		for i := range masters {
			if slot >= i*16384/masters && slot < (i+1)*16384/masters {
				r.owner[slot] = i
			}
		}
	}
	r.onRedis = newOnClients(t, 0, yearly(20), clusterOf(r.masters...))
	r.rule.Coordination.StoreDeadline = 5 * time.Second
	for range 3 {
		client := clusterOf(r.masters...)()
		ledger, err := account.NewRedis(client, "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.end(); client.Close() })
		f := NewFleet(ledger, account.NewHolder(), 100_000, r.clock, time.Now())
		f.Nodes = func() int { return int(r.size.Load()) }
		f.Peers = f.Nodes
		f.OnFailure = func(err error) {
			if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() || errors.Is(err, context.DeadlineExceeded) {
				r.slow.Add(1)
			}
		}
		r.nodes = append(r.nodes, f)
		r.size.Add(1)
		r.run(f)
	}
	r.ready()
	return r
}

// move moves slots to a master.
func (r *resharded) move(slots []int, to int, between func(moved int)) {
	r.Helper()
	for from, master := range r.masters {
		var some []int
		for _, slot := range slots {
			if r.owner[slot] == from && from != to {
				some = append(some, slot)
			}
		}
		redistest.Move(r.masters, master, r.masters[to], some, func(moved int) {
			r.owner[some[moved-1]] = to
			if between != nil {
				between(moved)
			}
		})
	}
}

// of are the slots of a master, ascending.
func (r *resharded) of(master int) (slots []int) {
	for slot, is := range r.owner {
		if is == master {
			slots = append(slots, slot)
		}
	}
	return slots
}

// partsOf are the parts with slots of a master.
func (r *resharded) partsOf(master int) map[int]bool {
	parts := map[int]bool{}
	for slot, is := range r.owner {
		if is == master {
			parts[slot*16/16384] = true
		}
	}
	return parts
}

// under has callers ask for tokens during an event: new keys once, and others up to their limit of 20 and beyond.
func (r *resharded) under(name string, event func()) (asked, refused, over int) {
	r.Helper()
	r.phase++
	var mu sync.Mutex
	var callers sync.WaitGroup
	admitted := map[string]int{}
	ended := make(chan struct{})
	for caller := range 4 {
		callers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-ended:
					return
				default:
				}
				v, _ := r.attempt((caller+i)%len(r.nodes), fmt.Sprint("new", r.phase, ".", caller, ".", i), 1)
				hot := fmt.Sprint("hot", r.phase, ".", i/100)
				w, _ := r.attempt((caller+i)%len(r.nodes), hot, 1)
				mu.Lock()
				if asked++; v.OverLimit {
					refused++
				}
				if !w.OverLimit {
					if admitted[hot]++; admitted[hot] > 20 {
						over++
					}
				}
				mu.Unlock()
				time.Sleep(3 * time.Millisecond)
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	event()
	time.Sleep(300 * time.Millisecond)
	close(ended)
	callers.Wait()
	r.Logf("%s: %d of %d unused keys were refused, %d requests of %d keys were admitted beyond their limits; %d alarms, "+
		"%d slow trips", name, refused, asked, over, len(admitted), r.alarms(), r.slow.Load())
	return asked, refused, over
}

// alarms is the number of losses that nodes noticed.
func (r *resharded) alarms() (n uint64) {
	for _, f := range r.nodes {
		n += f.Stats().Recoveries
	}
	return n
}

// Slots that move between healthy masters of a Cluster lose nothing: no unused key is refused, no limit is exceeded,
// and no node notices a loss.
func TestReshard(t *testing.T) {
	t.Parallel()
	r := newResharded(t, 3)
	quiet := func(name string, event func()) {
		t.Helper()
		asked, refused, over := r.under(name, event)
		if refused > 0 && r.slow.Load() == 0 || over > 0 || r.alarms() > 0 {
			t.Errorf("%s: %d of %d refused, %d admitted beyond limits, %d alarms", name, refused, asked, over, r.alarms())
		}
	}
	quiet("one slot", func() { r.move([]int{0}, 1, nil) })
	quiet("the slot back", func() { r.move([]int{0}, 0, nil) })
	quiet("2,500 slots", func() { r.move(r.of(0)[:2500], 2, nil) })
	sliding := *r.rule // whose claims need two accounts of a slot
	sliding.Limit.Algorithm = ratelimit.SlidingWindow
	fixed := r.rule
	r.rule = &sliding
	quiet("500 slots of sliding windows", func() { r.move(r.of(2)[:500], 1, nil) })
	r.rule = fixed
	r.masters = append(r.masters, redistest.Join(t, r.masters))
	quiet("scale-out", func() {
		for from := range 3 {
			r.move(r.of(from)[:400], 3, nil)
		}
	})
	quiet("scale-in", func() { r.move(r.of(3), 1, nil) })
	time.Sleep(time.Second) // in which each node asks all servers
	r.masters[3].Kill()
	r.masters = r.masters[:3]
	quiet("the empty master is gone", func() { time.Sleep(time.Second) })
}

// A master that loses its data while its slots move is noticed within a second, for all parts of its slots. No limit is
// exceeded by more than a loss costs.
func TestReshardWithALoss(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		move func(r *resharded, between func(int))
		lost int
	}{
		{"one slot", func(r *resharded, between func(int)) { r.move([]int{0}, 1, between) }, 0},
		{"the source", func(r *resharded, between func(int)) { r.move(r.of(0)[:1500], 1, between) }, 0},
		{"the target", func(r *resharded, between func(int)) { r.move(r.of(0)[:1500], 1, between) }, 1},
		{"the new master", func(r *resharded, between func(int)) {
			r.masters = append(r.masters, redistest.Join(r.TB.(*testing.T), r.masters))
			r.move(r.of(0)[:1500], 2, between)
		}, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newResharded(t, 2)
			flushed := false
			var took time.Duration
			_, _, over := r.under(row.name, func() {
				row.move(r, func(moved int) {
					if flushed || moved < 700 && row.name != "one slot" {
						return
					}
					flushed = true
					was := r.lives()
					r.masters[row.lost].Do("FLUSHALL")
					began := time.Now()
					parts := r.partsOf(row.lost)
					r.until("the loss is not noticed", func() bool {
						for i, now := range r.lives() {
							for part := range parts {
								if now[part] == was[i][part] {
									return false
								}
							}
						}
						return true
					})
					took = time.Since(began)
				})
			})
			t.Logf("noticed after %v", took)
			if took > time.Second && r.slow.Load() == 0 {
				t.Errorf("the loss of %s was noticed after %v", row.name, took)
			}
			if most := 20 * int(20); over > most {
				t.Errorf("%d were admitted beyond limits", over)
			}
		})
	}
}
