package accuracy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// cluster is a fleet of real nodes that own keys together and share a Redis. Each node has its own wire to
// Redis, and its own wire from its peers.
type cluster struct {
	binary  string
	rules   string // the file
	prefix  string // of accounts
	maxKeys int
	store   *process.Redis
	client  *client
	members []*member
	peers   string
}

// member is a place in the fleet; nodes come and go there.
type member struct {
	ports []string // gRPC, HTTP, debug and peers
	redis *proxy
	peer  *proxy // others reach it through this
	node  *process.Process
	spent time.Duration // of processor time, by nodes that are gone
}

// domain is what requests are for.
const domain = "bench"

// rulesOf has a rule for each mode, under the limit.
func rulesOf(limit int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ncoordination: {on_store_failure: closed}\ndescriptors:\n", domain)
	for _, m := range modes {
		fmt.Fprintf(&b, "  - {key: %s, coordination: {%s}, rate_limit: {unit: year, requests_per_unit: %d}}\n", m.entry, m.coordination, limit)
	}
	return b.String()
}

func openCluster(o *Options, dir string) (*cluster, error) {
	c := &cluster{
		binary: o.Binary, rules: filepath.Join(dir, "rules.yaml"), prefix: fmt.Sprintf("sluice-bench-%d:", os.Getpid()),
		maxKeys: o.MaxKeys, client: &client{domain: domain},
	}
	if err := os.WriteFile(c.rules, []byte(rulesOf(o.Limit)), 0o600); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	var err error
	if c.store, err = process.OpenRedis(o.Redis); err != nil {
		return nil, err
	}
	var addrs []string
	for range o.Nodes + 1 { // one more may join
		m := &member{}
		c.members = append(c.members, m)
		if m.ports, err = freeport.Find(4); err == nil {
			if m.redis, err = newProxy("127.0.0.1:0", c.store.Addr); err == nil {
				m.peer, err = newProxy("127.0.0.1:0", "127.0.0.1:"+m.ports[3])
			}
		}
		if err != nil {
			c.close()
			return nil, err
		}
		addrs = append(addrs, m.peer.addr())
	}
	c.peers = "static:" + strings.Join(addrs, ",")
	for i := range o.Nodes {
		if err := c.start(i); err != nil {
			c.close()
			return nil, err
		}
	}
	if err := c.settle(o.Nodes); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// start starts a node in its place.
func (c *cluster) start(i int) error {
	m := c.members[i]
	var err error
	m.node, err = process.Start(
		c.binary, "127.0.0.1:"+m.ports[0],
		"serve", "--config", c.rules, "--log-level", "error", "--grpc-host", "127.0.0.1", "--grpc-port", m.ports[0],
		"--host", "127.0.0.1", "--port", m.ports[1], "--debug-host", "127.0.0.1", "--debug-port", m.ports[2],
		"--redis-url", m.redis.addr(), "--cache-key-prefix", c.prefix, "--max-keys", strconv.Itoa(c.maxKeys),
		"--peers", c.peers, "--peer-addr", m.peer.addr(), "--peer-bind", "127.0.0.1:"+m.ports[3], "--peer-secret", "only-for-benchmarks", "--drain-time", "500ms",
	)
	if err != nil {
		return err
	}
	m.node.Debug = "127.0.0.1:" + m.ports[2]
	return c.client.Add(m.node.Address)
}

// gone takes a node out that has ended, or is about to.
func (c *cluster) gone(i int) {
	m := c.members[i]
	if used, err := m.node.CPU(); err == nil {
		m.spent += used
	}
	c.client.Drop(m.node.Address)
}

func (c *cluster) kill(i int) error {
	c.gone(i)
	if err := c.members[i].node.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	err := c.members[i].node.Wait(5 * time.Second)
	c.members[i].node = nil
	return err
}

// leave ends a node as a rolling restart does: it drains, and is no longer asked.
func (c *cluster) leave(i int) error {
	node := c.members[i].node
	if err := node.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	c.gone(i)
	err := node.Wait(15 * time.Second)
	c.members[i].node = nil
	return err
}

func (c *cluster) pause(i int, on bool) error { return c.members[i].node.Pause(on) }

// settle waits until all nodes have found each other, and drift where they may.
func (c *cluster) settle(nodes int) error {
	want := fmt.Sprintf("\nsluice_ring_members %d\n", nodes)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		ready := 0
		for _, m := range c.members {
			if m.node == nil {
				continue
			}
			if text, err := m.node.Scrape(); err == nil && strings.Contains(text, want) && !strings.Contains(text, "\nsluice_drift_seat -1\n") && strings.Contains(text, "\nsluice_drift_seat ") {
				ready++
			}
		}
		if ready == nodes {
			return nil
		}
	}
	return fmt.Errorf("%d nodes did not all meet, and find drift seats, within 20 s", nodes)
}

// repair starts absent processes, so that the next measurement begins with all.
func (c *cluster) repair(nodes int) error {
	if c.members[nodes].node != nil {
		if err := c.leave(nodes); err != nil {
			return err
		}
	}
	for i := range nodes {
		if c.members[i].node == nil {
			if err := c.start(i); err != nil {
				return err
			}
		}
	}
	return c.settle(nodes)
}

// cpu is the processor time of all nodes so far.
func (c *cluster) cpu() (sum time.Duration) {
	for _, m := range c.members {
		sum += m.spent
		if m.node != nil {
			if used, err := m.node.CPU(); err == nil {
				sum += used
			}
		}
	}
	return sum
}

var counted = regexp.MustCompile(`(?m)^ratelimit_service_rate_limit_(total_hits|within_limit)\{domain="bench",key1="([a-z]+)",key2=""\} ([0-9.e+]+)$`)

// counts is what the nodes have counted for a rule: hits, and those within the
// limit.
func (c *cluster) counts(entry string) (hits, within int64, err error) {
	for _, m := range c.members {
		if m.node == nil {
			continue
		}
		text, err := m.node.Scrape()
		if err != nil {
			return 0, 0, err
		}
		for _, found := range counted.FindAllStringSubmatch(text, -1) {
			n, _ := strconv.ParseFloat(found[3], 64)
			switch {
			case found[2] != entry:
			case found[1] == "total_hits":
				hits += int64(n)
			default:
				within += int64(n)
			}
		}
	}
	return hits, within, nil
}

func (c *cluster) close() {
	c.client.Close()
	for _, m := range c.members {
		if m.node != nil {
			_ = m.node.Pause(false)
			m.node.Stop()
		}
	}
	for _, m := range c.members {
		for _, p := range []*proxy{m.redis, m.peer} {
			if p != nil {
				p.close()
			}
		}
	}
	if c.store != nil {
		c.store.Close()
	}
}
