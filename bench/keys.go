package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
)

// KeysOptions send ever new keys to one process, as an attacker would who invents them: values, values that statistics
// name, limits of the request's own, and domains.
type KeysOptions struct {
	report.Setup `examples:"sluicelab bench keys"`
	Keys         int `in:"1000..1000000000000" default:"5000000" help:"Distinct keys to send."`
	MaxKeys      int `in:"0..1000000000000" default:"1000000" help:"Keys that the server tracks (0: derived from its memory)."`
	Memory       int `in:"0..1000000000" help:"GOMEMLIMIT of the server in MiB (0: none)."`
	MaxMemory    int `default:"1536" help:"Failure threshold for resident memory in MiB."`
}

// KeysReport is what was seen on the way.
type KeysReport []KeysPoint

// KeysPoint is the measurement after so many distinct keys.
type KeysPoint struct {
	Keys       int    `json:"keys" col:"distinct keys"`
	PeakMemory int    `json:"peak_memory_mib" col:"peak memory|%d MiB"` // resident
	Series     int    `json:"metric_lines" col:"metric lines"`          // of /metrics
	Known      string `json:"known_key" col:"known key"`                // what became of the one whose budget was used up
	Problem    string `json:"problem,omitempty"`
}

// Page implements [report.Result].
func (r KeysReport) Page() *report.Page {
	return &report.Page{Tables: []report.Table{report.Rows("", r)}}
}

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

// Measure implements [report.Measurement]. It looks now and then at the server's memory, at its metrics and at a key
// that had used up its budget before. It looks after every tenth of the keys. The known key must stay refused: if
// invented keys could push it out of the table, an attacker would reset any limit.
func (o *KeysOptions) Measure(ctx context.Context) (report.Result, error) {
	if err := report.Check(o); err != nil {
		return nil, err
	}
	if o.Memory > 0 { // read by the server when it starts, and not by this process any more
		if err := os.Setenv("GOMEMLIMIT", fmt.Sprintf("%dMiB", o.Memory)); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
	}
	fleet, err := process.StartFleet(o.Binary, keysRules, 1, "--max-keys", fmt.Sprint(o.MaxKeys))
	if err != nil {
		return nil, err
	}
	defer fleet.Stop()
	var r KeysReport
	for range 5 {
		if _, err := send(ctx, fleet, known); err != nil {
			return nil, err
		}
	}
	for sent := 0; ; sent += keysBatch {
		if sent%(o.Keys/10/keysBatch*keysBatch) == 0 {
			if err := o.look(ctx, &r, fleet, sent); err != nil {
				return nil, err
			}
			o.Tell(11, fmt.Sprint(sent, " keys"))
		}
		if sent >= o.Keys {
			return r, nil
		}
		if _, err := send(ctx, fleet, invented(sent)); err != nil {
			return nil, err
		}
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
func send(ctx context.Context, f *process.Fleet, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := rls.NewRateLimitServiceClient(f.Pool.Next()).ShouldRateLimit(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("asking the node: %w", err)
	}
	return answer, nil
}

// fewSeries may come after the first tenth of the keys: of what happens then for the first time. A series for each key,
// or for one in a hundred, would be more.
const fewSeries = 50

// look adds a point to the report. Metrics are compared with the second look, because the first one is before any
// invented key.
func (o *KeysOptions) look(ctx context.Context, all *KeysReport, f *process.Fleet, sent int) error {
	answer, err := send(ctx, f, known)
	if err != nil {
		return err
	}
	peak, err := f.Nodes[0].PeakMemory()
	if err != nil {
		return err
	}
	text, err := f.Nodes[0].Ask("/metrics")
	if err != nil {
		return err
	}
	p := KeysPoint{Keys: sent, PeakMemory: int(peak >> 20), Series: strings.Count(text, "\n"), Known: "still limited"}
	switch {
	case answer.OverallCode != rls.RateLimitResponse_OVER_LIMIT:
		p.Known = "ADMITTED"
		p.Problem = fmt.Sprintf("after %d keys the known key was admitted beyond its limit", sent)
	case p.PeakMemory > o.MaxMemory:
		p.Problem = fmt.Sprintf("after %d keys it had used %d MiB, more than --max-memory %d", sent, p.PeakMemory, o.MaxMemory)
	case len(*all) > 1 && p.Series > (*all)[1].Series+fewSeries:
		p.Problem = fmt.Sprintf("after %d keys there were %d lines of metrics, %d after %d", sent, p.Series, (*all)[1].Series, (*all)[1].Keys)
	}
	*all = append(*all, p)
	return nil
}
