package main

import (
	"strconv"
	"strings"
	"testing"
)

// The rows of envoyproxy/ratelimit's behaviour are exchanges with the binary, in testdata/parity.

// exchange is a request and what must be answered: see parseRequest and describeAnswer.
type exchange struct{ request, want string }

// paritySection is a section of testdata/parity/exchanges.txt: default, files, fleet, and then one for each setting,
// which is its title.
type paritySection struct {
	title      string
	exchanges  []exchange
	statistics map[string]int // nil: none are looked at
}

// parityScript reads the sections.
func parityScript(t *testing.T) (all []paritySection) {
	t.Helper()
	for line := range strings.Lines(read(t, "cmd/sluice/testdata/parity/exchanges.txt")) {
		line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "  # ")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if title, ok := strings.CutPrefix(line, "== "); ok {
			all = append(all, paritySection{title: title})
			continue
		}
		x := &all[len(all)-1]
		if request, want, ok := strings.Cut(line, " => "); ok {
			x.exchanges = append(x.exchanges, exchange{request, want})
			continue
		}
		name, value, ok := strings.Cut(line, " = ")
		n, err := strconv.Atoi(value)
		if !ok || err != nil {
			t.Fatalf("what is %q?", line)
		}
		if x.statistics == nil {
			x.statistics = map[string]int{}
		}
		x.statistics[name] = n
	}
	if len(all) < 12 || len(all[0].exchanges) < 60 || len(all[0].statistics) < 40 {
		t.Fatalf("%d sections, %d exchanges", len(all), len(all[0].exchanges))
	}
	return all
}

// parityPrometheus are lines of /metrics after the exchanges.
var parityPrometheus = []string{
	`ratelimit_service_rate_limit_total_hits{domain="parity",key1="deep",key2="er"} 1`,
	`ratelimit_service_rate_limit_near_limit{domain="parity",key1="near",key2=""} 8`,
	`ratelimit_service_rate_limit_over_limit{domain="parity",key1="near",key2=""} 34`,
	`ratelimit_service_rate_limit_within_limit{domain="files",key1="named_x",key2=""} 1`,
	`ratelimit_service_rate_limit_shadow_mode{domain="parity",key1="shadow",key2=""} 1`,
	`ratelimit_service_should_rate_limit_error{err_type="service_error"} 4`,
	`ratelimit_service_config_load_success 1`,
	`ratelimit_service_config_load_error 0`,
}
