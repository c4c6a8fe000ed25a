package realenvoy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// message reads a message that is written in YAML.
func message(text string, into proto.Message) error {
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return err
	}
	return protojson.Unmarshal(data, into)
}

// push has the rules be those of a file, from a management server. With a further word the innermost has
// quota_mode, a field that the published module does not have yet.
func (s *script) push(args []string) error {
	if s.rules == nil {
		s.rules = cache.NewSnapshotCache(true, cache.IDHash{}, nil)
		address := serve(s.T, func(g *grpc.Server) {
			discovery.RegisterAggregatedDiscoveryServiceServer(g, server.NewServer(s.Context(), s.rules, nil))
		})
		s.flags = append(s.flags,
			"--config-type", "GRPC_XDS_SOTW", "--config-grpc-xds-server-url", address, "--config-grpc-xds-node-id", "n1")
	}
	rules := &rlsconf.RateLimitConfig{}
	if err := message(s.read(s.file(args[1])), rules); err != nil {
		return err
	}
	rules.Name, rules.Domain = args[0], args[0]
	if len(args) > 2 {
		field := protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 1)
		rules.Descriptors[0].Descriptors[0].ProtoReflect().SetUnknown(field)
	}
	s.version++
	snapshot, err := cache.NewSnapshot(strconv.Itoa(s.version), map[resource.Type][]types.Resource{
		resource.RateLimitConfigType: {rules},
	})
	if err != nil {
		return err
	}
	return s.rules.SetSnapshot(context.Background(), "n1", snapshot)
}

// adds has a node read the additions that a file of deploy has for pushed rules, with the hold in place of its own.
func (s *script) adds(args []string) error {
	own := regexp.MustCompile(`hold: \{.*\}`)
	for document := range strings.SplitSeq(s.read(s.file(args[0])), "\n---\n") {
		var tree any
		if err := yaml.Unmarshal([]byte(document), &tree); err != nil {
			return err
		}
		text := at[string](tree, "data", "additions.yaml") + at[string](tree, "rules", "additions.yaml")
		if own.MatchString(text) {
			file := filepath.Join(s.dir, "additions.yaml")
			s.flags = append(s.flags, "--config-grpc-xds-additions", file)
			return os.WriteFile(file, []byte(own.ReplaceAllString(text, "hold: "+args[1])), 0o600)
		}
	}
	return errors.New("there is no hold")
}

// edit changes the configuration as a tree, for each of a policy's patches.
func (s *script) edit(policy, patches string, change func(static, listener, manager object, patch any)) error {
	var tree, from any
	err := errors.Join(yaml.Unmarshal([]byte(s.config.Text), &tree), yaml.Unmarshal([]byte(s.read(s.file(policy))), &from))
	if err != nil {
		return err
	}
	static := at[object](tree, "static_resources")
	listener := at[object](static, "listeners", 0)
	manager := at[object](listener, "filter_chains", 0, "filters", 0, "typed_config")
	for _, p := range at[[]any](from, "spec", patches) {
		change(static, listener, manager, p)
	}
	text, err := yaml.Marshal(tree)
	s.config.Text = string(text)
	return err
}

// istio does what Istio does: filters come before the router, and clusters and limits of the host come to those
// there are.
func (s *script) istio(args []string) error {
	return s.edit(args[0], "configPatches", func(static, listener, manager object, p any) {
		value := at[object](p, "patch", "value")
		switch at[string](p, "applyTo") {
		case "HTTP_FILTER":
			filters := at[[]any](manager, "http_filters")
			manager["http_filters"] = slices.Insert(filters, len(filters)-1, any(value))
		case "CLUSTER":
			static["clusters"] = append(at[[]any](static, "clusters"), any(value))
		case "VIRTUAL_HOST":
			maps.Copy(at[object](manager, "route_config", "virtual_hosts", 0), value)
		case "LISTENER":
			maps.Copy(listener, value)
		}
	})
}

// patch does what Envoy Gateway does with an EnvoyPatchPolicy.
func (s *script) patch(args []string) error {
	return s.edit(args[0], "jsonPatches", func(_, listener, manager object, p any) {
		operation := at[object](p, "operation")
		if operation["jsonPath"] == "$..rate_limits[?(@.apply_on_stream_done==true)].actions" && operation["path"] == "-" {
			for _, route := range at[[]any](manager, "route_config", "virtual_hosts", 0, "routes") {
				own := at[object](route, "typed_per_filter_config", "envoy.filters.http.ratelimit")
				for _, limit := range at[[]any](own, "rate_limits") {
					if l := at[object](limit); l["apply_on_stream_done"] == true {
						l["actions"] = append(slices.Clone(at[[]any](l, "actions")), operation["value"])
					}
				}
			}
			return
		}
		into := any(listener)
		if strings.HasSuffix(at[string](p, "type"), ".RouteConfiguration") {
			into = manager["route_config"]
		}
		path := strings.Replace(at[string](operation, "path"), "/default_filter_chain/", "/filter_chains/0/", 1)
		add(into, strings.Split(path, "/")[1:], operation["value"])
	})
}

// add puts a value at a path of a tree, as a JSON patch does, and returns the tree.
func add(tree any, path []string, value any) any {
	step, rest := path[0], path[1:]
	switch t := tree.(type) {
	case object:
		if len(rest) > 0 {
			value = add(t[step], rest, value)
		}
		t[step] = value
	case []any:
		n, err := strconv.Atoi(step)
		if err != nil {
			panic(fmt.Sprintf("a patch is at no element: %v", path))
		}
		if len(rest) == 0 {
			return slices.Insert(t, n, value)
		}
		t[n] = add(t[n], rest, value)
	default:
		panic(fmt.Sprintf("a patch leads nowhere: %v", path))
	}
	return tree
}
