package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// described is a schema of OpenAPI, as far as ours goes.
type described struct {
	Type       any
	Ref        string `json:"$ref"`
	Properties map[string]described
	Required   []string
	Items      *described
}

type operation struct {
	Responses map[string]struct {
		Content map[string]struct{ Schema described }
		Ref     string `json:"$ref"`
	}
}

// openAPI is what a node says of its endpoints.
type openAPI struct {
	Paths      map[string]map[string]json.RawMessage
	Components struct{ Schemas map[string]described }
}

// fits says where a value is not as described; "": it is.
func (o *openAPI) fits(at string, d described, v any) string {
	if d.Ref != "" {
		d = o.Components.Schemas[d.Ref[strings.LastIndexByte(d.Ref, '/')+1:]]
	}
	kinds := []string{}
	switch t := d.Type.(type) {
	case string:
		kinds = append(kinds, t)
	case []any:
		for _, k := range t {
			kinds = append(kinds, k.(string))
		}
	}
	is := "null"
	switch x := v.(type) {
	case map[string]any:
		is = "object"
		for _, name := range d.Required {
			if _, ok := x[name]; !ok {
				return at + "." + name + " is missing"
			}
		}
		for name, p := range d.Properties {
			if below, ok := x[name]; ok {
				if wrong := o.fits(at+"."+name, p, below); wrong != "" {
					return wrong
				}
			}
		}
	case []any:
		is = "array"
		for _, below := range x {
			if d.Items != nil {
				if wrong := o.fits(at+"[]", *d.Items, below); wrong != "" {
					return wrong
				}
			}
		}
	case string:
		is = "string"
	case bool:
		is = "boolean"
	case float64:
		is = "number"
		if slices.Contains(kinds, "integer") && x == float64(int64(x)) {
			is = "integer"
		}
	}
	if len(kinds) > 0 && !slices.Contains(kinds, is) {
		return at + " is of type " + is
	}
	return ""
}

// httpCaller asks a node, and compares each answer with the description.
type httpCaller struct {
	*testing.T
	openAPI
	node *sluice
	seen map[string]bool // paths with statuses
}

func (c *httpCaller) try(method, path, query, body, token string) {
	c.Helper()
	address := c.node.debug
	if path == "/json" || path == "/healthcheck" {
		address = c.node.http
	}
	headers := []string{"Content-Type", "application/json"}
	if token != "" {
		headers = append(headers, "Authorization", "Bearer "+token)
	}
	answer, text := c.node.do(method, address+strings.Replace(path, "{domain}", "d", 1)+query, body, headers...)
	var op operation
	if err := json.Unmarshal(c.Paths[path][strings.ToLower(method)], &op); err != nil {
		c.Fatalf("%s %s is not described: %v", method, path, err)
	}
	code := strings.Fields(answer.Status)[0]
	said, ok := op.Responses[code]
	if !ok {
		c.Errorf("%s %s answers %s, which is not described", method, path, code)
		return
	}
	c.seen[path+" "+code] = true
	kind, _, _ := strings.Cut(answer.Header.Get("Content-Type"), ";")
	content, ok := said.Content[kind]
	if !ok {
		c.Errorf("%s %s answers %s with %s, and %v are described", method, path, code, kind, said.Content)
		return
	}
	if kind == "application/json" {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil && text != "" {
			c.Errorf("%s %s: %v", method, path, err)
		}
		if wrong := c.fits(path, content.Schema, v); wrong != "" {
			c.Errorf("%s %s answers %s: %s", method, path, code, wrong)
		}
	}
}

