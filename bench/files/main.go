// Command files lists the source files that run for a node's decision from a lease, and the further ones of a decision
// that leases tokens from Redis. It needs redis-server, and counters: make files.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"runtime/coverage"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	server, err := process.OpenRedis()
	if err != nil {
		return err
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	ledger, err := account.NewRedis(client, "")
	if err != nil {
		return err
	}
	clock := ratelimit.MonotonicClock()
	node := leasing.NewFleet(ledger, account.NewHolder(), 1000, clock, time.Now())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); node.Run(ctx) }()
	defer func() { stop(); <-ended }()
	rule := &ratelimit.Rule{
		Domain: "files", Path: "key", Limit: ratelimit.Limit{Unit: ratelimit.Hour, Multiplier: 1, Requests: 1e6},
		Coordination: ratelimit.DefaultCoordination(),
	}
	decide := func(name string) (map[string]bool, error) {
		key, now := ratelimit.AppendEntry(ratelimit.AppendPrefix(nil, rule.Domain, rule.Limit), rule.Path, name, false), clock()
		asks, verdicts := []ratelimit.Ask{{Rule: rule, Key: key, Cost: 1}}, make([]ratelimit.Verdict, 1)
		return during(func() error {
			node.Decide(ctx, now, asks, verdicts)
			if v := &verdicts[0]; v.OverLimit || v.Source == ratelimit.FromFallback {
				return fmt.Errorf("the decision for %s is %+v", name, v)
			}
			return nil
		})
	}
	_, first := decide("warm") // connects, and reads the clock
	hit, second := decide("warm")
	miss, third := decide("cold")
	maps.DeleteFunc(miss, func(name string, _ bool) bool { return hit[name] })
	fmt.Printf("A decision from a lease runs %d files:\n\t%s\n", len(hit), sorted(hit))
	fmt.Printf("One that leases tokens runs %d more:\n\t%s\n", len(miss), sorted(miss))
	return errors.Join(first, second, third)
}

func sorted(files map[string]bool) string {
	return strings.Join(slices.Sorted(maps.Keys(files)), "\n\t")
}

// during returns the files of the product that run during f.
func during(f func() error) (map[string]bool, error) {
	dir, err := os.MkdirTemp("", "files")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	err = errors.Join(coverage.ClearCounters(), f(), coverage.WriteMetaDir(dir), coverage.WriteCountersDir(dir))
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+dir, "-o=/dev/stdout").Output()
	files := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if name, _, is := strings.Cut(line, ".go:"); is && !strings.HasSuffix(line, " 0\n") {
			files[name+".go"] = true
		}
	}
	maps.DeleteFunc(files, func(name string, _ bool) bool { return strings.Contains(name, "/bench/") })
	return files, err
}
