package main

import (
	"path/filepath"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// The same rules by xDS.
func TestParityByXDS(t *testing.T) {
	address, snapshots := managementServer(t)
	push(t, snapshots, "n1", message(t, parityRules))
	redis := redistest.Start(t)
	for _, mode := range []string{"leasing", "routing", "approx"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			additions := filepath.Join(t.TempDir(), "additions.yaml")
			writeFile(t, additions, "rules: [{domain: parity, coordination: {check_timeout: 900ms}}]\n")
			parityRun{env: []string{
				"CONFIG_GRPC_XDS_ADDITIONS=" + additions,
				"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_ID=n1", "CONFIG_GRPC_XDS_SERVER_URL=" + address,
				"REDIS_URL=" + redis.Addr, "COORDINATION_MODE=" + mode,
			}, routing: mode == "routing", store: redis, exchanges: parityExchanges}.answer(t)
		})
	}
}

// message is a rule file as xDS pushes it. The published types lack the fields quota_mode and metadata.
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
