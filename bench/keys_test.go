package bench

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
)

var (
	inventedKeys = flag.Int("keys", 100_000, "distinct keys that TestInventedKeys sends")
	keysMemory   = flag.Int("memory", 0, "GOMEMLIMIT of its server in MiB, which also bounds its memory and makes the number of keys that it tracks; 0: none")
)

// keysRules are the rules of the attacked server. Invented keys belong to three kinds of rules: with a limit of the
// file, with a metric for each value, and without a rule. The limit of a year keeps the known key's budget used up for
// the whole run.
const keysRules = `domain: bench
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: named
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 5}
`

// keysBatch is how many descriptors a request carries. Single descriptors would spend the time in calls, and not on
// keys.
const keysBatch = 50

// One process gets ever new keys, as from an attacker who invents them: values, values that statistics name, limits of
// the request's own, and domains. After every tenth of the keys, its memory and its metrics are bounded, and a key that had
// used up its budget before stays refused. If invented keys could push it out of the table, an attacker would reset any
// limit.
//
//	go test -count=1 -v -run '^TestInventedKeys$' ./bench -keys 5000000 -memory 512
func TestInventedKeys(t *testing.T) {
	tracked := "1000000"
	if *keysMemory > 0 {
		t.Setenv("GOMEMLIMIT", fmt.Sprintf("%dMiB", *keysMemory))
		tracked = "0" // as many as its memory holds
	}
	f, err := process.StartFleet(built(t, "sluice"), keysRules, 1, "--max-keys", tracked)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	for range 5 {
		send(t, f, known)
	}
	tenth := max(1, *inventedKeys/10/keysBatch) * keysBatch
	series := 0 // after the first tenth: some come with the first invented keys
	for sent := 0; sent <= *inventedKeys; sent += keysBatch {
		if sent%tenth == 0 {
			now := look(t, f, sent)
			if series > 0 && now > series+fewSeries {
				t.Errorf("after %d keys there are %d lines of metrics, %d after a tenth of all", sent, now, series)
			}
			if sent == tenth {
				series = now
			}
		}
		send(t, f, invented(sent))
	}
}

// known is a request of the key that had used up its budget before.
var known = caller.Request("bench", "api_key", "known")

// invented is a request of keysBatch descriptors that were never sent before. By i % 4: values of a plain rule (0 and
// 3), values of a rule with detailed metrics (1), and keys with their own limits (2). One request in ten has a domain
// that no rule has.
func invented(sent int) *rls.RateLimitRequest {
	r := &rls.RateLimitRequest{Domain: "bench"}
	for i := range keysBatch {
		value := fmt.Sprintf("invented-%09d", sent+i)
		d := &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: "api_key", Value: value}}}
		switch i % 4 {
		case 1:
			d.Entries[0].Key = "named"
		case 2: // a limit, and a name, that no other has
			d.Entries[0].Key = "own-" + value
			d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(1 + sent%1_000_000), Unit: typev3.RateLimitUnit(1 + i%6)}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	if sent/keysBatch%10 == 9 {
		r.Domain = fmt.Sprintf("invented-%09d", sent)
	}
	return r
}

// send makes one call. Ten seconds are for a server near its memory limit, whose garbage collector may run all the
// time.
func send(t *testing.T, f *process.Fleet, r *rls.RateLimitRequest) *rls.RateLimitResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	answer, err := rls.NewRateLimitServiceClient(f.Pool.Next()).ShouldRateLimit(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// fewSeries may come after the first tenth of the keys: of what happens then for the first time. A series for each key,
// or for one in a hundred, would be more.
const fewSeries = 50

// look checks the known key and the peak of the resident memory, and returns the number of lines of metrics.
func look(t *testing.T, f *process.Fleet, sent int) (series int) {
	if answer := send(t, f, known); answer.OverallCode != rls.RateLimitResponse_OVER_LIMIT {
		t.Errorf("after %d keys the known key is admitted beyond its limit", sent)
	}
	peak, err := f.Nodes[0].PeakMemory()
	if err != nil {
		t.Fatal(err)
	}
	text, err := f.Nodes[0].Ask("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	series = strings.Count(text, "\n")
	t.Logf("after %d keys: peak memory %d MiB, %d lines of metrics", sent, peak>>20, series)
	if *keysMemory > 0 && int(peak>>20) > *keysMemory {
		t.Errorf("after %d keys it had used %d MiB, more than %d", sent, peak>>20, *keysMemory)
	}
	return series
}
