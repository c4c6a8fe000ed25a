package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// KeysOptions are how Keys measures.
type KeysOptions struct {
	report.Setup
	Keys      int `in:"1000..1000000000000" default:"5000000" help:"Distinct keys to send."`
	MaxKeys   int `in:"0..1000000000000" default:"1000000" help:"Keys that the server tracks (0: derived from its memory)."`
	Memory    int `in:"0..1000000000" help:"GOMEMLIMIT of the server in MiB (0: none)."`
	MaxMemory int `default:"1536" help:"Failure threshold for resident memory in MiB."`
}

// Examples implements [report.Measurement].
func (*KeysOptions) Examples() string { return "  sluicelab bench keys" }

// KeysReport is what was seen on the way.
type KeysReport struct {
	Points    []KeysPoint `json:"points"`
	MaxMemory int         `json:"max_memory_mib"`
}

// KeysPoint is the measurement after so many distinct keys.
type KeysPoint struct {
	Keys       int    `json:"keys" col:"distinct keys"`
	PeakMemory int    `json:"peak_memory_mib" col:"peak memory|%d MiB"` // resident
	Series     int    `json:"metric_lines" col:"metric lines"`          // of /metrics
	Known      string `json:"known_key" col:"known key"`                // what became of the one whose budget was used up
}

// stillLimited is what must become of it.
const stillLimited = "still limited"

// fewSeries may come after the first tenth of the keys: of what happens then for the
// first time. A series for each key, or for one in a hundred, would be more.
const fewSeries = 50

// Page implements [report.Result].
func (r *KeysReport) Page() *report.Page {
	return &report.Page{Title: "Ever new keys", Tables: []report.Table{report.Rows("", r.Points)}}
}

// Problems are memory beyond its bound, a limited key that was admitted, and metrics that grow.
func (r *KeysReport) Problems() error {
	for i, p := range r.Points {
		switch {
		case p.Known != stillLimited:
			return fmt.Errorf("after %d keys the known key was admitted beyond its limit", p.Keys)
		case p.PeakMemory > r.MaxMemory:
			return fmt.Errorf("after %d keys it had used %d MiB, more than --max-memory %d", p.Keys, p.PeakMemory, r.MaxMemory)
		case i > 1 && p.Series > r.Points[1].Series+fewSeries:
			return fmt.Errorf("after %d keys there were %d lines of metrics, %d after %d", p.Keys, p.Series, r.Points[1].Series, r.Points[1].Keys)
		}
	}
	return nil
}

const keysRules = `domain: bench
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: named
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 5}
`

// keysBatch is how many descriptors a request carries.
const keysBatch = 50

// Measure implements [report.Measurement]. It sends ever new keys to one process, as an attacker would who
// invents them: values, values that statistics name, limits of the request's own, and
// domains. It looks now and then at its memory, at its metrics and at a key that
// had used up its budget before.
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
	f := keysFlood{process: fleet.Nodes[0], client: rls.NewRateLimitServiceClient(fleet.Pool.Next())}
	err = f.run(ctx, o)
	return &KeysReport{f.points, o.MaxMemory}, err
}

type keysFlood struct {
	process *process.Process
	client  rls.RateLimitServiceClient
	points  []KeysPoint
}

func (f *keysFlood) run(ctx context.Context, o *KeysOptions) error {
	for range 5 {
		if _, err := f.send(ctx, known); err != nil {
			return err
		}
	}
	if err := f.look(ctx, 0); err != nil {
		return err
	}
	for sent := 0; sent < o.Keys; sent += keysBatch {
		if _, err := f.send(ctx, invented(sent)); err != nil {
			return err
		}
		if done := sent + keysBatch; done%(o.Keys/10/keysBatch*keysBatch) == 0 {
			if err := f.look(ctx, done); err != nil {
				return err
			}
			o.Tell(10, fmt.Sprint(done, " keys"))
		}
	}
	return nil
}

// known is a request of the key that had used up its budget before.
var known = caller.Request("bench", "api_key", "known")

// invented is a request of keysBatch descriptors that were never sent before.
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

func (f *keysFlood) send(ctx context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := f.client.ShouldRateLimit(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", f.process.Address, err)
	}
	return answer, nil
}

func (f *keysFlood) look(ctx context.Context, sent int) error {
	answer, err := f.send(ctx, known)
	if err != nil {
		return err
	}
	peak, err := f.process.PeakMemory()
	if err != nil {
		return err
	}
	text, err := f.process.Ask("/metrics")
	if err != nil {
		return err
	}
	p := KeysPoint{Keys: sent, PeakMemory: int(peak >> 20), Series: strings.Count(text, "\n"), Known: "ADMITTED"}
	if answer.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
		p.Known = stillLimited
	}
	f.points = append(f.points, p)
	return nil
}
