package realenvoy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/ratelimit"
)

// dealer is a server of quotas that answers what a test says, also what Sluice never does. Buckets are known by
// their api_key.
type dealer struct {
	address string
	mu      sync.Mutex
	down    chan struct{}                                                     // guarded by mu; closed: streams end at once
	streams map[string]rlqs.RateLimitQuotaService_StreamRateLimitQuotasServer // guarded by mu; of each bucket
	had     map[string][]usage                                                // guarded by mu
}

// usage is a report of a bucket.
type usage struct {
	at              time.Time
	elapsed         time.Duration
	allowed, denied uint64
}

func newDealer(t *testing.T) *dealer {
	t.Helper()
	d := &dealer{
		down: make(chan struct{}), had: map[string][]usage{},
		streams: map[string]rlqs.RateLimitQuotaService_StreamRateLimitQuotasServer{},
	}
	d.address = serve(t, func(s *grpc.Server) { rlqs.RegisterRateLimitQuotaServiceServer(s, d) })
	return d
}

// StreamRateLimitQuotas notes what is reported.
func (d *dealer) StreamRateLimitQuotas(s rlqs.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
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

func (d *dealer) note(s rlqs.RateLimitQuotaService_StreamRateLimitQuotasServer, m *rlqs.RateLimitQuotaUsageReports) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, u := range m.GetBucketQuotaUsages() {
		key := u.GetBucketId().GetBucket()["api_key"]
		d.streams[key] = s
		d.had[key] = append(d.had[key],
			usage{time.Now(), u.GetTimeElapsed().AsDuration(), u.GetNumRequestsAllowed(), u.GetNumRequestsDenied()})
	}
}

// cut ends all streams, and each that is opened until mend.
func (d *dealer) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.down)
}

func (d *dealer) mend() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = make(chan struct{})
}

// of are the reports of a bucket.
func (d *dealer) of(key string) []usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.had[key])
}

// bucketID is the id of a bucket.
func bucketID(tier, key string) map[string]string {
	return map[string]string{"tier": tier, "api_key": key}
}

// message has a bucket's actions.
func message(id map[string]string, actions []action) *rlqs.RateLimitQuotaResponse {
	m := &rlqs.RateLimitQuotaResponse{}
	for _, a := range actions {
		b := &rlqs.RateLimitQuotaResponse_BucketAction{BucketId: &rlqs.BucketId{Bucket: id}}
		a(b)
		m.BucketAction = append(m.BucketAction, b)
	}
	return m
}

// give sends a message to a bucket's client.
func (d *dealer) give(key string, m *rlqs.RateLimitQuotaResponse) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.streams[key] == nil {
		return errors.New("it has not subscribed")
	}
	return d.streams[key].Send(m)
}

// action is what a message says of a bucket.
type action func(*rlqs.RateLimitQuotaResponse_BucketAction)

func assign(s *typev3.RateLimitStrategy, ttl *durationpb.Duration) action {
	return func(b *rlqs.RateLimitQuotaResponse_BucketAction) {
		b.BucketAction = &rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
			QuotaAssignmentAction: &rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
				RateLimitStrategy: s, AssignmentTimeToLive: ttl,
			},
		}
	}
}

func abandon(b *rlqs.RateLimitQuotaResponse_BucketAction) {
	b.BucketAction = &rlqs.RateLimitQuotaResponse_BucketAction_AbandonAction_{
		AbandonAction: &rlqs.RateLimitQuotaResponse_BucketAction_AbandonAction{},
	}
}

const (
	anHour = time.Hour
	aYear  = 365 * 24 * time.Hour
)

func bucketOf(n, fill uint32, every time.Duration) *typev3.RateLimitStrategy {
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
		MaxTokens: n, TokensPerFill: wrapperspb.UInt32(fill), FillInterval: durationpb.New(every),
	}}}
}

// lease is a bucket that does not refill, for an hour.
func lease(n uint32) action { return assign(bucketOf(n, 1, aYear), durationpb.New(anHour)) }

