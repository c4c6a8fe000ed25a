package check

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

func rulesSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(top + "docs/reference/rules.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// judge is what the schema says of a text; whole says whether it is YAML at all.
func judge(t *testing.T, schema *jsonschema.Schema, text string) (whole bool, err error) {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return false, err
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatal(err)
	}
	return true, schema.Validate(value)
}

// Of the mistakes in cmd/sluice/testdata/mistakes.md, an editor with the schema shows those in the
// names and types of fields; of rules that are good it shows nothing.
func TestRulesSchema(t *testing.T) {
	schema := rulesSchema(t)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	shown := 0
	for _, section := range strings.Split(string(file(t, "cmd/sluice/testdata/mistakes.md")), "\n### ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		for _, m := range blocks.FindAllStringSubmatch(section, -1) {
			whole, err := judge(t, schema, m[1])
			if err != nil {
				shown++
			}
			ofFields := strings.Contains(section, "unknown key") || strings.Contains(section, "must be a ")
			float := strings.Contains(m[1], "1e6") // a whole number for JSON
			if whole && ofFields && err == nil && !float && !strings.Contains(m[1], "rules/edge.yaml") {
				t.Errorf("%s: an editor does not show it", title)
			}
			onlyWarned := !strings.Contains(section, ": error: ") && !strings.Contains(section, "no effect here")
			if onlyWarned && err != nil && !strings.Contains(m[1], "rate_limit:\n") {
				t.Errorf("%s: a server takes it, and the schema says %v", title, err)
			}
		}
	}
	if shown < 20 {
		t.Errorf("an editor shows %d of the mistakes", shown)
	}
	for _, name := range []string{"README.md", "docs/explain/approx.md", "docs/reference/rules.md"} {
		for _, m := range blocks.FindAllStringSubmatch(string(file(t, name)), -1) {
			if !strings.HasPrefix(m[1], "domain:") {
				continue
			}
			if _, err := judge(t, schema, m[1]); err != nil {
				t.Errorf("%s: %v of\n%s", name, err, m[1])
			}
		}
	}
}
