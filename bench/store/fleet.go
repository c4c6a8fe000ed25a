package store

import (
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/bench/baseline"
	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
)

// Fleet is nodes, and a Redis that was empty at their start. It is not safe for concurrent use, except its
// Pool.
type Fleet struct {
	Redis *process.Redis
	Pool  caller.Pool // of the nodes
	nodes *process.Fleet
	rules func() // removes their file
}

// Open starts nodes of sluice, a binary, with a file of rules, and waits until they have found each other.
func Open(binary, rules string, nodes int) (*Fleet, error) { return openNodes(binary, rules, nodes, 0) }

// openNodes has places for others that may join, and adds flags to the command lines.
func openNodes(binary, rules string, nodes, others int, flags ...string) (*Fleet, error) {
	file, remove, err := process.Rules(rules)
	if err != nil {
		return nil, err
	}
	return open(remove, func(f *Fleet) error {
		f.nodes, err = process.NewFleet(binary, file, nodes+others, append([]string{
			"--redis-url", f.Redis.Addr, "--max-keys", strconv.Itoa(maxKeys), "--drain-time", "200ms",
		}, flags...)...)
		if err != nil {
			return err
		}
		if err := f.nodes.StartFirst(nodes); err != nil {
			return err
		}
		time.Sleep(young)
		return f.add(f.nodes.Running()...)
	})
}

// maxKeys is more than most rows have.
const maxKeys = 200_000

// young is how long a Redis that begins empty counts as one that may have lost its
// data, and grants little.
const young = 2500 * time.Millisecond

// OpenBaseline starts servers that ask Redis for each request, by sluicelab, a binary.
func OpenBaseline(lab string, limit int64, window time.Duration, nodes int) (*Fleet, error) {
	return open(func() {}, func(f *Fleet) error {
		f.nodes = &process.Fleet{}
		for range nodes {
			p, err := baseline.Server{Redis: f.Redis.Addr, Limit: limit, Window: window}.Start(lab)
			if err != nil {
				return err
			}
			f.nodes.Nodes = append(f.nodes.Nodes, p)
		}
		return f.add(f.nodes.Running()...)
	})
}

// open starts a Redis, and then what asks it. Of a fleet that does not start, nothing is left.
func open(rules func(), nodes func(f *Fleet) error) (*Fleet, error) {
	redis, err := process.OpenRedis()
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

func (f *Fleet) add(nodes ...*process.Process) error {
	for _, n := range nodes {
		if err := f.Pool.Add(n.Address); err != nil {
			return err
		}
	}
	return nil
}

// start starts a node in its place.
func (f *Fleet) start(i int) error {
	if err := f.nodes.Start(i); err != nil {
		return err
	}
	return f.add(f.nodes.Nodes[i])
}

// end ends a node, which is asked no longer: SIGTERM has it drain.
func (f *Fleet) end(i int, s syscall.Signal) error {
	f.Pool.Drop(f.nodes.Nodes[i].Address)
	return f.nodes.End(i, s)
}

// Counters of nodes, by a label.
var (
	claims  = regexp.MustCompile(`(?m)^sluice_claims_total\{for="([a-z_]+)"\} (\d+)`)
	counted = regexp.MustCompile(`(?m)^ratelimit_service_rate_limit_(total_hits|within_limit)\{domain="bench",key1="key",key2=""\} ([0-9.e+]+)$`)
)

// sum is a counter of all nodes together, by label.
func (f *Fleet) sum(counter *regexp.Regexp) map[string]int64 {
	all := map[string]int64{}
	for _, node := range f.nodes.Running() {
		if node.Debug == "" { // the baseline has no metrics
			continue
		}
		text, err := node.Scrape()
		if err != nil {
			continue
		}
		for _, m := range counter.FindAllStringSubmatch(text, -1) {
			if n, _ := strconv.ParseFloat(m[2], 64); n > 0 {
				all[m[1]] += int64(n)
			}
		}
	}
	return all
}

// Close ends all of it.
func (f *Fleet) Close() {
	f.Pool.Close()
	if f.nodes != nil {
		f.nodes.Stop()
	}
	f.Redis.Close()
	f.rules()
}
