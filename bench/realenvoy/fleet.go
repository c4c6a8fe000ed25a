package realenvoy

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Fleet is nodes of Sluice as processes, which are peers of each other. It is not safe for concurrent use.
type Fleet struct {
	Nodes []*process.Process
	// Peers are the names of the nodes among each other, PEER_ADDR.
	Peers  []string
	binary string
	args   [][]string // of each node
}

// StartFleet runs so many nodes with a file of rules until Stop, and returns when all have
// joined. more is added to each command line; without a file, it says where rules come from.
func StartFleet(binary, rules string, nodes int, more ...string) (*Fleet, error) {
	f := &Fleet{binary: binary, Nodes: make([]*process.Process, nodes)}
	all := make([][]string, nodes) // gRPC, HTTP, debug and peers
	for i := range nodes {
		ports, err := freeport.Find(4)
		if err != nil {
			return nil, err
		}
		all[i] = ports
		f.Peers = append(f.Peers, "127.0.0.1:"+ports[3])
	}
	for i, ports := range all {
		args := []string{
			"serve", "--log-level", "error", "--grpc-host", "127.0.0.1", "--grpc-port", ports[0],
			"--host", "127.0.0.1", "--port", ports[1], "--debug-host", "127.0.0.1", "--debug-port", ports[2],
		}
		if rules != "" {
			args = append(args, "--config", rules)
		}
		if nodes > 1 {
			args = append(args, "--peers", "static:"+strings.Join(f.Peers, ","), "--peer-addr", f.Peers[i],
				"--peer-secret", "only-for-benchmarks")
		}
		f.args = append(f.args, append(args, more...))
		if err := f.Start(i); err != nil {
			f.Stop()
			return nil, err
		}
	}
	if err := f.UntilWhole(); err != nil {
		f.Stop()
		return nil, err
	}
	return f, nil
}

// Start starts a node that has ended, at its addresses.
func (f *Fleet) Start(i int) (err error) {
	port := func(flag string) string {
		for n, arg := range f.args[i] {
			if arg == flag {
				return "127.0.0.1:" + f.args[i][n+1]
			}
		}
		return ""
	}
	if f.Nodes[i], err = process.Start(f.binary, port("--grpc-port"), f.args[i]...); err != nil {
		return err
	}
	f.Nodes[i].Debug = port("--debug-port")
	return nil
}

// UntilWhole waits until each node sees all others.
func (f *Fleet) UntilWhole() error {
	want := fmt.Sprintf("\nsluice_ring_members %d\n", len(f.Nodes))
	return Until("the nodes see each other", func() bool {
		for _, n := range f.Nodes {
			text, err := n.Scrape()
			if err != nil || len(f.Nodes) > 1 && !strings.Contains(text, want) {
				return false
			}
		}
		return true
	})
}

// Addresses are those of gRPC.
func (f *Fleet) Addresses() (all []string) {
	for _, n := range f.Nodes {
		all = append(all, n.Address)
	}
	return all
}

// Restart ends a node as a rolling update does, with SIGTERM, and starts it again.
func (f *Fleet) Restart(i int) error {
	if err := f.Nodes[i].Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := f.Nodes[i].Wait(30 * time.Second); err != nil {
		return err
	}
	if err := f.Start(i); err != nil {
		return err
	}
	return f.UntilWhole()
}

// Stop ends all nodes, also those that are paused.
func (f *Fleet) Stop() {
	for _, n := range f.Nodes {
		if n != nil {
			_ = n.Pause(false)
			n.Stop()
		}
	}
}