// Each endpoint answers as /openapi.json says, also when it refuses; and each page that the debug port lists is
// described.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	s := newFleet(t, 1, setup{rules: peopleRules}).nodes[0]
	var o openAPI
	_, text := s.get(s.debug + "/openapi.json")
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	_, index := s.get(s.debug + "/")
	for line := range strings.Lines(index) {
		path, _, _ := strings.Cut(line, ":")
		path, _, _ = strings.Cut(path, "?")
		if _, ok := o.Paths[path]; !ok && path != "/debug/pprof/" {
			t.Errorf("%s is not described", path)
		}
	}
	request := `{"domain": "d", "descriptors": [{"entries": [{"key": "five", "value": "x"}]}]}`
	c := &httpCaller{t, o, s, map[string]bool{}}
	for range 6 {
		c.try("POST", "/json", "", request, "")
	}
	c.try("POST", "/json", "", "{", "")
	c.try("POST", "/json", "", strings.Repeat(" ", 257<<10), "")
	for path, methods := range o.Paths {
		if _, ok := methods["get"]; ok && path != "/explain" {
			c.try("GET", path, "", "", "hunter2")
		}
	}
	c.try("GET", "/explain", "?domain=d&entry=five=x", "", "")
	c.try("GET", "/explain", "?domain=d", "", "")
	c.try("GET", "/console/history", "?since=x", "", "")
	for _, path := range []string{"/admin/reset", "/admin/drop"} {
		c.try("POST", path, "?domain=d&entry=five=x", "", "hunter2")
		c.try("POST", path, "?domain=d&entry=five=x", "", "wrong")
		c.try("POST", path, "?domain=d", "", "hunter2")
	}
	c.try("POST", "/admin/remove", "?node=nobody:6070", "", "hunter2")
	c.try("POST", "/admin/remove", "?node=nobody:6070", "", "wrong")
	const override = "/v1/overrides/{domain}"
	for _, change := range []struct{ method, query, body, token string }{
		{"GET", "?five=x", "", "hunter2"},
		{"PUT", "?five=x", `{"limit": "unlimited", "reason": "why", "expires": "1h"}`, "hunter2"},
		{"GET", "?five=x", "", "hunter2"},
		{"PUT", "?five=y", `{"limit": 7}`, "hunter2"},
		{"GET", "", "", "hunter2"},
		{"PUT", "?five=x", "{", "hunter2"},
		{"PUT", "?free=x", `{"limit": 7}`, "hunter2"},
		{"PUT", "?five=x", `{"limit": 7}`, "wrong"},
		{"DELETE", "?five=x", "", "hunter2"},
	} {
		c.try(change.method, override, change.query, change.body, change.token)
	}
	c.try("GET", "/v1/overrides", "", "", "hunter2")
	c.try("GET", "/v1/overrides", "?limit=x", "", "hunter2")
	for _, status := range []string{"200", "400", "403", "404", "422"} {
		if !c.seen[override+" "+status] {
			t.Errorf("%s %s was not seen", override, status)
		}
	}
	for _, must := range []string{"/json 200", "/json 429", "/json 400", "/json 413", "/explain 200", "/explain 400", "/admin/reset 200", "/admin/reset 403", "/admin/drop 400", "/admin/remove 403", "/admin/remove 404"} {
		if !c.seen[must] {
			t.Errorf("%s was not seen", must)
		}
	}
}

// By default, the debug port is for this machine only. With another host, keys are marks.
func TestDebugPortIsForThisMachine(t *testing.T) {
	for host, want := range map[string]bool{"127.0.0.1": false, "::1": false, "[::1]": false, "localhost": false, "0.0.0.0": true, "": true, "10.1.2.3": true} {
		if got := (&flags{DebugHost: host}).redacts(); got != want {
			t.Errorf("on %q values are hidden: %v", host, got)
		}
	}
	shown := false
	if (&flags{DebugHost: "0.0.0.0", ConsoleRedact: &shown}).redacts() {
		t.Error("CONSOLE_REDACT=false has no effect")
	}
	rules := rulesFile(t, peopleRules)
	s := start(t, command([]string{"DRAIN_TIME=0s"}, "serve", "--config", rules, "--port=0", "--grpc-port=0", "--debug-port=0"))
	if !strings.HasPrefix(s.debug, "127.0.0.1:") {
		t.Errorf("the debug port is on %s", s.debug)
	}
	s = serve(t, []string{"DRAIN_TIME=0s", "DEBUG_HOST=0.0.0.0"}, "--config", rules)
	s.post("five", "s3cret")
	_, port, _ := strings.Cut(s.debug[strings.LastIndexByte(s.debug, ']')+1:], ":")
	for _, page := range []string{"/console/state", "/console/history", "/ring"} {
		if _, text := s.get("127.0.0.1:" + port + page); strings.Contains(text, "s3cret") {
			t.Errorf("on all addresses %s shows\n%.3000s", page, text)
		}
	}
	if _, text := s.get("127.0.0.1:" + port + "/console/state"); !strings.Contains(text, "year|d|five=#") {
		t.Errorf("the key is not shown at all:\n%.3000s", text)
	}
}
