package realenvoy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/ratelimit"
)

// quirks is testdata/quota.yaml.
type quirks struct {
	Actions map[string]string
	Tiers   map[string]struct {
		Envoy object
		Rows  map[string]string
	}
	Lacking map[string]map[string]string // rows by the name of the quirk
}

func readQuirks(t *testing.T) (q *quirks) {
	t.Helper()
	text, err := os.ReadFile("testdata/quota.yaml")
	q = &quirks{}
	if err := cmp.Or(err, yaml.UnmarshalWithOptions(text, q, yaml.Strict())); err != nil {
		t.Fatal(err)
	}
	return q
}

// player is an Envoy, or its model, with one bucket.
type player interface {
	wait(until time.Duration) // since the bucket's subscription
	send(*rlqs.RateLimitQuotaResponse) error
	ask() (allowed bool, err error)
}

// message has the actions of a step, for a bucket.
func (q *quirks) message(id map[string]string, step string) (*rlqs.RateLimitQuotaResponse, error) {
	var actions []string
	for action := range strings.SplitSeq(step, " and ") {
		words := strings.Fields(action)
		actions = append(actions, os.Expand(q.Actions[words[0]], func(n string) string { return words[n[0]-'0'] }))
	}
	m := &rlqs.RateLimitQuotaResponse{}
	err := message("bucket_action: ["+strings.Join(actions, ", ")+"]", m)
	for _, a := range m.BucketAction {
		a.BucketId = &rlqs.BucketId{Bucket: id}
	}
	return m, err
}

// play does the steps of a row. It returns them, with the numbers of requests that passed.
func (q *quirks) play(p player, id map[string]string, row string) (string, error) {
	steps := strings.Split(row, "; ")
	for i, step := range steps {
		at, what, _ := strings.Cut(step, " ")
		after, err := time.ParseDuration(at)
		if err != nil {
			return "", err
		}
		p.wait(after)
		var passed, of int
		if _, err := fmt.Sscanf(what, "%d/%d", &passed, &of); err == nil {
			if passed, err = passes(p, of); err != nil {
				return "", err
			}
			steps[i] = fmt.Sprintf("%s %d/%d", at, passed, of)
			continue
		}
		m, err := q.message(id, what)
		if err := cmp.Or(err, p.send(m)); err != nil {
			return "", err
		}
	}
	return strings.Join(steps, "; "), nil
}

// passes is how many of so many requests pass.
func passes(p player, of int) (n int, err error) {
	for range of {
		ok, err := p.ask()
		if err != nil {
			return n, err
		}
		if ok {
			n++
		}
	}
	return n, nil
}

// modelled is a bucket of the model, in virtual time.
type modelled struct {
	*envoy.Client
	*quirks
	id      map[string]string
	now     time.Duration
	refused bool // no stream can be opened
	down    bool // streams end at once
	opened  int  // streams
	had     []usage
}

func (q *quirks) model(tier string, of envoy.Quirks) *modelled {
	m := &modelled{quirks: q, id: map[string]string{"tier": tier, "api_key": "model"}}
	m.Client = envoy.New("edge", of, m)
	m.Request(m.clock(), m.id)
	return m
}

// Open implements envoy.Wire.
func (m *modelled) Open() bool {
	if !m.refused {
		m.opened++
	}
	return !m.refused
}

// Send implements envoy.Wire.
func (m *modelled) Send(r *rlqs.RateLimitQuotaUsageReports) {
	if !m.down {
		m.had = append(m.had, usageOf(r.BucketQuotaUsages[0]))
	}
}

func (m *modelled) clock() ratelimit.Instant { return ratelimit.Instant(time.Hour + m.now) }

func (m *modelled) wait(until time.Duration) {
	for m.now = until; m.Next() <= m.clock(); {
		m.Tick(m.Next())
		if m.down {
			m.Broken()
		}
	}
}

func (m *modelled) send(r *rlqs.RateLimitQuotaResponse) error {
	m.Receive(m.clock(), r)
	return nil
}

