package store

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Fleet is nodes, and a Redis that was empty at their start. It is not safe for concurrent use, except its
// Pool.
type Fleet struct {
	Redis *process.Redis
	Pool  caller.Pool // of the nodes
	nodes []*process.Process
	rules func() // removes their file
}

// openFleet starts nodes that answer in a mode, and waits until they know each other.
func openFleet(o *Options, row *Row, m *mode, nodes int) (*Fleet, error) {
	if m.fields == nil {
		return OpenBaseline(o.Lab, row.Limit, row.window(), nodes)
	}
	return Open(o.Binary, row.file(m), nodes)
}

// Open starts nodes of sluice, a binary, with a file of rules, and waits until they have found each other.
func Open(binary, rules string, nodes int) (*Fleet, error) {
	file, remove, err := process.Rules(rules)
	if err != nil {
		return nil, err
	}
	return open(remove, func(f *Fleet) error {
		ports, err := freeport.Find(nodes)
		if err != nil {
			return err
		}
		peers := "static:127.0.0.1:" + strings.Join(ports, ",127.0.0.1:")
		for _, port := range ports {
			if err := f.add(process.Sluice(
				binary, file, "--log-level", "error", "--redis-url", f.Redis.Addr, "--max-keys", strconv.Itoa(maxKeys),
				"--peers", peers, "--peer-addr", "127.0.0.1:"+port, "--peer-bind", "127.0.0.1:"+port, "--peer-secret", "only-for-benchmarks", "--drain-time", "200ms",
			)); err != nil {
				return err
			}
		}
		return f.met()
	})
}

// maxKeys is more than any row has.
const maxKeys = 200_000

// OpenBaseline starts servers that ask Redis for each request, by sluicelab, a binary.
func OpenBaseline(lab string, limit int64, window time.Duration, nodes int) (*Fleet, error) {
	return open(func() {}, func(f *Fleet) error {
		for range nodes {
			ports, err := freeport.Find(1)
			if err != nil {
				return err
			}
			address := "127.0.0.1:" + ports[0]
			if err := f.add(process.Start(lab, address, "bench", "baseline", "--address", address, "--redis", f.Redis.Addr,
				"--limit", strconv.FormatInt(limit, 10), "--window", window.String())); err != nil {
				return err
			}
		}
		return nil
	})
}

// open starts a Redis, and then what asks it. Of a fleet that does not start, nothing is left.
func open(rules func(), nodes func(f *Fleet) error) (*Fleet, error) {
	redis, err := process.OpenRedis("")
	if err != nil {
		rules()
		return nil, err
	}
	f := &Fleet{Redis: redis, rules: rules}
	if err := nodes(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *Fleet) add(node *process.Process, err error) error {
	if err != nil {
		return err
	}
	f.nodes = append(f.nodes, node)
	return f.Pool.Add(node.Address)
}

// young is how long a Redis that begins empty counts as one that may have lost its
// data, and grants little.
const young = 2500 * time.Millisecond

// met waits until all nodes know each other, and the ledger's data is not young.
func (f *Fleet) met() error {
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
func (f *Fleet) cpu() (sum time.Duration) {
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
func (f *Fleet) byReason(counter *regexp.Regexp) map[string]int64 {
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

// Close ends all of it.
func (f *Fleet) Close() {
	f.Pool.Close()
	for _, node := range f.nodes {
		node.Stop()
	}
	f.Redis.Close()
	f.rules()
}
