package bench

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
	"github.com/sluice-gate/sluice/routing/ring"

	"github.com/cespare/xxhash/v2"
)

// pair is two nodes that own keys together; one of them is driven.
type pair struct {
	rules string
	addrs []string
	ring  *ring.Ring
	owner *process.Process
}

func newPair(binary, rules string) (*pair, error) {
	ports, err := freeport.Find(2)
	if err != nil {
		return nil, err
	}
	p := &pair{rules: rules}
	for _, port := range ports {
		p.addrs = append(p.addrs, "127.0.0.1:"+port)
	}
	p.ring = ring.New(p.addrs)
	p.owner, err = p.node(binary, 1)
	return p, err
}

// elsewhere tells whether the node that is not driven owns a value.
func (p *pair) elsewhere(value string) bool {
	return p.ring.Owner(xxhash.Sum64String(value)) == p.addrs[1]
}

func (p *pair) node(binary string, i int) (*process.Process, error) {
	return process.Sluice(binary, p.rules, "--peers", "static:"+strings.Join(p.addrs, ","), "--peer-addr", p.addrs[i], "--peer-secret", "only-for-benchmarks", "--log-level", "error")
}

// start starts the driven node, and waits until it has found the other.
func (p *pair) start(binary string) (*process.Process, error) {
	n, err := p.node(binary, 0)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if lines, err := n.Scrape(); err == nil && strings.Contains(lines, "\nsluice_ring_members 2\n") {
			return n, nil
		}
	}
	n.Stop()
	return nil, fmt.Errorf("%v: no ring of two within 20 s", p.addrs)
}