func (m *modelled) ask() (bool, error) { return m.Request(m.clock(), m.id), nil }

// does has it play steps that cannot fail.
func (m *modelled) does(t *testing.T, steps string) string {
	t.Helper()
	did, err := m.play(m, m.id, steps)
	if err != nil {
		t.Fatal(err)
	}
	return did
}

// The model of bench/envoy passes what the rows say, which TestModelIsEnvoy holds against an Envoy.
func TestModel(t *testing.T) {
	q := readQuirks(t)
	rows := 0
	for tier, of := range q.Tiers {
		for name, row := range of.Rows {
			rows++
			if did := q.model(tier, envoy.Stock()).does(t, row); did != row {
				t.Errorf("%s: it does %s, not %s", name, did, row)
			}
		}
	}
	for quirk, of := range q.Lacking {
		for name, row := range of {
			rows++
			stock := envoy.Stock()
			reflect.ValueOf(&stock).Elem().FieldByName(quirk).SetBool(false)
			if did := q.model("gold", stock).does(t, row); did != row || q.Tiers["gold"].Rows[name] == row {
				t.Errorf("%s, without %s: it does %s, not %s", name, quirk, did, row)
			}
		}
	}
	if rows < 32 {
		t.Errorf("there are %d rows", rows)
	}
}

// The first report of a bucket is its subscription, is sent at once, and counts the request that had no
// assignment; then all are reported every 5 s, as differences.
func TestReports(t *testing.T) {
	m := readQuirks(t).model("gold", envoy.Stock())
	m.does(t, "0s lease 2; 1s 2/5")
	m.now = 5900 * time.Millisecond
	m.Tick(m.clock())
	m.wait(11 * time.Second)
	want := []usage{{denied: 1}, {elapsed: envoy.Interval, allowed: 2, denied: 3}, {elapsed: envoy.Interval}}
	if !slices.Equal(m.had, want) {
		t.Errorf("reported %v, must be %v", m.had, want)
	}
}

// What was counted while there is no stream is lost; the stream is opened again with the next reports, and
// assignments go on meanwhile.
func TestBrokenStream(t *testing.T) {
	for loses, want := range map[bool]uint64{true: 2, false: 3} {
		stock := envoy.Stock()
		stock.LosesReports = loses
		m := readQuirks(t).model("gold", stock)
		m.Broken()
		m.refused = true
		did := m.does(t, "0s lease 4; 1s 1/1")
		m.wait(envoy.Interval)
		m.refused = false
		did += "; " + m.does(t, "6s 2/2")
		m.wait(2 * envoy.Interval)
		if got := m.had[len(m.had)-1].allowed; got != want || m.opened != 2 || did != "0s lease 4; 1s 1/1; 6s 2/2" {
			t.Errorf("loses %t: %s; it reports %d of 3 and opened %d streams, want %d and 2",
				loses, did, got, m.opened, want)
		}
	}
}

// A client that stood still goes on with an ended lease until it looks at its timers.
func TestStoodStill(t *testing.T) {
	m := readQuirks(t).model("gold", envoy.Stock())
	m.does(t, "0s lasts 1s")
	m.now = time.Minute
	before, _ := passes(m, 3)
	m.Tick(m.clock())
	if after, _ := passes(m, 20); before != 3 || after != 0 {
		t.Errorf("of a lease that has ended pass %d of 3 before it looks, and %d then", before, after)
	}
}

type quotaStream = rlqs.RateLimitQuotaService_StreamRateLimitQuotasServer

// dealer is a server of quotas that answers what a test says, also what Sluice never does. Buckets are known by
// their api_key.
type dealer struct {
	mu      sync.Mutex
	down    chan struct{}          // guarded by mu; closed: streams end at once
	streams map[string]quotaStream // guarded by mu; of each bucket
	had     map[string][]usage     // guarded by mu
}

// usage is a report of a bucket.
type usage struct {
	at              time.Time
	elapsed         time.Duration
	allowed, denied uint64
}

