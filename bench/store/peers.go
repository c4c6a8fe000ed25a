package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Peers compares fleets of Sluice with fleets of other rate limiters, each built from its Go module (bench/peers).
type Peers struct {
	report.Setup
	Nodes  []int         `in:"1..20" default:"3,1" help:"Sizes of the fleets."`
	Rate   float64       `in:"0..100000" default:"3000" help:"Requests a second, except where callers saturate the nodes."`
	Length time.Duration `in:"500ms..10m" default:"15s" help:"Length of each measurement."`
	Rounds int           `in:"1..100" default:"3" help:"Measurements of each way, in turn."`
	Rows   []string      `placeholder:"ROW" help:"Loads to measure: saturated, hot, warm, cool, cold."`
	Ways   []string      `placeholder:"WAY" help:"Ways to measure: ratelimit, gubernator, leasing, routing, approx."`
	Seed   uint64        `default:"1" help:"Seed of the demand."`
	all    int           // measurements
	Module string        `default:"bench/peers" help:"Directory of the module that pins the others."`
}

// Examples implements [report.Measurement].
func (*Peers) Examples() string {
	return "  sluicelab bench peers\n  sluicelab bench peers --rows cold --nodes 3 --ways ratelimit,leasing"
}

// peerRows are from keys that are nearly all met again to keys that are nearly all new.
var peerRows = []Row{
	{ID: "saturated", Name: "saturated: 64 callers, 1,000,000 a day, 10,000 keys, Zipf 1.1", Unit: ratelimit.Day, Limit: 1_000_000, Keys: 10_000, Skew: 1.1, Callers: 64},
	{ID: "hot", Name: "hot: 1,000,000 a day, 10 keys, Zipf 1.1", Unit: ratelimit.Day, Limit: 1_000_000, Keys: 10, Skew: 1.1},
	{ID: "warm", Name: "warm: 1,000,000 a day, 10,000 keys, Zipf 1.1", Unit: ratelimit.Day, Limit: 1_000_000, Keys: 10_000, Skew: 1.1},
	{ID: "cool", Name: "cool: 60 a minute, 10,000 keys, Zipf 1.1", Unit: ratelimit.Minute, Limit: 60, Keys: 10_000, Skew: 1.1},
	{ID: "cold", Name: "cold: 10 a minute, 100,000 keys, uniform", Unit: ratelimit.Minute, Limit: 10, Keys: 100_000},
}

// other is a rate limiter that is not of this project.
type other struct {
	start func(dir string, row *Row, redis string, nodes int) ([]*process.Process, error)
	ask   func(ctx context.Context, node *grpc.ClientConn, row *Row, key string) (ok bool, err error) // nil: as an Envoy does
}

var peerWays = append([]mode{
	{name: "ratelimit", other: &other{start: startRatelimit}},
	{name: "gubernator", other: &other{start: startGubernator, ask: askGubernator}},
}, modes[2:]...)

// PeerRow is the median of the rounds of one way under one load.
type PeerRow struct {
	Row      string  `json:"row" col:"load"`
	Nodes    int     `json:"nodes" col:"nodes"`
	Way      string  `json:"way" col:"way"`
	NodeCPU  float64 `json:"node_us" col:"nodes' CPU, us|%.1f"` // processor time of all nodes for a decision
	NodeMost float64 `json:"node_us_most" col:"most|%.1f"`      // of the rounds
	OfNode   float64 `json:"node_ratio" col:"of ratelimit's|%.2f"`
	CPU      float64 `json:"redis_us" col:"Redis, us|%.1f"` // of Redis for a decision
	Most     float64 `json:"redis_us_most" col:"most|%.1f"`
	OfRedis  float64 `json:"redis_ratio" col:"of ratelimit's|%.2f"`
	Commands float64 `json:"commands" col:"commands|%.2f"` // that Redis ran for a decision
	P50      float64 `json:"latency_p50_ms" col:"p50, ms|%.2f"`
	P99      float64 `json:"latency_p99_ms" col:"p99, ms|%.1f"`
	MostP99  float64 `json:"latency_p99_ms_most" col:"most|%.1f"`
	Second   float64 `json:"decisions_per_second" col:"decisions/s|%.0f"`
	Problem  string  `json:"problem,omitempty"`
}

