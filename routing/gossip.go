package routing

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"
)

// Gossip finds nodes by telling each other (memberlist, which follows Das,
// Gupta and Motivala, "SWIM", 2002). What is said is encrypted with a key made
// of the secret. A node need know only one other that is there.
type Gossip struct {
	list  *memberlist.Memberlist
	seeds []string
}

// NewGossip starts to listen on bind, for nodes that find this one's peer
// address with it. seeds are others' gossip addresses; none of them need be
// there yet. secret must not be empty.
func NewGossip(bind, peerAddr, secret string, seeds []string) (*Gossip, error) {
	if secret == "" {
		return nil, errors.New("PEERS is gossip, and PEER_SECRET is not set: it is what gossip is encrypted with")
	}
	host, port, err := net.SplitHostPort(bind)
	if err != nil {
		return nil, fmt.Errorf("PEER_GOSSIP_ADDR is %q: %w", bind, errAddr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("PEER_GOSSIP_ADDR is %q: %w", bind, errAddr)
	}
	key := sha256.Sum256([]byte("sluice gossip " + secret))
	c := memberlist.DefaultLANConfig()
	c.Name = peerAddr
	c.BindAddr, c.BindPort, c.AdvertisePort = host, int(n), int(n)
	c.SecretKey = key[:]
	c.LogOutput = io.Discard
	list, err := memberlist.Create(c)
	if err != nil {
		return nil, fmt.Errorf("PEER_GOSSIP_ADDR is %q: %w", bind, err)
	}
	seeds = slices.DeleteFunc(slices.Clone(seeds), func(s string) bool { return s == bind })
	return &Gossip{list, seeds}, nil
}

// Find implements [Discovery]. As long as this node is alone, it looks for the
// seeds.
func (g *Gossip) Find(context.Context) ([]string, error) {
	if g.list.NumMembers() < 2 && len(g.seeds) > 0 {
		_, _ = g.list.Join(g.seeds) // perhaps none is there yet
	}
	var addrs []string
	for _, m := range g.list.Members() {
		addrs = append(addrs, m.Name)
	}
	return addrs, nil
}

// Close says good-bye and stops listening. It blocks for at most a second.
func (g *Gossip) Close() error {
	return errors.Join(g.list.Leave(time.Second), g.list.Shutdown())
}
