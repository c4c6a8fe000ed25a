package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/console"
)

//go:embed nodes.lua
var nodesLua string

var nodesScript = redis.NewScript(nodesLua)

// registry is who else there is, for people: nodes that share a Redis say so
// there, every ten seconds. No decision depends on it.
type registry struct {
	client  redis.UniversalClient
	key     string
	name    string // of this node, which no other has
	holders []ratelimit.Holder
	nodes   atomic.Pointer[[]console.Node]
}

const sayEvery = 10 * time.Second

// said is what a node says of itself.
type said struct {
	Host    string             `json:"host"`
	Debug   string             `json:"debug"`
	Version string             `json:"version"`
	Started int64              `json:"started"` // Unix seconds, by its own clock
	Holders []ratelimit.Holder `json:"holders"`
}

func newRegistry(client redis.UniversalClient, prefix string, holders ...ratelimit.Holder) *registry {
	return &registry{client: client, key: prefix + "sluice:nodes", name: leasing.HolderName(holders[0]), holders: holders}
}

// run says that this node is there until ctx is done, and then that it is gone.
func (r *registry) run(ctx context.Context, debug net.Addr, peerAddr string) {
	host, _ := os.Hostname()
	if h, _, err := net.SplitHostPort(peerAddr); err == nil {
		host = h
	}
	_, port, _ := net.SplitHostPort(debug.String())
	text, err := json.Marshal(said{Host: host, Debug: net.JoinHostPort(host, port), Version: version(), Started: time.Now().Unix(), Holders: r.holders})
	if err != nil {
		return
	}
	for _, soon := range []time.Duration{0, time.Second, 2 * time.Second} { // nodes that start together find each other
		select {
		case <-ctx.Done():
		case <-time.After(soon):
			r.say(ctx, string(text))
		}
	}
	every(ctx, sayEvery, func() { r.say(ctx, string(text)) })
	r.say(context.Background(), "")
}

// say blocks for a second at most. Where the store does not answer, who was there
// last is kept.
func (r *registry) say(ctx context.Context, text string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rows, err := nodesScript.Run(ctx, r.client, []string{r.key}, r.name, text).Slice()
	if err != nil {
		return
	}
	var nodes []console.Node
	for _, row := range rows {
		if n, ok := readNode(row); ok {
			n.Here = n.Name == r.name
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b console.Node) int { return strings.Compare(a.Debug+a.Name, b.Debug+b.Name) })
	r.nodes.Store(&nodes)
}

func readNode(row any) (console.Node, bool) {
	cells, ok := row.([]any)
	if !ok || len(cells) != 3 {
		return console.Node{}, false
	}
	seen, _ := cells[1].(int64)
	var s said
	if err := json.Unmarshal([]byte(fmt.Sprint(cells[2])), &s); err != nil {
		return console.Node{}, false
	}
	return console.Node{Name: fmt.Sprint(cells[0]), Host: s.Host, Debug: s.Debug, Version: s.Version, Started: time.Unix(s.Started, 0).UTC(), Seen: seen, Holders: s.Holders}, true
}

// all are the nodes that have been heard in the last minute.
func (r *registry) all() []console.Node {
	if r == nil || r.nodes.Load() == nil {
		return nil
	}
	return *r.nodes.Load()
}
