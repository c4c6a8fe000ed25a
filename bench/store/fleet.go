package store

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// fleet is nodes, and a Redis that was empty when they started.
type fleet struct {
	redis *process.Redis
	nodes []*process.Process
	pool  caller.Pool
}

// openFleet starts nodes that answer in a mode, and waits until they know each other.
func openFleet(o *Options, dir string, row *Row, m *mode, nodes int) (f *fleet, err error) {
	f = &fleet{}
	defer func() {
		if err != nil {
			f.close()
			f = nil
		}
	}()
	if f.redis, err = process.OpenRedis(""); err != nil {
		return f, err
	}
	if m.fields == nil {
		return f, f.startBaseline(o.Lab, row, nodes)
	}
	rules := filepath.Join(dir, "rules.yaml")
	if err = os.WriteFile(rules, []byte(row.file(m)), 0o600); err != nil {
		return f, fmt.Errorf("bench: %w", err)
	}
	ports, err := freeport.Find(nodes)
	if err != nil {
		return f, err
	}
	peers := "static:127.0.0.1:" + strings.Join(ports, ",127.0.0.1:")
	for _, port := range ports {
		node, err := process.Sluice(
			o.Binary, rules, "--log-level", "error", "--redis-url", f.redis.Addr, "--max-keys", strconv.Itoa(maxKeys),
			"--peers", peers, "--peer-addr", "127.0.0.1:"+port, "--peer-bind", "127.0.0.1:"+port, "--peer-secret", "only-for-benchmarks", "--drain-time", "200ms",
		)
		if err != nil {
			return f, err
		}
		if err := f.add(node); err != nil {
			return f, err
		}
	}
	return f, f.met()
}

// maxKeys is more than any row has.
const maxKeys = 200_000

func (f *fleet) startBaseline(lab string, row *Row, nodes int) error {
	for range nodes {
		ports, err := freeport.Find(1)
		if err != nil {
			return err
		}
		address := "127.0.0.1:" + ports[0]
		node, err := process.Start(lab, address, "bench", "baseline", "--address", address, "--redis", f.redis.Addr,
			"--limit", strconv.FormatInt(row.Limit, 10), "--window", row.window().String())
		if err != nil {
			return err
		}
		if err := f.add(node); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) add(node *process.Process) error {
	f.nodes = append(f.nodes, node)
	return f.pool.Add(node.Address)
}

// young is how long a Redis that begins empty counts as one that may have lost its
// data, and grants little.
const young = 2500 * time.Millisecond

// met waits until all nodes know each other, and the ledger's data is not young.
func (f *fleet) met() error {
	want := fmt.Sprintf("\nsluice_ring_members %d\n", len(f.nodes))
	ready := 0
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		ready = 0
		for _, node := range f.nodes {
			if text, err := node.Scrape(); err == nil && strings.Contains(text, want) {
				ready++
			}
		}
		if ready == len(f.nodes) {
			time.Sleep(young)
			return nil
		}
	}
	return fmt.Errorf("%d of %d nodes had met all others after 20 s", ready, len(f.nodes))
}

// cpu is the processor time of all nodes so far.
func (f *fleet) cpu() (sum time.Duration) {
	for _, node := range f.nodes {
		if used, err := node.CPU(); err == nil {
			sum += used
		}
	}
	return sum
}

var (
	fallbacks = regexp.MustCompile(`(?m)^sluice_fallback_decisions_total\{reason="([a-z_]+)"\} (\d+)`)
	claims    = regexp.MustCompile(`(?m)^sluice_claims_total\{for="([a-z_]+)"\} (\d+)`)
)

// byReason is a counter of all nodes together, by reason.
func (f *fleet) byReason(counter *regexp.Regexp) map[string]int64 {
	all := map[string]int64{}
	for _, node := range f.nodes {
		if node.Debug == "" { // the baseline has no metrics
			continue
		}
		text, err := node.Scrape()
		if err != nil {
			continue
		}
		for _, m := range counter.FindAllStringSubmatch(text, -1) {
			if n, _ := strconv.ParseInt(m[2], 10, 64); n > 0 {
				all[m[1]] += n
			}
		}
	}
	return all
}

func (f *fleet) close() {
	f.pool.Close()
	for _, node := range f.nodes {
		node.Stop()
	}
	if f.redis != nil {
		f.redis.Close()
	}
}