// PeerReport is all that was measured.
type PeerReport struct {
	Rows    []PeerRow     `json:"rows"`
	Rate    float64       `json:"rate"`
	Length  time.Duration `json:"length"`
	Rounds  int           `json:"rounds"`
	Modules []string      `json:"modules"`
}

// Measure implements [report.Measurement].
func (p *Peers) Measure(ctx context.Context) (report.Result, error) {
	b := report.Bounds(load.Load{Rate: p.Rate, Keys: 1, Length: p.Length}.Validate())
	b.Check(p)
	rows := report.Choose(&b, "--rows", p.Rows, peerRows, func(r *Row) string { return r.ID })
	ways := report.Choose(&b, "--ways", p.Ways, peerWays, func(m *mode) string { return m.name })
	if err := b.Err(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sluice-peers")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &PeerReport{Rate: p.Rate, Length: p.Length, Rounds: p.Rounds}
	r.Modules, err = buildPeers(ctx, p.Module, dir)
	if err != nil {
		return nil, err
	}
	o := &Options{Setup: p.Setup, Rate: p.Rate, Length: p.Length, Seed: p.Seed, peers: dir}
	p.all = len(p.Nodes) * len(rows) * len(ways) * p.Rounds
	for _, nodes := range p.Nodes {
		for i := range rows {
			all, err := p.rounds(ctx, o, &rows[i], ways, nodes)
			if err != nil {
				return nil, err
			}
			for w := range ways {
				r.Rows = append(r.Rows, p.median(all[w]))
			}
			compare(r.Rows[len(r.Rows)-len(ways):])
		}
	}
	return r, nil
}

// rounds measures a row in each way in turn, several times.
func (p *Peers) rounds(ctx context.Context, o *Options, row *Row, ways []mode, nodes int) ([][]Measured, error) {
	all := make([][]Measured, len(ways))
	for i := range p.Rounds {
		for n := range ways { // none is always the one after another
			w := (i + n) % len(ways)
			what := fmt.Sprintf("%s, %d nodes, %s, round %d", row.ID, nodes, ways[w].name, i+1)
			p.Tell(p.all, what)
			m, err := o.measure(ctx, row, &ways[w], nodes)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", what, err)
			}
			all[w] = append(all[w], m)
		}
	}
	return all, nil
}

// median is the median of each figure, and the most of some.
func (p *Peers) median(all []Measured) PeerRow {
	m := all[0]
	r := PeerRow{Row: m.Row, Nodes: m.Nodes, Way: m.Mode}
	r.NodeCPU, r.NodeMost = middle(all, func(m *Measured) float64 { return m.NodeCPU })
	r.CPU, r.Most = middle(all, func(m *Measured) float64 { return m.CPU })
	r.Commands, _ = middle(all, func(m *Measured) float64 {
		calls := int64(0)
		for name, c := range m.Commands {
			if name != "info" { // of this measurement
				calls += c.Calls
			}
		}
		return float64(calls) / float64(m.Asked)
	})
	r.P50, _ = middle(all, func(m *Measured) float64 { return 1000 * m.P50.Seconds() })
	r.P99, r.MostP99 = middle(all, func(m *Measured) float64 { return 1000 * m.P99.Seconds() })
	r.Second, _ = middle(all, func(m *Measured) float64 { return float64(m.Asked) / p.Length.Seconds() })
	var problems []string
	for i := range all {
		if all[i].Problem != "" {
			problems = append(problems, all[i].Problem)
		}
	}
	r.Problem = strings.Join(problems, "; ")
	return r
}

// middle is the median and the largest of a figure.
func middle(all []Measured, figure func(*Measured) float64) (median, most float64) {
	values := make([]float64, len(all))
	for i := range all {
		values[i] = figure(&all[i])
	}
	slices.Sort(values)
	return values[len(values)/2], values[len(values)-1]
}

// compare adds the ratios to envoyproxy/ratelimit.
func compare(rows []PeerRow) {
	i := slices.IndexFunc(rows, func(r PeerRow) bool { return r.Way == peerWays[0].name })
	if i < 0 {
		return
	}
	for n := range rows {
		rows[n].OfNode, rows[n].OfRedis = rows[n].NodeCPU/rows[i].NodeCPU, rows[n].CPU/rows[i].CPU
	}
}