func blanket(rule typev3.RateLimitStrategy_BlanketRule) action {
	return assign(&typev3.RateLimitStrategy{
		Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: rule},
	}, durationpb.New(anHour))
}

// script is one quirk. A step like "1s deny and lease 8" begins with its time since the bucket's subscription. Then
// actions are sent in one message, or requests are made. passed says how many of these pass.
type script struct{ name, tier, steps, passed string }

var scripts = []script{
	{"requests_per_time_unit of 7", "gold", "0s minute 7; 0.5s ask 20", "0 of 20"},
	{"requests_per_time_unit after a bucket of 5", "gold", "0s lease 5; 0.5s ask 2; 1s minute 7; 1.5s ask 20", "2 of 2, 3 of 20"},
	{"ALLOW_ALL, then DENY_ALL", "gold", "0s allow; 0.5s ask 9; 1s deny; 1.5s ask 9", "9 of 9, 0 of 9"},
	{"no strategy", "gold", "0s nothing; 0.5s ask 9", "0 of 9"},
	{"no strategy, and new is ALLOW_ALL", "open", "0s nothing; 0.5s ask 9", "9 of 9"},
	{"no strategy after a bucket of 5", "gold", "0s lease 5; 0.5s ask 2; 1s nothing; 1.5s ask 9", "2 of 2, 3 of 9"},
	{"a bucket of 5, no strategy, the same bucket", "gold", "0s lease 5; 0.5s ask 2; 1s nothing; 1.5s lease 5; 2s ask 9", "2 of 2, 3 of 9"},
	{"a first bucket of 5", "gold", "0s lease 5; 0.5s ask 20", "5 of 20"},
	{"a bucket of 8 after one of 5 that is empty", "gold", "0s lease 5; 0.5s ask 20; 1s lease 8; 1.5s ask 20", "5 of 20, 0 of 20"},
	{"a bucket of 20 after one of 10 that is half full", "gold", "0s lease 10; 0.5s ask 5; 1s lease 20; 1.5s ask 30", "5 of 5, 10 of 30"},
	{"a bucket of 5 after one of 20 that is half full", "gold", "0s lease 20; 0.5s ask 10; 1s lease 5; 1.5s ask 30", "10 of 10, 2 of 30"},
	{"a bucket of 5, DENY_ALL, the same bucket", "gold", "0s lease 5; 0.5s ask 20; 1s deny; 1.5s lease 5; 2s ask 20", "5 of 20, 5 of 20"},
	{"DENY_ALL and a bucket in one message", "gold", "0s lease 5; 0.5s ask 20; 1s deny and lease 8; 1.5s ask 20", "5 of 20, 8 of 20"},
	{"the same bucket again", "gold", "0s lease 5; 0.5s ask 20; 1s lease 5; 1.5s ask 20", "5 of 20, 0 of 20"},
	{"a fill each 1.5 s, 6 s later", "gold", "0s bucket 10 1 1.5s; 0.5s ask 11; 7s ask 20", "10 of 11, 6 of 20"},
	{"a fill each 0.5 s", "gold", "0s bucket 10 1 0.5s; 0.5s ask 30; 1.5s ask 30", "30 of 30, 30 of 30"},
	{"10 a year, then 10 a second", "gold", "0s bucket 10 10 8760h; 0.5s ask 12; 1s bucket 10 10 1s; 3s ask 20", "10 of 12, 0 of 20"},
	{"another tokens_per_fill", "gold", "0s bucket 10 1 8760h; 0.5s ask 12; 1s bucket 10 10 1s; 3s ask 20", "10 of 12, 10 of 20"},
	{"a TTL of 1.9 s, after 1.5 s", "gold", "0s lasts 1.9s; 1.5s ask 20", "0 of 20"},
	{"a TTL of 0.9 s, after 0.4 s", "gold", "0s lasts 0.9s; 0.4s ask 20", "0 of 20"},
	{"a TTL of 3 s, after 2.5 and 3.5 s", "gold", "0s lasts 3s; 2.5s ask 4; 3.5s ask 20", "4 of 4, 0 of 20"},
	{"no TTL", "gold", "0s lasts; 0.5s ask 20", "0 of 20"},
	{"a TTL of 0", "gold", "0s lasts 0s; 0.5s ask 20", "0 of 20"},
	{"the same bucket with a TTL anew, of 2 s each, after 3 s", "gold", "0s lasts 2s; 0.5s ask 3; 1.5s lasts 2s; 3s ask 20", "3 of 3, 7 of 20"},
	{"the same bucket after it has expired", "gold", "0s lasts 1s; 0.5s ask 4; 2s bucket 10 1 8760h; 2.5s ask 20", "4 of 4, 10 of 20"},
	{"expired, with reuse_last_assignment", "reuse", "0s lasts 1s; 1.5s ask 20", "0 of 20"},
	{"expired, with ALLOW_ALL for 5 s", "allow", "0s lasts 1s; 2s ask 20; 8s ask 20", "20 of 20, 0 of 20"},
	{"expired, without expired_assignment_behavior", "none", "0s lasts 1s; 2s ask 20", "0 of 20"},
	{"new, with ALLOW_ALL; then a bucket of 5", "open", "0s ask 7; 0.5s lease 5; 1s ask 20", "7 of 7, 5 of 20"},
	{"expired, without that, and new is ALLOW_ALL", "open", "0s lasts 1s; 2s ask 20", "20 of 20"},
	{"ALLOW_ALL, then abandoned", "gold", "0s allow; 0.5s ask 9; 1s abandon; 1.5s ask 9", "9 of 9, 0 of 9"},
	{"a bucket of 5, abandoned, subscribed anew, a bucket of 5", "gold", "0s lease 5; 0.5s ask 9; 1s abandon; 1.5s ask 1; 2s lease 5; 2.5s ask 9", "5 of 9, 0 of 1, 5 of 9"},
}

