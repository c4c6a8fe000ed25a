package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
)

// A client that requests explanations without end gets some of them, and takes no store connections from
// claims.
func TestHostileExplain(t *testing.T) {
	s := newFleet(t, 1, setup{rules: peopleRules, store: aRedis(t)}).nodes[0]
	s.post("five", "x")
	answered, refused := 0, 0
	for range 300 {
		r, err := http.Get("http://" + s.debug + "/explain?domain=d&entry=five=x")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		switch {
		case r.StatusCode == http.StatusOK:
			answered++
		case r.StatusCode == http.StatusTooManyRequests && r.Header.Get("Retry-After") != "":
			refused++
		default:
			t.Fatal(r.Status)
		}
	}
	if answered < 40 || refused < 100 {
		t.Errorf("%d of 300 were explained, and %d refused", answered, refused)
	}
	if got := s.post("five", "y"); got != 200 {
		t.Errorf("a claim meanwhile: %d", got)
	}
}

// A token that is guessed too fast is not looked at, whatever it is.
func TestHostileTokens(t *testing.T) {
	s := newFleet(t, 1, setup{rules: peopleRules, env: []string{"LOG_LEVEL=info"}}).nodes[0]
	correct := func(authorization string) int {
		r, err := http.NewRequest(http.MethodPost, "http://"+s.debug+"/admin/drop?domain=d&entry=five=x", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", authorization)
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		return a.StatusCode
	}
	for range 20 {
		if got := correct("Bearer hunter2"); got != http.StatusOK {
			t.Fatalf("the token: %d", got)
		}
	}
	for _, other := range []string{"hunter2", "Basic hunter2", "Bearer", "Bearer  hunter2"} {
		if got := correct(other); got != http.StatusForbidden {
			t.Errorf("Authorization %q: %d", other, got)
		}
	}
	looked := 0
	for i := range 100 {
		if correct("Bearer guess"+strconv.Itoa(i)) == http.StatusForbidden {
			looked++
		}
	}
	if looked > 20 {
		t.Errorf("%d of 100 wrong tokens were looked at", looked)
	}
	if got := correct("Bearer hunter2"); got != http.StatusTooManyRequests {
		t.Errorf("the token, after those: %d", got)
	}
	if n := strings.Count(s.log(), "a correction was refused"); n > 20 {
		t.Errorf("%d lines were logged", n)
	}
}

// The page of a site whose name was made to point here sees nothing; profiles
// have a bound.
func TestHostileDebugRequests(t *testing.T) {
	s := serve(t, []string{"DEBUG_ALLOWED_HOSTS=sluice.example.com"})
	get := func(host, path string) int {
		r, err := http.NewRequest(http.MethodGet, "http://"+s.debug+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		return a.StatusCode
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
		code, answer, _, err := hostile.Post(context.Background(), s.http, body)
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