func usageOf(u *rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage) usage {
	return usage{elapsed: u.TimeElapsed.AsDuration(), allowed: u.NumRequestsAllowed, denied: u.NumRequestsDenied}
}

// StreamRateLimitQuotas notes what is reported.
func (d *dealer) StreamRateLimitQuotas(s quotaStream) error {
	d.mu.Lock()
	down := d.down
	d.mu.Unlock()
	ended := make(chan error, 1)
	go func() {
		for {
			m, err := s.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case <-down: // it is not read any more
			default:
				d.note(s, m)
			}
		}
	}()
	select {
	case <-down:
		return status.Error(codes.Unavailable, "as the test wants it")
	case err := <-ended:
		return err
	}
}

func (d *dealer) note(s quotaStream, m *rlqs.RateLimitQuotaUsageReports) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, u := range m.GetBucketQuotaUsages() {
		key := u.GetBucketId().GetBucket()["api_key"]
		d.streams[key] = s
		one := usageOf(u)
		one.at = time.Now()
		d.had[key] = append(d.had[key], one)
	}
}

// of are the reports of a bucket.
func (d *dealer) of(key string) []usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.had[key])
}

// actual is a bucket of a real Envoy, which has subscribed to it.
type actual struct {
	dealer *dealer
	client *Client
	id     map[string]string
	start  time.Time
}

func (a *actual) subscribe() error {
	if _, err := a.ask(); err != nil {
		return err
	}
	key := a.id["api_key"]
	err := Until(key+" is subscribed", func() bool { return len(a.dealer.of(key)) > 0 })
	a.start = time.Now()
	return err
}

func (a *actual) wait(until time.Duration) { time.Sleep(time.Until(a.start.Add(until))) }

func (a *actual) send(m *rlqs.RateLimitQuotaResponse) error {
	a.dealer.mu.Lock()
	defer a.dealer.mu.Unlock()
	return a.dealer.streams[a.id["api_key"]].Send(m)
}

func (a *actual) ask() (bool, error) {
	r, err := a.client.Get(context.Background(), "/", "x-tier", a.id["tier"], "x-api-key", a.id["api_key"])
	return r.Status == http.StatusOK, err
}

