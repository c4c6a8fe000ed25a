package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Fleet is nodes of Sluice as processes, which are peers of each other, and what they need. The zero Fleet has no
// places; other servers may join it. It is not safe for concurrent use, except its Pool. It starts in steps: NewFleet
// finds ports and writes the rules, OpenRedis adds a store, and StartFirst starts nodes and waits until they see each
// other. Stop removes all of it, at any time.
type Fleet struct {
	Nodes []*Process // nil: it has ended, or has not joined yet
	// Peers are the names of the nodes among each other, PEER_ADDR.
	Peers  []string
	Pool   caller.Pool // of the nodes that run
	Rules  string      // the name of their file; "": they come from elsewhere
	Redis  *Redis      // nil: there is none
	binary string
	ports  [][]string    // of each node: gRPC, HTTP, debug and peers
	args   []string      // of all nodes
	gone   time.Duration // processor time of nodes that have ended
}

// NewFleet has places for so many nodes with these rules, and starts none of them, only a Redis that they share, if
// shared. more is added to each command line; without rules, it says where they come from. The ports of all places are
// found now, because each node's command line lists all peers.
func NewFleet(binary, rules string, nodes int, shared bool, more ...string) (*Fleet, error) {
	f := &Fleet{binary: binary, Nodes: make([]*Process, nodes), args: slices.Clone(more)}
	for range nodes {
		ports, err := freeport.Find(4)
		if err != nil {
			return nil, err
		}
		f.ports, f.Peers = append(f.ports, ports), append(f.Peers, "127.0.0.1:"+ports[3])
	}
	if rules != "" {
		dir, err := os.MkdirTemp("", "sluice-bench")
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		f.Rules = filepath.Join(dir, "rules.yaml")
		f.args = append(f.args, "--config", f.Rules)
		if err := os.WriteFile(f.Rules, []byte(rules), 0o600); err != nil {
			f.Stop()
			return nil, fmt.Errorf("bench: %w", err)
		}
	}
	if !shared {
		return f, nil
	}
	return f, f.OpenRedis()
}

// OpenRedis starts a Redis, which nodes that start from now on share. If that fails, nothing is left of the fleet. It
// must come before the nodes start: they read the address from their command lines.
func (f *Fleet) OpenRedis() (err error) {
	f.Redis, err = OpenRedis()
	if err != nil {
		f.Stop()
		return err
	}
	f.args = append(f.args, "--redis-url", f.Redis.Addr)
	return nil
}

// StartFleet runs so many nodes until Stop, and returns when all have joined.
func StartFleet(binary, rules string, nodes int, more ...string) (*Fleet, error) {
	f, err := NewFleet(binary, rules, nodes, false, more...)
	if err != nil {
		return nil, err
	}
	return f, f.StartFirst(nodes)
}

// StartFirst starts the first nodes, and waits until all have joined. Of a fleet that does not start, nothing is left.
func (f *Fleet) StartFirst(nodes int) (err error) {
	for i := 0; i < nodes && err == nil; i++ {
		err = f.Start(i)
	}
	if err == nil {
		err = f.UntilWhole()
	}
	if err != nil {
		f.Stop()
	}
	return err
}

// Start starts a node, or one that has ended again at its addresses. A fleet with one place has no peers, and starts
// without a ring. The debug port is on for its metrics.
func (f *Fleet) Start(i int) error {
	ports := f.ports[i]
	args := append([]string{
		"serve", "--grpc-host", "127.0.0.1", "--grpc-port", ports[0], "--host", "127.0.0.1", "--port", ports[1],
		"--debug-host", "127.0.0.1", "--debug-port", ports[2], "--log-level", "error",
	}, f.args...)
	if len(f.Nodes) > 1 {
		args = append(args, "--peers", "static:"+strings.Join(f.Peers, ","), "--peer-addr", f.Peers[i], "--peer-secret", "only-for-benchmarks")
	}
	n, err := Start(nil, f.binary, "127.0.0.1:"+ports[0], args...)
	if err != nil {
		return err
	}
	n.Debug = "127.0.0.1:" + ports[2]
	f.Nodes[i] = n
	return f.Pool.Add(n.Address)
}

// Join adds a server, which is no node of Sluice.
func (f *Fleet) Join(p *Process) error {
	f.Nodes = append(f.Nodes, p)
	return f.Pool.Add(p.Address)
}

// UntilWhole waits until each node that runs sees all others. A node that leaves is in the others' lists for a moment,
// and a request in that time would measure the change.
func (f *Fleet) UntilWhole() error {
	running := f.Running()
	return Until("the nodes see each other", func() bool {
		for _, n := range running {
			if _, err := n.Ask("/metrics"); err != nil {
				return false
			}
			members, err := n.Metric("sluice_ring_members ") // which a single node has not
			if len(f.Nodes) > 1 && (err != nil || int(members) != len(running)) {
				return false
			}
		}
		return true
	})
}

// Running are the nodes that run.
func (f *Fleet) Running() (all []*Process) {
	for _, n := range f.Nodes {
		if n != nil {
			all = append(all, n)
		}
	}
	return all
}

// Addresses are those of gRPC.
func (f *Fleet) Addresses() (all []string) {
	for _, n := range f.Running() {
		all = append(all, n.Address)
	}
	return all
}

// CPU is the processor time of all nodes so far. It includes nodes that have ended, so that a difference of two
// readings is never negative.
func (f *Fleet) CPU() (time.Duration, error) {
	sum := f.gone
	for _, n := range f.Running() {
		used, err := n.CPU()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// End ends a node by a signal: SIGTERM, as a rolling update does, or SIGKILL. It is asked no longer. The pool drops it
// first: a balancer does so when health checks fail, before the node ends. Its processor time is read while the process
// still exists, so its last moments are missing.
func (f *Fleet) End(i int, s os.Signal) error {
	n := f.Nodes[i]
	f.Pool.Drop(n.Address)
	if used, err := n.CPU(); err == nil {
		f.gone += used
	}
	if err := n.Signal(s); err != nil {
		return err
	}
	f.Nodes[i] = nil
	return n.Wait(patience)
}

// Restart ends a node as a rolling update does, and starts it again.
func (f *Fleet) Restart(i int) error {
	if err := f.End(i, syscall.SIGTERM); err != nil {
		return err
	}
	if err := f.Start(i); err != nil {
		return err
	}
	return f.UntilWhole()
}

// Stop ends all nodes, also those that are paused, and removes what they needed. A paused process would not receive
// SIGINT, so each is continued first.
func (f *Fleet) Stop() {
	f.Pool.Close()
	for _, n := range f.Running() {
		_ = n.Pause(false)
		n.Stop()
	}
	if f.Redis != nil {
		f.Redis.Close()
	}
	if f.Rules != "" {
		_ = os.RemoveAll(filepath.Dir(f.Rules)) // the system removes the rest
	}
}

// patience is far longer than processes need for anything here.
const patience = 30 * time.Second

// Until asks until the answer is yes, for half a minute at most.
func Until(what string, ok func() bool) error {
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s: not within %v", what, patience)
		}
	}
	return nil
}
