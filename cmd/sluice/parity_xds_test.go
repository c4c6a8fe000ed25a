package main

import (
	"context"
	"net"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// The same rules by xDS.
func TestParityByXDS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	snapshots := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	manager := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(manager, server.NewServer(context.Background(), snapshots, nil))
	go func() { _ = manager.Serve(l) }()
	t.Cleanup(manager.Stop)
	snapshot, err := cache.NewSnapshot("1", map[resource.Type][]types.Resource{resource.RateLimitConfigType: {message(t, parityRules), message(t, warmRules)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshots.SetSnapshot(context.Background(), "n1", snapshot); err != nil {
		t.Fatal(err)
	}
	redis := redistest.Start(t)
	for _, mode := range []string{"leasing", "routing", "approx"} {
		t.Run(mode, func(t *testing.T) {
			parityRun{env: []string{
				"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_ID=n1", "CONFIG_GRPC_XDS_SERVER_URL=" + l.Addr().String(),
				"REDIS_URL=" + redis.Addr, "COORDINATION_MODE=" + mode,
			}, routing: mode == "routing", exchanges: parityExchanges}.answer(t)
		})
	}
}

// message is a rule file as xDS pushes it; quota_mode and metadata are fields
// that the published types do not know.
func message(t *testing.T, text string) *rlsconf.RateLimitConfig {
	type descriptor struct {
		Key, Value string
		RateLimit  *struct {
			Unit, Name string
			Requests   uint32 `yaml:"requests_per_unit"`
			Unlimited  bool
			Replaces   []struct{ Name string }
		} `yaml:"rate_limit"`
		Shadow      bool `yaml:"shadow_mode"`
		Quota       bool `yaml:"quota_mode"`
		Metadata    map[string]any
		Algorithm   string
		Descriptors []descriptor
	}
	var file struct {
		Domain      string
		Descriptors []descriptor
	}
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	var convert func([]descriptor) []*rlsconf.RateLimitDescriptor
	convert = func(from []descriptor) (all []*rlsconf.RateLimitDescriptor) {
		for _, d := range from {
			m := &rlsconf.RateLimitDescriptor{Key: d.Key, Value: d.Value, ShadowMode: d.Shadow, Descriptors: convert(d.Descriptors)}
			if l := d.RateLimit; l != nil {
				unit := rls.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(l.Unit)]
				m.RateLimit = &rlsconf.RateLimitPolicy{Unit: rlsconf.RateLimitUnit(unit), RequestsPerUnit: l.Requests, Unlimited: l.Unlimited, Name: l.Name}
				for _, r := range l.Replaces {
					m.RateLimit.Replaces = append(m.RateLimit.Replaces, &rlsconf.RateLimitReplace{Name: r.Name})
				}
			}
			var unknown []byte
			if d.Quota {
				unknown = protowire.AppendVarint(protowire.AppendTag(unknown, 7, protowire.VarintType), 1)
			}
			if d.Metadata != nil {
				s, err := structpb.NewStruct(d.Metadata)
				if err != nil {
					t.Fatal(err)
				}
				body, err := proto.Marshal(s)
				if err != nil {
					t.Fatal(err)
				}
				unknown = protowire.AppendBytes(protowire.AppendTag(unknown, 8, protowire.BytesType), body)
			}
			m.ProtoReflect().SetUnknown(unknown)
			all = append(all, m)
		}
		return all
	}
	return &rlsconf.RateLimitConfig{Name: file.Domain, Domain: file.Domain, Descriptors: convert(file.Descriptors)}
}
