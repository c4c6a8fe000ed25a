package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-gate/sluice/bench/process"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// KeysOptions are how Keys measures.
type KeysOptions struct {
	Binary   string
	Keys     int // distinct ones sent
	MaxKeys  int // the server may track; 0: its own default
	Memory   int // GOMEMLIMIT of the server, in MiB; 0: none
	Progress io.Writer
}

// KeysPoint is the measurement after so many distinct keys.
type KeysPoint struct {
	Keys       int
	PeakMemory int64 // bytes, resident
	Series     int   // lines of /metrics
	Limited    bool  // the known key, whose budget was used up, was refused
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

// Keys sends ever new keys to one process, as an attacker would who invents
// them: values, values that statistics name, limits of the request's own, and
// domains. It looks now and then at its memory, at its metrics and at a key that
// had used up its budget before.
func Keys(ctx context.Context, o KeysOptions) ([]KeysPoint, error) {
	rules, remove, err := process.Rules(keysRules)
	if err != nil {
		return nil, err
	}
	defer remove()
	if o.Memory > 0 { // read by the server when it starts, and not by this process any more
		if err := os.Setenv("GOMEMLIMIT", fmt.Sprintf("%dMiB", o.Memory)); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
	}
	p, err := process.Sluice(o.Binary, rules, "--max-keys", fmt.Sprint(o.MaxKeys))
	if err != nil {
		return nil, err
	}
	defer p.Stop()
	conn, err := grpc.NewClient("passthrough:///"+p.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dialling %s: %w", p.Address, err)
	}
	defer conn.Close()
	f := keysFlood{process: p, client: rls.NewRateLimitServiceClient(conn)}
	return f.run(ctx, o)
}

type keysFlood struct {
	process *process.Process
	client  rls.RateLimitServiceClient
	points  []KeysPoint
}

func (f *keysFlood) run(ctx context.Context, o KeysOptions) ([]KeysPoint, error) {
	for range 5 {
		if _, err := f.ask(ctx, "known"); err != nil {
			return nil, err
		}
	}
	if err := f.look(ctx, 0); err != nil {
		return nil, err
	}
	for sent := 0; sent < o.Keys; sent += keysBatch {
		if _, err := f.send(ctx, invented(sent)); err != nil {
			return nil, err
		}
		if done := sent + keysBatch; done%(o.Keys/10/keysBatch*keysBatch) == 0 {
			if err := f.look(ctx, done); err != nil {
				return nil, err
			}
			if o.Progress != nil {
				fmt.Fprintf(o.Progress, "\r%d of %d keys", done, o.Keys)
			}
		}
	}
	if o.Progress != nil {
		fmt.Fprintln(o.Progress)
	}
	return f.points, nil
}

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

func (f *keysFlood) ask(ctx context.Context, key string) (*rls.RateLimitResponse, error) {
	return f.send(ctx, &rls.RateLimitRequest{Domain: "bench", Descriptors: []*common.RateLimitDescriptor{
		{Entries: []*common.RateLimitDescriptor_Entry{{Key: "api_key", Value: key}}},
	}})
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
	answer, err := f.ask(ctx, "known")
	if err != nil {
		return err
	}
	peak, err := f.process.PeakMemory()
	if err != nil {
		return err
	}
	response, err := http.Get("http://" + f.process.Debug + "/metrics")
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	f.points = append(f.points, KeysPoint{
		Keys: sent, PeakMemory: peak, Series: strings.Count(string(text), "\n"),
		Limited: answer.OverallCode == rls.RateLimitResponse_OVER_LIMIT,
	})
	return nil
}

// WriteKeysTable writes the points for people.
func WriteKeysTable(out io.Writer, points []KeysPoint) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "distinct keys\tpeak memory\tmetric lines\tknown key\t")
	for _, p := range points {
		known := "still limited"
		if !p.Limited {
			known = "ADMITTED"
		}
		fmt.Fprintf(w, "%d\t%d MiB\t%d\t%s\t\n", p.Keys, p.PeakMemory>>20, p.Series, known)
	}
	return w.Flush()
}
