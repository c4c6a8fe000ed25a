package deploy

import (
	"encoding/json"
	"os"
	"testing"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rate_limit_quota/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
)

func TestEnvoyConfigsAreValid(t *testing.T) {
	for _, name := range []string{"envoy/envoy.yaml", "envoy/approx.yaml", "envoy/ring-hash.yaml", "envoy/rlqs.yaml", "compose/envoy.yaml"} {
		t.Run(name, func(t *testing.T) { validEnvoy(t, "deploy/"+name) })
	}
}

func validEnvoy(t *testing.T, name string) {
	var tree any
	if err := yaml.Unmarshal([]byte(read(t, name)), &tree); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	var b bootstrap.Bootstrap
	if err := protojson.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	if err := b.ValidateAll(); err != nil {
		t.Error(err)
	}
	for _, f := range b.StaticResources.Listeners[0].FilterChains[0].Filters {
		if _, err := f.GetTypedConfig().UnmarshalNew(); err != nil {
			t.Error(err)
		}
	}
}

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
