package realenvoy

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gate/sluice/bench/load"
)

// manager is a management server that pushes rules to the node n1.
type manager struct {
	*testing.T
	address   string
	snapshots cache.SnapshotCache
	version   int
	more      []string // flags of the node
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{T: t, snapshots: cache.NewSnapshotCache(true, cache.IDHash{}, nil)}
	m.address = serve(t, func(s *grpc.Server) {
		discovery.RegisterAggregatedDiscoveryServiceServer(s, server.NewServer(t.Context(), m.snapshots, nil))
	})
	return m
}

// push has the rules be these.
func (m *manager) push(domain string, descriptors ...*rlsconf.RateLimitDescriptor) {
	m.Helper()
	m.version++
	rules := map[resource.Type][]types.Resource{
		resource.RateLimitConfigType: {
			&rlsconf.RateLimitConfig{Name: domain, Domain: domain, Descriptors: descriptors},
		},
	}
	s, err := cache.NewSnapshot(fmt.Sprint(m.version), rules)
	if err == nil {
		err = m.snapshots.SetSnapshot(context.Background(), "n1", s)
	}
	if err != nil {
		m.Fatal(err)
	}
}

// flags are those of a node that takes its rules.
func (m *manager) flags() []string {
	return append([]string{
		"--config-type", "GRPC_XDS_SOTW", "--config-grpc-xds-server-url", m.address, "--config-grpc-xds-node-id", "n1",
	}, m.more...)
}

// under nests descriptors: keys and values in turn, then what is within.
func under(within *rlsconf.RateLimitDescriptor, path ...string) *rlsconf.RateLimitDescriptor {
	for i := len(path) - 2; i >= 0; i -= 2 {
		within = &rlsconf.RateLimitDescriptor{
			Key: path[i], Value: path[i+1], Descriptors: []*rlsconf.RateLimitDescriptor{within},
		}
	}
	return within
}

func hourly(key string, n uint32) *rlsconf.RateLimitDescriptor {
	return &rlsconf.RateLimitDescriptor{
		Key: key, RateLimit: &rlsconf.RateLimitPolicy{Unit: rlsconf.RateLimitUnit_HOUR, RequestsPerUnit: n},
	}
}

// tokens is a service whose answers cost 40.
func tokens(a http.ResponseWriter, _ *http.Request) { a.Header().Set("x-tokens", "40") }

// gateway runs an Envoy as a gateway configures it.
func gateway(t *testing.T, file, cluster string, m *manager) *world {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return (&world{T: t, flags: m.flags(), cluster: cluster, config: Config{Text: string(text)}, handler: tokens}).run()
}

// additions has a node read a shipped text that goes with pushed rules, with the hold in place of its own.
func (m *manager) additions(text, hold string) {
	m.Helper()
	shipped := regexp.MustCompile(`hold: \{.*\}`)
	if !shipped.MatchString(text) {
		m.Fatalf("no hold in\n%s", text)
	}
	file := filepath.Join(m.TempDir(), "additions.yaml")
	if err := os.WriteFile(file, shipped.ReplaceAll([]byte(text), []byte("hold: "+hold)), 0o600); err != nil {
		m.Fatal(err)
	}
	m.more = []string{"--config-grpc-xds-additions", file}
}

// below is what a document of a shipped file has below a path.
func below[T any](t *testing.T, name string, document int, path ...any) T {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal([]byte(strings.Split(shipped(t, name), "\n---\n")[document]), &tree); err != nil {
		t.Fatal(err)
	}
	return at[T](tree, path...)
}