// Page shows the report.
func (r *PeerReport) Page() *report.Page {
	p := &report.Page{
		Title: "Sluice beside other rate limiters",
		Lead: []string{
			fmt.Sprintf("%.0f requests a second for %v from a cold start. Each figure is the median of %d rounds, in turn.", r.Rate, r.Length, r.Rounds),
			"The others are " + strings.Join(r.Modules, " and ") + ", with their default settings.",
		},
		Tables: []report.Table{report.Rows("", r.Rows,
			"nodes' CPU: processor time of all nodes for one decision. Redis: its processor time for one decision. most: of the rounds. of ratelimit's: as a part of envoyproxy/ratelimit's in the same row.",
			"commands: that Redis ran for one decision. p50, p99: of a call, from when it was meant to be made. gubernator has no Redis: its accounts end with its nodes.")},
	}
	for _, row := range r.Rows {
		title := fmt.Sprintf("p50, ms: %s, %d nodes", row.Row, row.Nodes)
		if last := len(p.Charts) - 1; last < 0 || p.Charts[last].Title != title {
			p.Charts = append(p.Charts, report.Chart{Title: title})
		}
		c := &p.Charts[len(p.Charts)-1]
		c.Bars = append(c.Bars, report.Bar{Name: row.Way, Value: row.P50})
	}
	return p
}

// Problems are what must not be.
func (r *PeerReport) Problems() error { return report.Problems(r.Rows) }

// ratelimitVersion is the version of envoyproxy/ratelimit: the newest one of 2026-11.
const ratelimitVersion = "github.com/envoyproxy/ratelimit@v1.4.1-0.20260122083618-3fb702589d36"

// buildPeers builds the others' programs, each with the dependencies of its authors: envoyproxy/ratelimit in its own
// module, and gubernator by the module bench/peers, which requires nothing else. It returns their versions.
func buildPeers(ctx context.Context, module, dir string) (versions []string, err error) {
	run := func(in string, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = in
		out, err := cmd.Output()
		if err != nil {
			text := err.Error()
			if failed, is := errors.AsType[*exec.ExitError](err); is {
				text = string(failed.Stderr)
			}
			return nil, fmt.Errorf("building other rate limiters: go %s, in %q (--module is a directory of Sluice's repository): %s",
				strings.Join(args, " "), in, text)
		}
		return out, nil
	}
	text, err := run(module, "mod", "download", "-json", ratelimitVersion)
	if err != nil {
		return nil, err
	}
	var source struct{ Dir string }
	if err := json.Unmarshal(text, &source); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if _, err := run(source.Dir, "build", "-o", filepath.Join(dir, "ratelimit-server"), "./src/service_cmd"); err != nil {
		return nil, err
	}
	if _, err := run(module, "build", "-o", filepath.Join(dir, "gubernator"), "."); err != nil {
		return nil, err
	}
	text, err = run(module, "list", "-m", "-f", "{{.Path}}@{{.Version}}", "github.com/gubernator-io/gubernator/v2")
	return []string{ratelimitVersion, strings.TrimSpace(string(text))}, err
}

// openOther starts a fleet of another rate limiter.
func (o *Options) openOther(of *other, row *Row, nodes int) (*process.Fleet, error) {
	f := &process.Fleet{}
	if err := f.OpenRedis(); err != nil { // also where none is needed: its use is then that of an idle one
		return nil, err
	}
	all, err := of.start(o.peers, row, f.Redis.Addr, nodes)
	for _, p := range all {
		err = errors.Join(err, f.Join(p))
	}
	if err != nil {
		f.Stop()
		return nil, err
	}
	return f, nil
}

