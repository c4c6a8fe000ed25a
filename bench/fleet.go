package bench

import (
	"regexp"
	"strconv"
	"time"

	"github.com/sluice-gate/sluice/bench/baseline"
	"github.com/sluice-gate/sluice/bench/process"
)

// openFleet starts nodes of sluice, a binary, with rules and a Redis that is empty, and waits until they have found
// each other. It has places for others that may join, and adds flags to the command lines.
func openFleet(binary, rules string, nodes, others int, flags ...string) (*process.Fleet, error) {
	flags = append([]string{"--max-keys", strconv.Itoa(maxKeys), "--drain-time", "200ms"}, flags...)
	f, err := process.NewFleet(binary, rules, nodes+others, true, flags...)
	if err != nil {
		return nil, err
	}
	if err := f.StartFirst(nodes); err != nil {
		return nil, err
	}
	time.Sleep(young)
	return f, nil
}

// maxKeys is more than most rows have.
const maxKeys = 200_000

// young is how long a Redis that begins empty counts as one that may have lost its
// data, and grants little.
const young = 2500 * time.Millisecond

// openOther starts servers that are not Sluice, and a Redis that is empty: where none is needed, its use is that of an
// idle one.
func openOther(start func(f *process.Fleet) error) (*process.Fleet, error) {
	f := &process.Fleet{}
	if err := f.OpenRedis(); err != nil {
		return nil, err
	}
	if err := start(f); err != nil {
		f.Stop()
		return nil, err
	}
	return f, nil
}

// openBaseline starts servers that ask Redis for each request, by sluicelab, a binary.
func openBaseline(lab string, limit int64, window time.Duration, nodes int) (*process.Fleet, error) {
	return openOther(func(f *process.Fleet) error {
		for range nodes {
			s := baseline.Server{Redis: f.Redis.Addr, Limit: limit, Window: window}
			if err := s.Join(f, lab); err != nil {
				return err
			}
		}
		return nil
	})
}

// Counters of nodes, by a label.
var (
	claims    = regexp.MustCompile(`(?m)^sluice_claims_total\{reason="([a-z_]+)"\} (\d+)`)
	fallbacks = regexp.MustCompile(`(?m)^sluice_fallback_decisions_total\{reason="([a-z_]+)"\} (\d+)`)
	counted   = regexp.MustCompile(`(?m)^ratelimit_service_rate_limit_(total_hits|within_limit)\{domain="bench",key1="key",key2=""\} ([0-9.e+]+)$`)
)

// sum is a counter of all nodes together, by label.
func sum(f *process.Fleet, counter *regexp.Regexp) map[string]int64 {
	all := map[string]int64{}
	for _, node := range f.Running() {
		if node.Debug == "" { // the baseline has no metrics
			continue
		}
		text, err := node.Ask("/metrics")
		if err != nil {
			continue
		}
		for _, m := range counter.FindAllStringSubmatch(text, -1) {
			if n, _ := strconv.ParseFloat(m[2], 64); n > 0 {
				all[m[1]] += int64(n)
			}
		}
	}
	return all
}
