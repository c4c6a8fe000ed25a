package config

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The schema has the fields that files may have, and no other; and what is published is what is printed. That it judges
// files as a check does, deploy/check tests with a library for schemas.
func TestSchemaHasEveryField(t *testing.T) {
	published, err := os.ReadFile("../../docs/reference/rules.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(Schema()), string(published)); diff != "" {
		t.Errorf("sluice check --schema > docs/reference/rules.schema.json: -printed +published\n%s", diff)
	}
	type part struct {
		Properties  map[string]*part
		Items       *part
		Definitions map[string]*part
	}
	var file part
	if err := json.Unmarshal(Schema(), &file); err != nil {
		t.Fatal(err)
	}
	names := func(p *part) []string { return slices.Sorted(maps.Keys(p.Properties)) }
	descriptor, coordination := file.Definitions["descriptor"], file.Definitions["coordination"]
	limit := descriptor.Properties["rate_limit"]
	for what, c := range map[string]struct{ got, want []string }{
		"a file":       {names(&file), fileFields.names()},
		"a descriptor": {names(descriptor), descriptorFields.names()},
		"a limit":      {names(limit), limitFields.names()},
		"a hold":       {names(descriptor.Properties["hold"]), holdFields.names()},
		"billing":      {names(limit.Properties["billing"]), billingFields.names()},
		"replaces":     {names(limit.Properties["replaces"].Items), replacesFields.names()},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s: -fields +schema\n%s", what, diff)
		}
	}
	var fields []string
	for _, name := range ratelimit.CoordinationFields {
		of, name, lease := strings.Cut(name, ".")
		at := coordination.Properties[of]
		if lease && at != nil {
			at = at.Properties[name]
		}
		if at == nil {
			t.Errorf("the schema has no %s.%s", of, name)
		}
		if !slices.Contains(fields, of) {
			fields = append(fields, of)
		}
	}
	if len(fields) != len(coordination.Properties) {
		t.Errorf("coordination has %v, and the schema %v", fields, names(coordination))
	}
}
