package realenvoy

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/bench/envoy"
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &dealer{
		address: l.Addr().String(), down: make(chan struct{}), had: map[string][]usage{},
		streams: map[string]rlqs.RateLimitQuotaService_StreamRateLimitQuotasServer{},
	}
	server, healthy := grpc.NewServer(), health.NewServer()
	healthy.SetServingStatus("ratelimit", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthy)
	rlqs.RegisterRateLimitQuotaServiceServer(server, d)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
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

// send gives a bucket's client actions, in one message.
func (d *dealer) send(tier, key string, actions ...action) error {
	m := &rlqs.RateLimitQuotaResponse{}
	for _, a := range actions {
		b := &rlqs.RateLimitQuotaResponse_BucketAction{
			BucketId: &rlqs.BucketId{Bucket: map[string]string{"tier": tier, "api_key": key}},
		}
		a(b)
		m.BucketAction = append(m.BucketAction, b)
	}
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
// actions are sent in one message, or requests are made.
type script struct{ name, tier, steps string }

var scripts = []script{
	{"requests_per_time_unit of 7", "gold", "0s minute 7; 0.5s ask 20"},
	{"requests_per_time_unit after a bucket of 5", "gold", "0s lease 5; 0.5s ask 2; 1s minute 7; 1.5s ask 20"},
	{"ALLOW_ALL, then DENY_ALL", "gold", "0s allow; 0.5s ask 9; 1s deny; 1.5s ask 9"},
	{"no strategy", "gold", "0s nothing; 0.5s ask 9"},
	{"no strategy, and new is ALLOW_ALL", "open", "0s nothing; 0.5s ask 9"},
	{"no strategy after a bucket of 5", "gold", "0s lease 5; 0.5s ask 2; 1s nothing; 1.5s ask 9"},
	{"a bucket of 5, no strategy, the same bucket", "gold", "0s lease 5; 0.5s ask 2; 1s nothing; 1.5s lease 5; 2s ask 9"},
	{"a first bucket of 5", "gold", "0s lease 5; 0.5s ask 20"},
	{"a bucket of 8 after one of 5 that is empty", "gold", "0s lease 5; 0.5s ask 20; 1s lease 8; 1.5s ask 20"},
	{"a bucket of 20 after one of 10 that is half full", "gold", "0s lease 10; 0.5s ask 5; 1s lease 20; 1.5s ask 30"},
	{"a bucket of 5 after one of 20 that is half full", "gold", "0s lease 20; 0.5s ask 10; 1s lease 5; 1.5s ask 30"},
	{"a bucket of 5, DENY_ALL, the same bucket", "gold", "0s lease 5; 0.5s ask 20; 1s deny; 1.5s lease 5; 2s ask 20"},
	{"DENY_ALL and a bucket in one message", "gold", "0s lease 5; 0.5s ask 20; 1s deny and lease 8; 1.5s ask 20"},
	{"the same bucket again", "gold", "0s lease 5; 0.5s ask 20; 1s lease 5; 1.5s ask 20"},
	{"a fill each 1.5 s, 6 s later", "gold", "0s bucket 10 1 1.5s; 0.5s ask 11; 7s ask 20"},
	{"a fill each 0.5 s", "gold", "0s bucket 10 1 0.5s; 0.5s ask 30; 1.5s ask 30"},
	{"10 a year, then 10 a second", "gold", "0s bucket 10 10 8760h; 0.5s ask 12; 1s bucket 10 10 1s; 3s ask 20"},
	{"another tokens_per_fill", "gold", "0s bucket 10 1 8760h; 0.5s ask 12; 1s bucket 10 10 1s; 3s ask 20"},
	{"a TTL of 1.9 s, after 1.5 s", "gold", "0s lasts 1.9s; 1.5s ask 20"},
	{"a TTL of 0.9 s, after 0.4 s", "gold", "0s lasts 0.9s; 0.4s ask 20"},
	{"a TTL of 3 s, after 2.5 and 3.5 s", "gold", "0s lasts 3s; 2.5s ask 4; 3.5s ask 20"},
	{"no TTL", "gold", "0s lasts; 0.5s ask 20"},
	{"a TTL of 0", "gold", "0s lasts 0s; 0.5s ask 20"},
	{"the same bucket with a TTL anew, of 2 s each, after 3 s", "gold", "0s lasts 2s; 0.5s ask 3; 1.5s lasts 2s; 3s ask 20"},
	{"the same bucket after it has expired", "gold", "0s lasts 1s; 0.5s ask 4; 2s bucket 10 1 8760h; 2.5s ask 20"},
	{"expired, with reuse_last_assignment", "reuse", "0s lasts 1s; 1.5s ask 20"},
	{"expired, with ALLOW_ALL for 5 s", "allow", "0s lasts 1s; 2s ask 20; 8s ask 20"},
	{"expired, without expired_assignment_behavior", "none", "0s lasts 1s; 2s ask 20"},
	{"new, with ALLOW_ALL; then a bucket of 5", "open", "0s ask 7; 0.5s lease 5; 1s ask 20"},
	{"expired, without that, and new is ALLOW_ALL", "open", "0s lasts 1s; 2s ask 20"},
	{"ALLOW_ALL, then abandoned", "gold", "0s allow; 0.5s ask 9; 1s abandon; 1.5s ask 9"},
	{"a bucket of 5, abandoned, subscribed anew, a bucket of 5", "gold", "0s lease 5; 0.5s ask 9; 1s abandon; 1.5s ask 1; 2s lease 5; 2.5s ask 9"},
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

// play does the steps, and is how many requests passed at each.
func (s *script) play(d *dealer, who string, ask func(tier, key string) (bool, error)) (string, error) {
	key := who + " " + s.name
	if _, err := ask(s.tier, key); err != nil {
		return "", err
	}
	if err := Until(key+" is subscribed", func() bool { return len(d.of(key)) > 0 }); err != nil {
		return "", err
	}
	start := time.Now()
	var passed []string
	for step := range strings.SplitSeq(s.steps, "; ") {
		at, what, _ := strings.Cut(step, " ")
		after, err := time.ParseDuration(at)
		if err != nil {
			return "", err
		}
		time.Sleep(time.Until(start.Add(after)))
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
			if err := d.send(s.tier, key, actions...); err != nil {
				return "", err
			}
			continue
		}
		of, err := strconv.Atoi(asks)
		if err != nil {
			return "", err
		}
		n := 0
		for range of {
			ok, err := ask(s.tier, key)
			if err != nil {
				return "", err
			}
			if ok {
				n++
			}
		}
		passed = append(passed, fmt.Sprintf("%d of %d", n, of))
	}
	return strings.Join(passed, ", "), nil
}

// tiers are the settings of the filter that scripts use.
var tiers = map[string]envoy.Options{
	"gold":  {Expired: envoy.Deny, ExpiredFor: time.Minute},
	"reuse": {Expired: envoy.Reuse, ExpiredFor: time.Minute},
	"allow": {Expired: envoy.Allow, ExpiredFor: 5 * time.Second},
	"none":  {},
	"open":  {New: envoy.Allow},
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
		if o.New == envoy.Allow {
			s["no_assignment_behavior"] = fallback("ALLOW_ALL")
		}
		expired := at[object](s, "expired_assignment_behavior")
		expired["expired_assignment_behavior_timeout"] = fmt.Sprintf("%.0fs", o.ExpiredFor.Seconds())
		switch {
		case o.ExpiredFor == 0:
			delete(s, "expired_assignment_behavior")
		case o.Expired == envoy.Reuse:
			delete(expired, "fallback_rate_limit")
			expired["reuse_last_assignment"] = object{}
		case o.Expired == envoy.Allow:
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
	e, err := Start(binary, t.TempDir(), &Config{
		Text: tiered(t), Clusters: map[string][]string{"sluice": {d.address}, "service": {backend.Address}},
	})
	need(err)
	t.Cleanup(e.Stop)
	client := NewClient(e.URL)
	t.Cleanup(client.Close)
	actual := func(tier, key string) (bool, error) {
		a, err := client.Get(context.Background(), "/", "x-tier", tier, "x-api-key", key)
		return a.Status == http.StatusOK, err
	}
	models := map[string]*envoy.Live{}
	for tier, o := range tiers {
		o.Domain, o.Quirks, o.Interval = "edge", envoy.Stock(), time.Second
		models[tier], err = envoy.NewLive(o, d.address, nil)
		need(err)
		t.Cleanup(models[tier].Close)
	}
	model := func(tier, key string) (bool, error) {
		return models[tier].Request(map[string]string{"tier": tier, "api_key": key}), nil
	}
	type result struct {
		real, model       string
		realErr, modelErr error
	}
	results := make([]result, len(scripts))
	var all sync.WaitGroup
	for i := range scripts {
		all.Go(func() { results[i].real, results[i].realErr = scripts[i].play(d, "real", actual) })
		all.Go(func() { results[i].model, results[i].modelErr = scripts[i].play(d, "model", model) })
	}
	all.Wait()
	for i, r := range results {
		t.Logf("%s: Envoy %s; the model %s", scripts[i].name, r.real, r.model)
		if err := errors.Join(r.realErr, r.modelErr); err != nil {
			t.Errorf("%s: %v", scripts[i].name, err)
		}
		if r.real != r.model {
			t.Errorf("%s: Envoy lets %s pass, and the model %s", scripts[i].name, r.real, r.model)
		}
	}
	standsStill(t, d, e, client, actual)
	losesReports(t, d, map[string]func(tier, key string) (bool, error){"real": actual, "model": model})
}

// standsStill has Envoy stand still until after its lease has ended, with requests that wait. The model decides these
// first, which is the worst case: Envoy may, and no more than the lease had pass.
func standsStill(t *testing.T, d *dealer, e *Envoy, client *Client, ask func(tier, key string) (bool, error)) {
	t.Helper()
	const key, rest = "real stands still", 10
	if _, err := ask("gold", key); err != nil {
		t.Fatal(err)
	}
	if err := Until(key+" is subscribed", func() bool { return len(d.of(key)) > 0 }); err != nil {
		t.Fatal(err)
	}
	if err := d.send("gold", key, assign(bucketOf(rest, 1, aYear), durationpb.New(2*time.Second))); err != nil {
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
			a, err := client.Get(context.Background(), "/", "x-tier", "gold", "x-api-key", key)
			if err != nil {
				t.Error(err)
			} else if a.Status == http.StatusOK {
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
	if ok, err := ask("gold", key); ok || err != nil {
		t.Errorf("the lease goes on after it has ended (%v)", err)
	}
}

// losesReports holds how often Envoy reports, and what becomes of a report without a stream, against the model.
func losesReports(t *testing.T, d *dealer, who map[string]func(tier, key string) (bool, error)) {
	t.Helper()
	found := map[string]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for name, ask := range who {
		all.Go(func() {
			key := name + " reports"
			asks := func(n int) {
				for range n {
					if _, err := ask("gold", key); err != nil {
						t.Error(err)
					}
				}
			}
			reported := func(n int) {
				if err := Until(key+" has reported", func() bool { return len(d.of(key)) >= n }); err != nil {
					t.Error(err)
				}
			}
			asks(1)
			reported(1)
			if err := d.send("gold", key, lease(100)); err != nil {
				t.Error(err)
			}
			time.Sleep(500 * time.Millisecond)
			asks(3)
			reported(4)
			mu.Lock()
			defer mu.Unlock()
			text := ""
			for i, u := range d.of(key)[:4] {
				text += fmt.Sprintf("%d allowed, %d denied, of %v", u.allowed, u.denied, u.elapsed)
				if i > 1 {
					text += fmt.Sprintf(" after %v", u.at.Sub(d.of(key)[i-1].at).Round(time.Second))
				}
				text += "; "
			}
			found[name] = text
		})
	}
	all.Wait()
	t.Logf("Envoy reports %s", found["real"])
	t.Logf("the model reports %s", found["model"])

	before := map[string]int{}
	for name := range who {
		before[name] = len(d.of(name + " reports"))
	}
	d.cut()
	time.Sleep(500 * time.Millisecond)
	for name, ask := range who {
		for range 4 {
			if ok, err := ask("gold", name+" reports"); !ok || err != nil {
				t.Errorf("%s: a lease ends with the stream (%v)", name, err)
			}
		}
	}
	time.Sleep(6 * time.Second) // a report is lost
	d.mend()
	for name, ask := range who {
		for range 2 {
			if ok, err := ask("gold", name+" reports"); !ok || err != nil {
				t.Errorf("%s: a lease ends with the stream (%v)", name, err)
			}
		}
	}
	time.Sleep(11 * time.Second)
	sums := map[string]uint64{}
	for name := range who {
		for _, u := range d.of(name + " reports")[before[name]:] {
			sums[name] += u.allowed
		}
	}
	t.Logf("of 4 requests without a stream and 2 after, Envoy reports %d and the model %d", sums["real"], sums["model"])
	if sums["real"] != sums["model"] {
		t.Error("they differ")
	}
}