// The model of bench/envoy does what a real Envoy does, of the same messages: each quirk is a row.
func TestModelIsEnvoy(t *testing.T) {
	needsLong(t)
	q := readQuirks(t)
	w := newWorld(t, "envoy/rlqs.yaml", "").change("reporting_interval: 5s", "reporting_interval: 1s")
	settings := []any{"bucket_matchers", "matcher_list", "matchers", 0}
	quota := []any{
		"static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config",
		"http_filters", 0, "typed_config",
	}
	var tree object
	var matchers []any // one for each tier
	for tier, of := range q.Tiers {
		tree = nil
		w.need(yaml.Unmarshal([]byte(strings.ReplaceAll(w.config.Text, "gold", tier)), &tree))
		m := at[object](tree, slices.Concat(quota, settings)...)
		maps.Copy(at[object](m, "on_match", "action", "typed_config"), of.Envoy)
		matchers = append(matchers, m)
	}
	at[object](tree, slices.Concat(quota, settings[:2])...)["matchers"] = matchers
	text, err := yaml.Marshal(tree)
	w.need(err)
	w.config.Text = string(text)
	d := &dealer{down: make(chan struct{}), had: map[string][]usage{}, streams: map[string]quotaStream{}}
	address := serve(t, func(s *grpc.Server) { rlqs.RegisterRateLimitQuotaServiceServer(s, d) })
	w.backend, err = StartBackend(nil)
	w.need(err)
	t.Cleanup(w.backend.Stop)
	w.cluster = "sluice"
	w.config.Clusters = map[string][]string{"sluice": {address}, "service": {w.backend.Address}}
	w.open(1)
	bucket := func(tier, key string) *actual {
		return &actual{dealer: d, client: w.client, id: map[string]string{"tier": tier, "api_key": key}}
	}

	t.Run("rows", func(t *testing.T) {
		var all sync.WaitGroup
		for tier, of := range q.Tiers {
			for name, row := range of.Rows {
				all.Go(func() {
					a := bucket(tier, name)
					err := a.subscribe()
					did := ""
					if err == nil {
						did, err = q.play(a, a.id, row)
					}
					if did != row || err != nil {
						t.Errorf("%s: Envoy does %s (%v), and the model %s", name, did, err, row)
					}
				})
			}
		}
		all.Wait()
	})

	// Envoy stands still until after its lease has ended, with requests that wait. The model decides these first,
	// which is the worst case: Envoy may, and no more than the lease had pass.
	t.Run("stands still", func(t *testing.T) {
		const rest = 10
		a := bucket("gold", "stands still")
		w.need(a.subscribe())
		_, err := q.play(a, a.id, "0s lasts 2s")
		w.need(err)
		a.wait(time.Second)
		w.need(w.envoy.Pause(true))
		var passed atomic.Int64
		var all sync.WaitGroup
		for range 3 * rest {
			all.Go(func() {
				ok, err := a.ask()
				if err != nil {
					t.Error(err)
				}
				if ok {
					passed.Add(1)
				}
			})
		}
		a.wait(4 * time.Second)
		w.need(w.envoy.Pause(false))
		all.Wait()
		t.Logf("a lease of %d that ended 2 s before Envoy went on: %d of %d waiting requests passed",
			rest, passed.Load(), 3*rest)
		if passed.Load() > rest {
			t.Errorf("%d passed of a lease of %d", passed.Load(), rest)
		}
		time.Sleep(200 * time.Millisecond)
		if ok, err := a.ask(); ok || err != nil {
			t.Errorf("the lease goes on after it has ended (%v)", err)
		}
	})

	// How often Envoy reports, and what becomes of a report without a stream, is as with the model.
	t.Run("loses reports", func(t *testing.T) {
		const key = "reports"
		a, m := bucket("gold", key), q.model("gold", envoy.Stock())
		w.need(a.subscribe())
		since := time.Duration(0) // the model's time at the subscription, and then at the cut
		pass := func(after time.Duration, of int) {
			a.wait(after)
			m.wait(since + after)
			for _, p := range []player{a, m} {
				if n, err := passes(p, of); n != of || err != nil {
					t.Errorf("%T: %d of %d requests pass under a lease (%v)", p, n, of, err)
				}
			}
		}
		_, err := q.play(a, a.id, "0s lease 100")
		w.need(err)
		m.does(t, "0s lease 100")
		pass(500*time.Millisecond, 3)
		w.need(Until(key+" has reported", func() bool { return len(d.of(key)) >= 4 }))
		reports := d.of(key)
		for i, u := range reports {
			t.Logf("Envoy reports %d allowed, %d denied, of %v", u.allowed, u.denied, u.elapsed)
			if i > 1 && u.at.Sub(reports[i-1].at).Round(time.Second) != envoy.Interval {
				t.Errorf("report %d comes %v after the one before, the model's after %v",
					i, u.at.Sub(reports[i-1].at), envoy.Interval)
			}
		}

		since = 3*envoy.Interval + time.Second
		m.wait(since)
		m.down, m.had = true, nil
		m.Broken()
		d.mu.Lock()
		close(d.down)
		d.mu.Unlock()
		a.start = time.Now()
		pass(500*time.Millisecond, 4)
		pass(6500*time.Millisecond, 0) // a report is lost
		m.down = false
		d.mu.Lock()
		d.down = make(chan struct{})
		d.mu.Unlock()
		pass(6500*time.Millisecond, 2)
		pass(17500*time.Millisecond, 0)
		var sums [2]uint64
		for i, had := range [][]usage{d.of(key)[len(reports):], m.had} {
			for _, u := range had {
				sums[i] += u.allowed
			}
		}
		t.Logf("of 4 requests without a stream and 2 after, Envoy reports %d and the model %d", sums[0], sums[1])
		if sums[0] != sums[1] {
			t.Error("they differ")
		}
	})
}
