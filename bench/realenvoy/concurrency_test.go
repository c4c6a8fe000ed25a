package realenvoy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	slots, slotTTL = 32, 8 * time.Second
	slotRules      = `domain: edge
coordination: {on_store_failure: closed, store_deadline: 500ms}
descriptors:
  - {key: api_key, rate_limit: {concurrency: 32, hold_ttl: 8s}}
`
)

// gauge is how many requests are at the service.
type gauge struct {
	now, most, served atomic.Int64
}

func (g *gauge) handle(w http.ResponseWriter, r *http.Request) {
	n := g.now.Add(1)
	defer g.now.Add(-1)
	for was := g.most.Load(); n > was && !g.most.CompareAndSwap(was, n); was = g.most.Load() {
	}
	select {
	case <-time.After(time.Duration(50+rand.IntN(100)) * time.Millisecond):
		g.served.Add(1)
		fmt.Fprint(w, "served")
	case <-r.Context().Done(): // its Envoy has gone
	}
}

// Three nodes, five Envoys and 500 clients of one key: at most 32 requests are at the service, while an Envoy
// and a node are killed. All 32 slots are in use again at the end of the lost ones.
func TestConcurrencyThroughEnvoys(t *testing.T) {
	needsLong(t)
	var g gauge
	w := &world{
		T: t, rules: slotRules, nodes: 3, handler: g.handle,
		config: Config{Text: change(t, shipped(t, "envoy/concurrency.yaml"), "timeout: 0.02s", "timeout: 1s",
			"failure_mode_deny: false", "failure_mode_deny: true")},
	}
	w.prepare()
	binary, err := Find()
	w.need(err)
	envoys := make([]*Envoy, 5)
	for i := range envoys {
		c := Config{Text: w.config.Text, Clusters: map[string][]string{"service": {w.backend.Address}}}
		for _, n := range w.fleet.Nodes {
			c.Clusters["sluice"] = append(c.Clusters["sluice"], n.Address)
		}
		envoys[i], err = Start(binary, t.TempDir(), &c)
		w.need(err)
		t.Cleanup(envoys[i].Stop)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
	defer cancel()
	const clients = 500
	var served [clients]atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			client := NewClient(envoys[i%len(envoys)].URL)
			defer client.Close()
			for ctx.Err() == nil {
				if a, err := client.Get(ctx, "/", "x-api-key", "a"); err == nil && a.Status == http.StatusOK {
					served[i].Add(1)
				} else {
					time.Sleep(time.Duration(200+rand.IntN(400)) * time.Millisecond)
				}
			}
		})
	}
	time.Sleep(5 * time.Second)
	w.need(envoys[4].Kill())
	time.Sleep(2 * time.Second)
	w.need(w.fleet.Nodes[2].Signal(syscall.SIGKILL))
	time.Sleep(slotTTL + time.Second)
	before := g.most.Swap(0)
	all.Wait()
	counts := make([]int64, 0, clients)
	for i := range clients {
		if i%len(envoys) != 4 {
			counts = append(counts, served[i].Load())
		}
	}
	slices.Sort(counts)
	t.Logf("at most %d of %d at once, and %d after hold_ttl; %d served, of each client %d to %d, %d in the middle",
		before, slots, g.most.Load(), g.served.Load(), counts[0], counts[len(counts)-1], counts[len(counts)/2])
	if before > slots || g.most.Load() > slots {
		t.Errorf("more than %d at once", slots)
	}
	if g.most.Load() < slots {
		t.Errorf("only %d of %d slots are in use when all that was lost has come back", g.most.Load(), slots)
	}
}
