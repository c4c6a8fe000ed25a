package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/server"
)

// registry is who else there is, for people: nodes that share a Redis say so
// there, every ten seconds. No decision depends on it.
type registry struct {
	client  redis.UniversalClient
	key     string
	name    string // of this node, which no other has
	holders []ratelimit.Holder
	nodes   atomic.Pointer[[]console.Node]
}

const (
	sayEvery  = 10 * time.Second
	silentFor = time.Minute // then a node is gone
	mostNodes = 1000        // that are shown
)

// said is what a node says of itself.
type said struct {
	Host    string             `json:"host"`
	Debug   string             `json:"debug"`
	Version string             `json:"version"`
	Started int64              `json:"started"` // Unix seconds, by its own clock
	Holders []ratelimit.Holder `json:"holders"`
	Rules   string             `json:"rules,omitempty"` // fingerprint of those in force
}

func newRegistry(client redis.UniversalClient, prefix string, holders ...ratelimit.Holder) *registry {
	return &registry{client: client, key: prefix + "sluice:nodes", name: leasing.HolderName(holders[0]), holders: holders}
}

// run says that this node is there until ctx is done, and then that it is gone.
// A nil registry says nothing. rules is the fingerprint of those in force.
func (r *registry) run(ctx context.Context, v *server.Server, peerAddr string, rules func() string) {
	if r == nil {
		return
	}
	host, _ := os.Hostname()
	if h, _, err := net.SplitHostPort(peerAddr); err == nil {
		host = h
	}
	_, _, debug := v.Addresses()
	_, port, _ := net.SplitHostPort(debug.String())
	me := said{
		Host: host, Debug: net.JoinHostPort(host, port), Version: version(), Started: time.Now().Unix(), Holders: r.holders,
	}
	say := func() {
		me.Rules = rules()
		if text, err := json.Marshal(me); err == nil {
			r.say(ctx, string(text))
		}
	}
	for _, soon := range []time.Duration{0, time.Second, 2 * time.Second} { // nodes that start together find each other
		select {
		case <-ctx.Done():
		case <-time.After(soon):
			say()
		}
	}
	every(ctx, sayEvery, say)
	r.say(context.Background(), "")
}

// say blocks for a second at most. Where the store does not answer, who was there
// last is kept. "" says that this node is gone.
func (r *registry) say(ctx context.Context, text string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	now, err := r.client.Time(ctx).Result()
	if err != nil {
		return
	}
	pipe := r.client.Pipeline()
	if text == "" {
		pipe.HDel(ctx, r.key, r.name)
	} else {
		pipe.HSet(ctx, r.key, r.name, strconv.FormatInt(now.Unix(), 10)+" "+text)
	}
	pipe.Expire(ctx, r.key, 2*silentFor)
	all := pipe.HGetAll(ctx, r.key)
	if _, err := pipe.Exec(ctx); err != nil {
		return
	}
	var nodes []console.Node
	var silent []string
	for name, value := range all.Val() {
		n, ok := readNode(name, value, now)
		switch {
		case !ok || n.Seen > int64(silentFor/time.Second):
			silent = append(silent, name)
		case len(nodes) < mostNodes:
			n.Here = name == r.name
			nodes = append(nodes, n)
		}
	}
	if len(silent) > 0 {
		r.client.HDel(ctx, r.key, silent...)
	}
	slices.SortFunc(nodes, func(a, b console.Node) int { return strings.Compare(a.Debug+a.Name, b.Debug+b.Name) })
	r.nodes.Store(&nodes)
}

// readNode reads "Unix seconds, by Redis' clock" and what a node said then.
func readNode(name, value string, now time.Time) (console.Node, bool) {
	at, text, _ := strings.Cut(value, " ")
	heard, err := strconv.ParseInt(at, 10, 64)
	var s said
	if err != nil || json.Unmarshal([]byte(text), &s) != nil {
		return console.Node{}, false
	}
	return console.Node{
		Name: name, Host: s.Host, Debug: s.Debug, Version: s.Version, Started: time.Unix(s.Started, 0).UTC(), Seen: max(0, now.Unix()-heard), Holders: s.Holders,
		Rules: s.Rules,
	}, true
}

// all are the nodes that have been heard in the last minute.
func (r *registry) all() []console.Node {
	if r == nil || r.nodes.Load() == nil {
		return nil
	}
	return *r.nodes.Load()
}
