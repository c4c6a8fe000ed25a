// Command files lists the source files that run for a decision from a lease, and the further ones of a decision that
// leases tokens from Redis. It needs redis-server, and counters: make files.
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

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing"
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
	limiter, err := leasing.New(leasing.Options{
		Redis: redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: -1}),
	})
	if err != nil {
		return err
	}
	defer limiter.Close()
	rule, err := leasing.NewRule("files", ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1e6})
	if err != nil {
		return err
	}
	decide := func(name string) (map[string]bool, error) {
		key := rule.Key(name)
		return during(func() error {
			d, err := limiter.Take(context.Background(), key, 1)
			if err == nil && (!d.Allowed || d.WithoutRedis) {
				err = fmt.Errorf("the decision for %s is %+v", name, d)
			}
			return err
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