// startRatelimit starts servers of envoyproxy/ratelimit with the row's rule. Their settings are the
// defaults, except that they write no statistics.
func startRatelimit(dir string, row *Row, redis string, nodes int) (all []*process.Process, err error) {
	config := filepath.Join(dir, "ratelimit", "config")
	if err := os.MkdirAll(config, 0o700); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	text := fmt.Sprintf("domain: %s\ndescriptors:\n  - key: %s\n    rate_limit: {unit: %v, requests_per_unit: %d}\n", domain, entry, row.Unit, row.Limit)
	if err := os.WriteFile(filepath.Join(config, "bench.yaml"), []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	for range nodes {
		ports, err := freeport.Find(3)
		if err != nil {
			return all, err
		}
		p, err := process.StartWith([]string{
			"RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "LOG_LEVEL=error", "DISABLE_STATS=true",
			"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis, "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + ports[0],
			"HOST=127.0.0.1", "PORT=" + ports[1], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + ports[2],
		}, filepath.Join(dir, "ratelimit-server"), "127.0.0.1:"+ports[0])
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// startGubernator starts nodes of gubernator, and waits until each has all others as peers. Their tables have room for
// all keys, which by default they have not.
func startGubernator(dir string, _ *Row, _ string, nodes int) (all []*process.Process, err error) {
	ports, err := freeport.Find(2 * nodes)
	if err != nil {
		return nil, err
	}
	addresses := make([]string, nodes)
	for i := range addresses {
		addresses[i] = "127.0.0.1:" + ports[2*i]
	}
	for i, address := range addresses {
		http := "127.0.0.1:" + ports[2*i+1]
		p, err := process.StartWith([]string{
			"GUBER_GRPC_ADDRESS=" + address, "GUBER_ADVERTISE_ADDRESS=" + address, "GUBER_HTTP_ADDRESS=" + http,
			"GUBER_PEER_DISCOVERY_TYPE=none", fmt.Sprintf("GUBER_CACHE_SIZE=%d", maxKeys), "GUBER_LOG_LEVEL=error",
		}, filepath.Join(dir, "gubernator"), address, addresses...)
		if err != nil {
			return all, err
		}
		p.Debug = http
		all = append(all, p)
	}
	return all, process.Until("the nodes of gubernator know each other", func() bool {
		for _, p := range all {
			text, err := p.Ask("/v1/HealthCheck")
			if err != nil || !strings.Contains(strings.ReplaceAll(text, " ", ""), fmt.Sprintf(`"peer_count":%d`, nodes)) {
				return false
			}
		}
		return true
	})
}

// askGubernator makes a request to gubernator. Its form is that of gubernator.proto: GetRateLimitsReq, RateLimitReq.
func askGubernator(ctx context.Context, node *grpc.ClientConn, row *Row, key string) (ok bool, err error) {
	const name, uniqueKey, hits, limit, duration, requests = 1, 2, 3, 4, 5, 1
	var q []byte
	text := func(field protowire.Number, s string) {
		q = protowire.AppendString(protowire.AppendTag(q, field, protowire.BytesType), s)
	}
	number := func(field protowire.Number, n int64) {
		q = protowire.AppendVarint(protowire.AppendTag(q, field, protowire.VarintType), uint64(n)) //nolint:gosec // positive
	}
	text(name, domain)
	text(uniqueKey, key)
	number(hits, 1)
	number(limit, row.Limit)
	number(duration, row.limit().Period().Milliseconds())
	all := protowire.AppendBytes(protowire.AppendTag(nil, requests, protowire.BytesType), q)
	var answer []byte
	if err := node.Invoke(ctx, "/pb.gubernator.V1/GetRateLimits", all, &answer, grpc.ForceCodecV2(caller.Bytes{})); err != nil {
		return false, err
	}
	return underLimit(answer)
}

var errAnswer = errors.New("the answer is no GetRateLimitsResp with one response")

// underLimit reads GetRateLimitsResp: the status of the only response.
func underLimit(answer []byte) (bool, error) {
	const responses, status, failure = 1, 1, 5
	field, kind, n := protowire.ConsumeTag(answer)
	if n < 0 || field != responses || kind != protowire.BytesType {
		return false, errAnswer
	}
	r, n := protowire.ConsumeBytes(answer[n:])
	if n < 0 {
		return false, errAnswer
	}
	ok := true
	for len(r) > 0 {
		field, kind, n := protowire.ConsumeTag(r)
		if n < 0 {
			return false, errAnswer
		}
		value := protowire.ConsumeFieldValue(field, kind, r[n:])
		if value < 0 {
			return false, errAnswer
		}
		switch is := r[n : n+value]; field {
		case status:
			ok = is[0] == 0
		case failure:
			return false, fmt.Errorf("%w: %q", errAnswer, is)
		}
		r = r[n+value:]
	}
	return ok, nil
}
