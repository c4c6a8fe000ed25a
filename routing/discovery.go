package routing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Discovery lists the nodes that there may be, this one perhaps included. It blocks
// at most until ctx is done.
type Discovery interface {
	Find(ctx context.Context) ([]string, error)
}

// Static is a list that does not change.
type Static []string

// Find implements [Discovery].
func (s Static) Find(context.Context) ([]string, error) { return s, nil }

// DNS finds nodes by a name that resolves to all of them, such as a headless
// service's: its SRV records where there are any, else its addresses.
type DNS struct {
	Name, Port string
	Resolver   *net.Resolver
}

// Find implements [Discovery]. A name that does not resolve is an error, not an empty
// fleet: nodes that are known stay known while the resolver is away.
func (d DNS) Find(ctx context.Context) ([]string, error) {
	// A name of SRV records begins with an underscore (RFC 2782), and a host's name cannot.
	if strings.HasPrefix(d.Name, "_") {
		_, records, err := d.Resolver.LookupSRV(ctx, "", "", d.Name)
		if err != nil {
			return nil, fmt.Errorf("PEERS: %w", err)
		}
		addrs := make([]string, len(records))
		for i, r := range records {
			// Resolvers end a name with a dot. An address is also its node's name, which PEER_ADDR
			// has without one.
			addrs[i] = net.JoinHostPort(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port)))
		}
		return addrs, nil
	}
	hosts, err := d.Resolver.LookupHost(ctx, d.Name)
	if err != nil {
		return nil, fmt.Errorf("PEERS: %w", err)
	}
	for i, h := range hosts {
		hosts[i] = net.JoinHostPort(h, d.Port)
	}
	return hosts, nil
}

// ParsePeers reads the setting PEERS: static:HOST:PORT,... or dns:NAME:PORT, or
// gossip:HOST:PORT,..., whose nodes gossip makes a Discovery of.
func ParsePeers(s string, gossip func(seeds []string) (Discovery, error)) (Discovery, error) {
	// The kind decides how the rest is read: names of hosts have colons behind them, too.
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "static", "gossip":
		addrs := strings.Split(rest, ",")
		for _, a := range addrs {
			if err := checkAddr(a); err != nil {
				return nil, fmt.Errorf("PEERS has the address %q: %w", a, err)
			}
		}
		// An address that is given twice is one node.
		slices.Sort(addrs)
		addrs = slices.Compact(addrs)
		if kind == "gossip" {
			return gossip(addrs)
		}
		return Static(addrs), nil
	case "dns":
		if err := checkAddr(rest); err != nil {
			return nil, fmt.Errorf("PEERS is %q, and dns needs NAME:PORT: %w", s, err)
		}
		host, port, _ := net.SplitHostPort(rest)
		return DNS{Name: host, Port: port, Resolver: net.DefaultResolver}, nil
	}
	return nil, fmt.Errorf("PEERS is %q, must be static:HOST:PORT (and more, by comma), dns:NAME:PORT or "+
		"gossip:HOST:PORT (and more)", s)
}

var errAddr = errors.New("must be host:port of at most 256 bytes, with the port a number and the host not empty")

// checkAddr returns the fault of an address before it is dialled: a mistake in PEERS would otherwise look
// like a node that is down.
func checkAddr(a string) error {
	host, port, err := net.SplitHostPort(a)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil || host == "" || len(a) > maxAddr {
		return errAddr
	}
	return nil
}

// findEvery is how often nodes are looked for, and the longest that one look may take.
const findEvery = time.Second