// actionOf reads what a step sends.
func actionOf(text string) (action, error) {
	var word, every string
	var n, fill uint32
	_, _ = fmt.Sscan(text, &word, &n, &fill, &every) // as many as there are
	hour := durationpb.New(anHour)
	switch word {
	case "lease":
		return lease(n), nil
	case "bucket": // tokens, tokens of each fill, and the time between two
		d, err := time.ParseDuration(every)
		return assign(bucketOf(n, fill, d), hour), err
	case "lasts": // a bucket of 10 with this TTL, or without one
		_, ttl, has := strings.Cut(text, " ")
		if !has {
			return assign(bucketOf(10, 1, aYear), nil), nil
		}
		d, err := time.ParseDuration(ttl)
		return assign(bucketOf(10, 1, aYear), durationpb.New(d)), err
	case "minute":
		return assign(&typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_RequestsPerTimeUnit_{
			RequestsPerTimeUnit: &typev3.RateLimitStrategy_RequestsPerTimeUnit{RequestsPerTimeUnit: uint64(n), TimeUnit: typev3.RateLimitUnit_MINUTE},
		}}, hour), nil
	case "nothing":
		return assign(nil, hour), nil
	case "allow":
		return blanket(typev3.RateLimitStrategy_ALLOW_ALL), nil
	case "deny":
		return blanket(typev3.RateLimitStrategy_DENY_ALL), nil
	case "abandon":
		return abandon, nil
	}
	return nil, fmt.Errorf("%q is no action", text)
}

// player is an Envoy, or its model, with one bucket.
type player interface {
	wait(until time.Duration) // since the bucket's subscription
	send(actions ...action) error
	ask() (allowed bool, err error)
}

