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

// Each endpoint answers as /openapi.json says, also when it refuses; and each page that the debug port lists is
// described.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	const rules = `domain: d
descriptors:
  - {key: five, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: free, rate_limit: {unlimited: true}}
`
	s := newFleet(t, 1, setup{rules: rules}).nodes[0]
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
	seen := map[string]bool{} // paths with statuses
	try := func(method, path, query, body, token string) {
		t.Helper()
		address := s.debug
		if path == "/json" || path == "/healthcheck" {
			address = s.http
		}
		headers := []string{"Content-Type", "application/json", "Authorization", "Bearer " + token}
		answer, text := s.do(method, address+strings.Replace(path, "{domain}", "d", 1)+query, body, headers...)
		seen[path+" "+strconv.Itoa(answer.StatusCode)] = true
		r := &http.Request{Method: method, URL: &url.URL{Scheme: "http", Host: address, Path: path}}
		route := &routers.Route{Spec: spec, Path: path, PathItem: spec.Paths.Value(path), Method: method}
		if route.PathItem == nil || route.PathItem.GetOperation(method) == nil {
			t.Fatalf("%s %s is not described", method, path)
		}
		route.Operation = route.PathItem.GetOperation(method)
		err := openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
			RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, Route: route},
			Options:                &openapi3filter.Options{IncludeResponseStatus: true},
			Status:                 answer.StatusCode, Header: answer.Header, Body: io.NopCloser(strings.NewReader(text)),
		})
		if err != nil {
			t.Errorf("%s %s: %v", method, path, err)
		}
	}
	for range 6 {
		try("POST", "/json", "", request, "")
	}
	try("POST", "/json", "", "{", "")
	try("POST", "/json", "", strings.Repeat(" ", 257<<10), "")
	for path, item := range spec.Paths.Map() {
		if item.Get != nil && path != "/explain" {
			try("GET", path, "", "", "hunter2")
		}
	}
	try("GET", "/explain", "?domain=d&entry=five=x", "", "")
	try("GET", "/explain", "?domain=d", "", "")
	try("GET", "/console/history", "?since=x", "", "")
	for _, path := range []string{"/admin/reset", "/admin/drop"} {
		try("POST", path, "?domain=d&entry=five=x", "", "hunter2")
		try("POST", path, "?domain=d&entry=five=x", "", "wrong")
		try("POST", path, "?domain=d", "", "hunter2")
	}
	try("POST", "/admin/remove", "?node=nobody:6070", "", "hunter2")
	try("POST", "/admin/remove", "?node=nobody:6070", "", "wrong")
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
		try(change.method, override, change.query, change.body, change.token)
	}
	try("GET", "/v1/overrides", "", "", "hunter2")
	try("GET", "/v1/overrides", "?limit=x", "", "hunter2")
	for _, status := range []string{"200", "400", "403", "404", "422"} {
		if !seen[override+" "+status] {
			t.Errorf("%s %s was not seen", override, status)
		}
	}
	for _, must := range []string{"/json 200", "/json 429", "/json 400", "/json 413", "/explain 200", "/explain 400", "/admin/reset 200", "/admin/reset 403", "/admin/drop 400", "/admin/remove 403", "/admin/remove 404"} {
		if !seen[must] {
			t.Errorf("%s was not seen", must)
		}
	}
}
