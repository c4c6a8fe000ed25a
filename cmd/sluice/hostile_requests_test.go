package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
)

// The page of a site whose name was made to point here sees nothing; profiles have a bound.
func TestHostileDebugRequests(t *testing.T) {
	s := serve(t, []string{"DEBUG_ALLOWED_HOSTS=sluice.example.com"})
	get := func(host, path string) int {
		answer, _ := s.do(http.MethodGet, s.debug+path, "", "Host", host)
		return answer.StatusCode
	}
	for host, want := range map[string]int{
		"evil.example:6070": 421, "127.0.0.1.evil.example": 421, "localhost:6070": 200, "[::1]:6070": 200, "10.1.2.3": 200, "sluice-1:6070": 200,
		"sluice.edge.svc.cluster.local:6070": 200, "sluice.example.com": 200, "SLUICE.example.com.:6070": 200,
	} {
		if got := get(host, "/console/state"); got != want {
			t.Errorf("as %s: %d, want %d", host, got, want)
		}
	}
	if got := get("evil.example", "/metrics"); got != 200 {
		t.Errorf("/metrics under any name: %d", got)
	}
	for _, path := range []string{"/debug/pprof/profile?seconds=3600", "/debug/pprof/trace?seconds=1e9", "/debug/pprof/heap?seconds=NaN", "/debug/pprof/heap?seconds=-1"} {
		if got := get("localhost", path); got != 400 {
			t.Errorf("%s: %d", path, got)
		}
	}
}

// An error repeats a line of what came at most.
func TestHostileErrorsAreShort(t *testing.T) {
	s := serve(t, nil)
	long := strings.Repeat("x", 100_000)
	quoted, err := json.Marshal(long + "\n" + long)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{
		long, `{` + string(quoted) + `:1}`, `{"domain":` + long, `{"domain":"d","descriptors":[{"limit":{"unit":` + string(quoted[:100_000]) + `"}}]}`,
		`{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"hitsAddend":"` + long + `"}]}`, strings.Repeat("[", 100_000),
	} {
		code, answer, err := hostile.Post(s.http, body)
		if err != nil || code != 400 || len(answer) > 300 || strings.Count(answer, "\n") > 1 {
			t.Errorf("%.40s...: %d, %d bytes (%v): %.300s", body, code, len(answer), err, answer)
		}
	}
	for _, path := range []string{"/explain?domain=" + long[:10_000] + "&entry=a", "/explain?domain=d&entry=" + "=" + long[:10_000]} {
		if code, answer := s.get(s.debug + path); code != 400 || len(answer) > 300 {
			t.Errorf("%.40s...: %d, %d bytes", path, code, len(answer))
		}
	}
}
