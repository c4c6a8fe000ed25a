package xds

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/ratelimit/config"
)

func TestPushesMeanWhatMessagesSay(t *testing.T) {
	datadriven.RunTest(t, "testdata/pushes.txt", func(t *testing.T, in *datadriven.TestData) string {
		additions, pushed, _ := strings.Cut(in.Input, "\n==\n")
		file := filepath.Join(t.TempDir(), "more.yaml")
		writeFile(t, file, additions)
		out := &strings.Builder{}
		more, err := ReadAdditions(file)
		if err == nil && pushed != "" {
			err = converted(t, out, pushed, more)
		}
		if err != nil {
			fmt.Fprintln(out, err)
		}
		return strings.ReplaceAll(out.String(), file, "FILE")
	})
}

// converted writes what becomes of messages, one a line as JSON: the texts, and the rules that they are.
func converted(t *testing.T, out *strings.Builder, pushed string, more *Additions) error {
	var resources []*anypb.Any
	for line := range strings.SplitSeq(pushed, "\n") {
		var said map[string]any
		m := &rlsconf.RateLimitConfig{}
		if err := json.Unmarshal([]byte(line), &said); err != nil {
			t.Fatal(err)
		}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(line), m); err != nil {
			t.Fatal(err)
		}
		newer(t, m.GetDescriptors(), said["descriptors"])
		body, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		resources = append(resources, body)
	}
	texts, err := textsOf(resources, more, config.DefaultCaps())
	if err != nil {
		return err
	}
	for range 20 { // or a push that changes nothing would be a new one
		again, err := textsOf(resources, more, config.DefaultCaps())
		if err != nil || fmt.Sprint(again) != fmt.Sprint(texts) {
			t.Fatalf("converted twice: %v\n%v\n%v", err, texts, again)
		}
	}
	for _, text := range texts {
		fmt.Fprintf(out, "%s", text.Data)
	}
	rules, _, problems := config.Parse(texts, options())
	if problems != nil {
		return problems
	}
	for _, r := range rules.All() {
		c := r.Coordination
		fmt.Fprintf(out, "=> %s.%s: %s, %s among %d, shadow %t, quota %t, %v\n", r.Domain, r.Path, r.Limit, c.Mode,
			c.MaxNodes, r.Shadow, r.Quota, r.Metadata)
	}
	return nil
}

// newer gives descriptors the fields that the published types lack.
func newer(t *testing.T, all []*rlsconf.RateLimitDescriptor, said any) {
	for i, d := range all {
		of := said.([]any)[i].(map[string]any)
		newer(t, d.GetDescriptors(), of["descriptors"])
		var b []byte
		if of["quota_mode"] != nil {
			b = protowire.AppendVarint(protowire.AppendTag(b, quotaMode, protowire.VarintType), 1)
		}
		if meta, ok := of["metadata"].(map[string]any); ok {
			s, _ := structpb.NewStruct(meta)
			body, err := proto.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			b = protowire.AppendBytes(protowire.AppendTag(b, metadataField, protowire.BytesType), body)
		}
		if of["newest"] != nil {
			b = protowire.AppendVarint(protowire.AppendTag(b, 99, protowire.VarintType), 1)
		}
		d.ProtoReflect().SetUnknown(b)
	}
}
