package process

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Fleet is nodes of Sluice as processes, which are peers of each other. It is not safe for concurrent use.
type Fleet struct {
	Nodes []*Process // nil: it has ended, or has not joined yet
	// Peers are the names of the nodes among each other, PEER_ADDR.
	Peers  []string
	binary string
	ports  [][]string    // of each node: gRPC, HTTP, debug and peers
	args   []string      // of all nodes
	gone   time.Duration // processor time of nodes that have ended
}

// NewFleet has places for so many nodes with a file of rules, and starts none. more is added to each command line;
// without a file, it says where rules come from.
func NewFleet(binary, rules string, nodes int, more ...string) (*Fleet, error) {
	f := &Fleet{binary: binary, Nodes: make([]*Process, nodes), args: more}
	if rules != "" {
		f.args = append([]string{"--config", rules}, more...)
	}
	for range nodes {
		ports, err := freeport.Find(4)
		if err != nil {
			return nil, err
		}
		f.ports, f.Peers = append(f.ports, ports), append(f.Peers, "127.0.0.1:"+ports[3])
	}
	return f, nil
}

// StartFleet runs so many nodes until Stop, and returns when all have joined.
func StartFleet(binary, rules string, nodes int, more ...string) (*Fleet, error) {
	f, err := NewFleet(binary, rules, nodes, more...)
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

// Start starts a node, or one that has ended again at its addresses.
func (f *Fleet) Start(i int) error {
	ports := f.ports[i]
	args := append([]string{
		"serve", "--grpc-host", "127.0.0.1", "--grpc-port", ports[0], "--host", "127.0.0.1", "--port", ports[1],
		"--debug-host", "127.0.0.1", "--debug-port", ports[2], "--log-level", "error",
	}, f.args...)
	if len(f.Nodes) > 1 {
		args = append(args, "--peers", "static:"+strings.Join(f.Peers, ","), "--peer-addr", f.Peers[i], "--peer-secret", "only-for-benchmarks")
	}
	n, err := Start(f.binary, "127.0.0.1:"+ports[0], args...)
	if err != nil {
		return err
	}
	n.Debug = "127.0.0.1:" + ports[2]
	f.Nodes[i] = n
	return nil
}

// UntilWhole waits until each node that runs sees all others.
func (f *Fleet) UntilWhole() error {
	running := f.Running()
	want := fmt.Sprintf("\nsluice_ring_members %d\n", len(running))
	return Until("the nodes see each other", func() bool {
		for _, n := range running {
			text, err := n.Scrape()
			if err != nil || len(f.Nodes) > 1 && !strings.Contains(text, want) {
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

// CPU is the processor time of all nodes so far.
func (f *Fleet) CPU() time.Duration {
	sum := f.gone
	for _, n := range f.Running() {
		if used, err := n.CPU(); err == nil {
			sum += used
		}
	}
	return sum
}

// End ends a node by a signal: SIGTERM, as a rolling update does, or SIGKILL.
func (f *Fleet) End(i int, s os.Signal) error {
	n := f.Nodes[i]
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

// Stop ends all nodes, also those that are paused.
func (f *Fleet) Stop() {
	for _, n := range f.Running() {
		_ = n.Pause(false)
		n.Stop()
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