// play does the steps, and is how many requests passed at each.
func (s *script) play(p player) (string, error) {
	var passed []string
	for step := range strings.SplitSeq(s.steps, "; ") {
		at, what, _ := strings.Cut(step, " ")
		after, err := time.ParseDuration(at)
		if err != nil {
			return "", err
		}
		p.wait(after)
		asks, asked := strings.CutPrefix(what, "ask ")
		if !asked {
			var actions []action
			for text := range strings.SplitSeq(what, " and ") {
				a, err := actionOf(text)
				if err != nil {
					return "", err
				}
				actions = append(actions, a)
			}
			if err := p.send(actions...); err != nil {
				return "", err
			}
			continue
		}
		of, err := strconv.Atoi(asks)
		if err != nil {
			return "", err
		}
		n, err := passes(p, of)
		if err != nil {
			return "", err
		}
		passed = append(passed, fmt.Sprintf("%d of %d", n, of))
	}
	return strings.Join(passed, ", "), nil
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

// actual is a bucket of a real Envoy, which has subscribed to it.
type actual struct {
	dealer *dealer
	client *Client
	id     map[string]string
	start  time.Time
}

func subscribe(d *dealer, client *Client, tier, key string) (*actual, error) {
	a := &actual{dealer: d, client: client, id: bucketID(tier, key)}
	if _, err := a.ask(); err != nil {
		return nil, err
	}
	err := Until(key+" is subscribed", func() bool { return len(d.of(key)) > 0 })
	a.start = time.Now()
	return a, err
}

func (a *actual) wait(until time.Duration) { time.Sleep(time.Until(a.start.Add(until))) }

func (a *actual) send(actions ...action) error {
	return a.dealer.give(a.id["api_key"], message(a.id, actions))
}

func (a *actual) ask() (bool, error) {
	r, err := a.client.Get(context.Background(), "/", "x-tier", a.id["tier"], "x-api-key", a.id["api_key"])
	return r.Status == http.StatusOK, err
}

// modelled is a bucket of the model, in virtual time.
type modelled struct {
	*envoy.Client
	id      map[string]string
	now     time.Duration
	refused bool // no stream can be opened
	down    bool // streams end at once
	opened  int  // streams
	had     []usage
}

func modelOf(tier string, q envoy.Quirks) *modelled {
	o := tiers[tier]
	o.Domain, o.Quirks = "edge", q
	m := &modelled{id: bucketID(tier, "model")}
	m.Client = envoy.New(o, m)
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
	if u := r.BucketQuotaUsages[0]; !m.down {
		m.had = append(m.had, usage{elapsed: u.TimeElapsed.AsDuration(), allowed: u.NumRequestsAllowed, denied: u.NumRequestsDenied})
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

func (m *modelled) send(actions ...action) error {
	m.Receive(m.clock(), message(m.id, actions))
	return nil
}

func (m *modelled) ask() (bool, error) { return m.Request(m.clock(), m.id), nil }

// tiers are the settings of the filter that scripts use.
var tiers = map[string]envoy.Options{
	"gold":  {ExpiredFor: time.Minute},
	"reuse": {}, // reuse_last_assignment, which Envoy ignores
	"allow": {Expired: true, ExpiredFor: 5 * time.Second},
	"none":  {},
	"open":  {New: true},
}

// tiered is rlqs.yaml with a bucket for each tier, and reports each second.
func tiered(t *testing.T) string {
	t.Helper()
	fallback := func(rule string) object { return object{"fallback_rate_limit": object{"blanket_rule": rule}} }
	text := change(t, shipped(t, "envoy/rlqs.yaml"), "reporting_interval: 5s", "reporting_interval: 1s")
	var tree object
	var matchers []any
	for tier, o := range tiers {
		var one object // a copy of its own
		if err := yaml.Unmarshal([]byte(text), &one); err != nil {
			t.Fatal(err)
		}
		tree = one
		m := at[object](quotaFilter(one), "bucket_matchers", "matcher_list", "matchers", 0)
		at[object](m, "predicate", "single_predicate", "value_match")["exact"] = tier
		s := at[object](m, "on_match", "action", "typed_config")
		at[object](s, "bucket_id_builder", "bucket_id_builder", "tier")["string_value"] = tier
		if o.New {
			s["no_assignment_behavior"] = fallback("ALLOW_ALL")
		}
		expired := at[object](s, "expired_assignment_behavior")
		expired["expired_assignment_behavior_timeout"] = "60s"
		switch {
		case tier == "reuse":
			delete(expired, "fallback_rate_limit")
			expired["reuse_last_assignment"] = object{}
		case o.ExpiredFor == 0:
			delete(s, "expired_assignment_behavior")
		case o.Expired:
			expired["expired_assignment_behavior_timeout"] = fmt.Sprintf("%.0fs", o.ExpiredFor.Seconds())
			expired["fallback_rate_limit"] = fallback("ALLOW_ALL")["fallback_rate_limit"]
		}
		matchers = append(matchers, m)
	}
	at[object](quotaFilter(tree), "bucket_matchers", "matcher_list")["matchers"] = matchers
	out, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func quotaFilter(tree object) object {
	return at[object](tree, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config",
		"http_filters", 0, "typed_config")
}

// without are scripts of which something else passes where the model lacks a quirk.
var without = []struct {
	name   string
	lacks  func(*envoy.Quirks)
	passed string
}{
	{"a bucket of 8 after one of 5 that is empty", func(q *envoy.Quirks) { q.ScalesChanged = false }, "5 of 20, 8 of 20"},
	{"a bucket of 20 after one of 10 that is half full", func(q *envoy.Quirks) { q.ScalesChanged = false }, "5 of 5, 20 of 30"},
	{"10 a year, then 10 a second", func(q *envoy.Quirks) { q.ComparesLittle = false }, "10 of 12, 10 of 20"},
	{"a TTL of 1.9 s, after 1.5 s", func(q *envoy.Quirks) { q.WholeSecondTTL = false }, "10 of 20"},
}

// The model of bench/envoy passes what the rows say, which TestModelIsEnvoy holds against an Envoy.
func TestModel(t *testing.T) {
	for _, s := range scripts {
		if passed, err := s.play(modelOf(s.tier, envoy.Stock())); passed != s.passed || err != nil {
			t.Errorf("%s: it lets %s pass (%v), not %s", s.name, passed, err, s.passed)
		}
	}
	for _, c := range without {
		s := &scripts[slices.IndexFunc(scripts, func(s script) bool { return s.name == c.name })]
		q := envoy.Stock()
		c.lacks(&q)
		if passed, err := s.play(modelOf(s.tier, q)); passed != c.passed || err != nil {
			t.Errorf("%s, without its quirk: it lets %s pass (%v), not %s", s.name, passed, err, c.passed)
		}
	}
}

// sends has the model do a step that cannot fail, and is how many requests pass then.
func (m *modelled) sends(a action, at time.Duration, of int) (passed int) {
	_ = m.send(a)
	m.wait(at)
	passed, _ = passes(m, of)
	return passed
}

// The first report of a bucket is its subscription, is sent at once, and counts the request
// that had no assignment; then all are reported every 5 s, as differences.
func TestReports(t *testing.T) {
	m := modelOf("gold", envoy.Stock())
	m.sends(lease(2), time.Second, 5)
	m.now = 5900 * time.Millisecond
	m.Tick(m.clock())
	m.wait(11 * time.Second)
	if want := []usage{{denied: 1}, {elapsed: envoy.Interval, allowed: 2, denied: 3}, {elapsed: envoy.Interval}}; !slices.Equal(m.had, want) {
		t.Errorf("reported %v, must be %v", m.had, want)
	}
}

// What was counted while there is no stream is lost; the stream is opened again with the
// next reports, and assignments go on meanwhile.
func TestBrokenStream(t *testing.T) {
	for loses, want := range map[bool]uint64{true: 2, false: 3} {
		q := envoy.Stock()
		q.LosesReports = loses
		m := modelOf("gold", q)
		m.Broken()
		m.refused = true
		passed := m.sends(lease(4), time.Second, 1)
		m.wait(envoy.Interval)
		m.refused = false
		m.wait(6 * time.Second)
		more, _ := passes(m, 2)
		m.wait(2 * envoy.Interval)
		if got := m.had[len(m.had)-1].allowed; got != want || m.opened != 2 || passed+more != 3 {
			t.Errorf("loses %t: %d of 3 pass, it reports %d and opened %d streams, want %d and 2", loses, passed+more, got, m.opened, want)
		}
	}
}

// A client that stood still goes on with an ended lease until it looks at its timers.
func TestStoodStill(t *testing.T) {
	m := modelOf("gold", envoy.Stock())
	m.sends(assign(bucketOf(10, 1, aYear), durationpb.New(time.Second)), 0, 0)
	m.now = time.Minute
	before, _ := passes(m, 3)
	m.Tick(m.clock())
	if after, _ := passes(m, 20); before != 3 || after != 0 {
		t.Errorf("of a lease that has ended pass %d of 3 before it looks, and %d then", before, after)
	}
}

// The model of bench/envoy does what a real Envoy does, of the same messages: each quirk is a row.
func TestModelIsEnvoy(t *testing.T) {
	needsLong(t)
	needsEnvoy(t)
	binary, err := Find()
	need := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	need(err)
	d := newDealer(t)
	backend, err := StartBackend(nil)
	need(err)
	t.Cleanup(backend.Stop)
	e, err := Start(binary, &Config{
		Text: tiered(t), Clusters: map[string][]string{"sluice": {d.address}, "service": {backend.Address}},
	})
	need(err)
	t.Cleanup(e.Stop)
	client := NewClient(e.URL)
	t.Cleanup(client.Close)
	texts, errs := make([]string, len(scripts)), make([]error, len(scripts))
	var all sync.WaitGroup
	for i, s := range scripts {
		all.Go(func() {
			a, err := subscribe(d, client, s.tier, s.name)
			if err == nil {
				texts[i], err = s.play(a)
			}
			errs[i] = err
		})
	}
	all.Wait()
	for i, s := range scripts {
		need(errs[i])
		if texts[i] != s.passed {
			t.Errorf("%s: Envoy lets %s pass, and the model %s", s.name, texts[i], s.passed)
		}
	}
	standsStill(t, d, e, client)
	losesReports(t, d, client)
}

// standsStill has Envoy stand still until after its lease has ended, with requests that wait. The model decides these
// first, which is the worst case: Envoy may, and no more than the lease had pass.
func standsStill(t *testing.T, d *dealer, e *Envoy, client *Client) {
	t.Helper()
	const rest = 10
	a, err := subscribe(d, client, "gold", "stands still")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.send(assign(bucketOf(rest, 1, aYear), durationpb.New(2*time.Second))); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if err := e.Pause(true); err != nil {
		t.Fatal(err)
	}
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 3 * rest {
		all.Go(func() {
			if ok, err := a.ask(); err != nil {
				t.Error(err)
			} else if ok {
				passed.Add(1)
			}
		})
	}
	time.Sleep(3 * time.Second)
	if err := e.Pause(false); err != nil {
		t.Fatal(err)
	}
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
}

// losesReports holds how often Envoy reports, and what becomes of a report without a stream, against the model.
func losesReports(t *testing.T, d *dealer, client *Client) {
	t.Helper()
	const key = "reports"
	a, err := subscribe(d, client, "gold", key)
	if err != nil {
		t.Fatal(err)
	}
	m := modelOf("gold", envoy.Stock())
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
	if err := errors.Join(a.send(lease(100)), m.send(lease(100))); err != nil {
		t.Fatal(err)
	}
	pass(500*time.Millisecond, 3)
	if err := Until(key+" has reported", func() bool { return len(d.of(key)) >= 4 }); err != nil {
		t.Fatal(err)
	}
	reports := d.of(key)
	for i, u := range reports {
		t.Logf("Envoy reports %d allowed, %d denied, of %v", u.allowed, u.denied, u.elapsed)
		if i > 1 && u.at.Sub(reports[i-1].at).Round(time.Second) != envoy.Interval {
			t.Errorf("report %d comes %v after the one before, the model's after %v", i, u.at.Sub(reports[i-1].at), envoy.Interval)
		}
	}

	since = 3*envoy.Interval + time.Second
	m.wait(since)
	m.down, m.had = true, nil
	m.Broken()
	d.cut()
	a.start = time.Now()
	pass(500*time.Millisecond, 4)
	pass(6500*time.Millisecond, 0) // a report is lost
	m.down = false
	d.mend()
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
}