// patched is a configuration with the operations of deploy/envoy-gateway/tokens-id.yaml and tokens-json.yaml.
func patched(t *testing.T, text string) string {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	action := below[object](t, "envoy-gateway/tokens-id.yaml", 0, "spec", "jsonPatches", 0, "operation")
	if action["jsonPath"] != "$..rate_limits[?(@.apply_on_stream_done==true)].actions" || action["path"] != "-" {
		t.Fatalf("the policy says %v: say here what it does", action)
	}
	listener := at[object](tree, "static_resources", "listeners", 0)
	hcm := at[object](listener, "filter_chains", 0, "filters", 0, "typed_config")
	for _, p := range below[[]any](t, "envoy-gateway/tokens-json.yaml", 0, "spec", "jsonPatches") {
		path, value := at[string](p, "operation", "path"), at[any](p, "operation", "value")
		path = strings.TrimPrefix(path, "/default_filter_chain/filters/0/typed_config")
		if path == "/http_filters/0" {
			hcm["http_filters"] = append([]any{value}, at[[]any](hcm, "http_filters")...)
			continue
		}
		map[string]object{ // no other is known here
			"/per_connection_buffer_limit_bytes":                 listener,
			"/request_headers_to_remove":                         at[object](hcm, "route_config"),
			"/http2_protocol_options/initial_stream_window_size": at[object](hcm, "http2_protocol_options"),
		}[path][filepath.Base(path)] = value
	}
	for _, route := range at[[]any](hcm, "route_config", "virtual_hosts", 0, "routes") {
		own := at[object](route, "typed_per_filter_config", "envoy.filters.http.ratelimit")
		for _, limit := range at[[]any](own, "rate_limits") {
			if l := at[object](limit); l["apply_on_stream_done"] == true {
				l["actions"] = append(slices.Clone(at[[]any](l, "actions")), action["value"])
			}
		}
	}
	out, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// answers sends a request for each status, and waits for its calls: one, and if it passes one with its cost, which is 10
// where the service asks.
func (w *world) answers(statuses ...int) {
	w.Helper()
	completed := "cluster." + w.cluster + ".upstream_rq_completed"
	for i, want := range statuses {
		calls := w.stat(completed) + 1
		if want == http.StatusOK {
			calls++
		}
		if got := w.get("/", "x-team", "red", "x-tokens", "10").Status; got != want {
			w.Fatalf("request %d: %d, not %d", i, got, want)
		}
		w.need(w.envoy.UntilStat(completed, calls))
	}
}

const (
	usersRoute = "httproute/default/backend/rule/0/match/0/*"
	llmRoute   = "httproute/default/llm/rule/0/match/0/*"
)

// Envoy Gateway's configuration and rules, as it pushes them: a limit for each user, and a cost that is known when
// the answer has been sent.
func TestEnvoyGateway(t *testing.T) {
	needsLong(t)
	m := newManager(t)
	users := func(n uint32) *rlsconf.RateLimitDescriptor {
		return under(hourly("rule-0-match-0", n), usersRoute, usersRoute)
	}
	llm := under(hourly("rule-0-match-0", 100), llmRoute, llmRoute)
	m.push("default/eg/http", users(3), llm)
	w := gateway(t, "envoy-gateway.yaml", "ratelimit_cluster", m)
	for _, user := range []string{"ann", "bob"} {
		if n := w.passes(5, "/users", "x-user-id", user); n != 3 {
			t.Errorf("%d of %s passed, the limit is 3", n, user)
		}
	}
	w.answers(200, 200, 200, 429) // 40, 80 and 120 of 100

	// A push changes the limit of a user who has used it up, while 200 requests a second go on.
	pushed := make(chan error, 1)
	time.AfterFunc(time.Second, func() {
		m.push("default/eg/http", users(15), llm) // refused requests count, too
		pushed <- Until("the larger limit holds", func() bool {
			a, err := w.client.Get(context.Background(), "/users", "x-user-id", "bob")
			return err == nil && a.Status == http.StatusOK
		})
	})
	w.client.Path, w.client.KeyHeader = "/users", "x-user-id"
	c := w.client.Drive(t.Context(), load.Load{Rate: 200, Keys: 1, Length: 3 * time.Second}, time.Second)
	w.need(<-pushed)
	if all, err := w.envoy.Stats(); err != nil || c.Failed != 0 || all[undecidedStat] != 0 {
		t.Errorf("%d failed (%v), %d undecided (%v)", c.Failed, c.Err, all[undecidedStat], err)
	}
	m.push("default/eg/http", llm)
	w.need(Until("a limit that was removed is gone", func() bool {
		return w.passes(20, "/users", "x-user-id", "bob") == 20
	}))
}

// quota is the rule of deploy/agent-router/quota.yaml, as Agent Router pushes it.
func quota(n uint32) *rlsconf.RateLimitDescriptor {
	model := hourly("model_name_override", n)
	model.Value = "gpt-5"
	// quota_mode, a field that the published module does not have yet.
	model.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 1))
	return under(model, "backend_name", "default/openai")
}

// Agent Router's: the same of a QuotaPolicy, whose request costs 1.
func TestAgentRouter(t *testing.T) {
	needsLong(t)
	m := newManager(t)
	m.push("ai-gateway-quota", quota(100))
	w := gateway(t, "agent-router.yaml", "ai_gateway_ratelimit_cluster", m)
	w.answers(200, 200, 200, 429) // 1+40, 42+40, 83+40, and 124 of 100
}
