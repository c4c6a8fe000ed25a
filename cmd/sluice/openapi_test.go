package main

import (
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// httpCaller asks a node, and compares each answer with the description.
type httpCaller struct {
	*testing.T
	spec *openapi3.T
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
	code := strconv.Itoa(answer.StatusCode)
	c.seen[path+" "+code] = true
	r := &http.Request{Method: method, URL: &url.URL{Scheme: "http", Host: address, Path: path}}
	route := &routers.Route{Spec: c.spec, Path: path, PathItem: c.spec.Paths.Value(path), Method: method}
	if route.PathItem == nil || route.PathItem.GetOperation(method) == nil {
		c.Fatalf("%s %s is not described", method, path)
	}
	route.Operation = route.PathItem.GetOperation(method)
	options := &openapi3filter.Options{IncludeResponseStatus: true}
	err := openapi3filter.ValidateResponse(c.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, Route: route}, Options: options,
		Status: answer.StatusCode, Header: answer.Header, Body: io.NopCloser(strings.NewReader(text)),
	})
	if err != nil {
		c.Errorf("%s %s: %v", method, path, err)
	}
}

// Each endpoint answers as /openapi.json says, also when it refuses; and each page that the debug port lists is
// described.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	s := newFleet(t, 1, setup{rules: peopleRules}).nodes[0]
	for _, kind := range []string{"text/html", "text/css", "text/javascript", "application/octet-stream"} {
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.PlainBodyDecoder)
	}
	_, text := s.get(s.debug + "/openapi.json")
	spec, err := openapi3.NewLoader().LoadFromData([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	_, index := s.get(s.debug + "/")
	for line := range strings.Lines(index) {
		path, _, _ := strings.Cut(line, ":")
		path, _, _ = strings.Cut(path, "?")
		if spec.Paths.Value(path) == nil && path != "/debug/pprof/" {
			t.Errorf("%s is not described", path)
		}
	}
	request := `{"domain": "d", "descriptors": [{"entries": [{"key": "five", "value": "x"}]}]}`
	c := &httpCaller{t, spec, s, map[string]bool{}}
	for range 6 {
		c.try("POST", "/json", "", request, "")
	}
	c.try("POST", "/json", "", "{", "")
	c.try("POST", "/json", "", strings.Repeat(" ", 257<<10), "")
	for path, item := range spec.Paths.Map() {
		if item.Get != nil && path != "/explain" {
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
}
