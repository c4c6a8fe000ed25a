package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
)

// mostGrowth is how much more memory than a quiet process any attack may cost.
const mostGrowth = 256

// memory is what the process has (VmRSS) or had at most (VmHWM), in MB.
func (s *sluice) memory(what string) int {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.Fatalf("the process has ended: %v\n%s", err, s.log())
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, what+":"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				s.Fatal(err)
			}
			return kb / 1024
		}
	}
	s.Fatalf("no %s in /proc: %s", what, text)
	return 0
}

// honest asks 200 times a second, over a connection of its own, until it is
// stopped. It returns how long answers took, and how many calls had none.
func (s *sluice) honest() (stop func() (took []time.Duration, failed int)) {
	client := rls.NewRateLimitServiceClient(s.dial())
	q := hostileRequest(1)
	if _, err := client.ShouldRateLimit(context.Background(), q); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var took []time.Duration
	failed := 0
	var calls sync.WaitGroup
	calls.Go(func() {
		every(ctx, 5*time.Millisecond, func() {
			calls.Go(func() {
				begun := time.Now()
				bounded, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				_, err := client.ShouldRateLimit(bounded, q)
				mu.Lock()
				defer mu.Unlock()
				if took = append(took, time.Since(begun)); err != nil {
					failed++
				}
			})
		})
	})
	return func() ([]time.Duration, int) {
		cancel()
		calls.Wait()
		slices.Sort(took)
		return took, failed
	}
}

// hostileRequest has n descriptors that rules(...) limits.
func hostileRequest(n int) *rls.RateLimitRequest {
	q := &rls.RateLimitRequest{Domain: "d"}
	for i := range n {
		q.Descriptors = append(q.Descriptors, &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: "k", Value: strconv.Itoa(i)}}})
	}
	return q
}

// Each row of the attacks on the ports, at the load that once ended the process
// or made it grow by more than half a gigabyte: now it grows by less than 256
// MB, goes on, and answers who asks in good order.
func TestHostilePorts(t *testing.T) {
	t.Parallel()
	many, err := proto.Marshal(hostileRequest(1000))
	if err != nil {
		t.Fatal(err)
	}
	bg := context.Background()
	for _, row := range []struct {
		name   string
		attack func(s *sluice) error
	}{
		{"headers that unpack to 16 MB", func(s *sluice) error { _, err := hostile.PackedHeaders(s.rpc, 370); return err }},
		{"unfinished messages of 4 MB", func(s *sluice) error { return hostile.Unfinished(s.rpc, 700, 4<<20, 16<<10, time.Second) }},
		{"unfinished messages of 256 KB", func(s *sluice) error { return hostile.Unfinished(s.rpc, 1000, 256<<10, 16<<10, time.Second) }},
		{"unfinished messages in frames of a byte", func(s *sluice) error { return hostile.Unfinished(s.rpc, 150, 60<<10, 1, time.Second) }},
		{"replies nobody reads", func(s *sluice) error { _, err := hostile.Unread(s.rpc, many, 2*time.Second); return err }},
		{"replies without a window", func(s *sluice) error { _, err := hostile.Windowless(s.rpc, many, 2*time.Second); return err }},
		{"gzip bombs", func(s *sluice) error { return hostile.Bombs(s.rpc, 128, time.Second) }},
		{"6000 silent connections", func(s *sluice) error {
			callers, done, err := hostile.Silent(s.rpc, 6000)
			defer done()
			if open := s.count(callers); open > 4096 {
				s.Errorf("%d connections are open, and 4096 may be", open)
			}
			return err
		}},
		{"4 MB of {} at once", func(s *sluice) error {
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() { _, _, _, _ = hostile.Post(bg, s.http, hostile.Empties(4<<20)) })
			}
			all.Wait()
			return nil
		}},
		{"256 KB of {} at once", func(s *sluice) error {
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() { _, _, _, _ = hostile.Post(bg, s.http, hostile.Empties(250<<10)) })
			}
			all.Wait()
			return nil
		}},
		{"300 bodies of 3.9 MB held open", func(s *sluice) error {
			stop, err := hostile.HalfBodies(s.http, 300, 39<<20/10)
			stop()
			return err
		}},
		{"1000 bodies of 255 KB held open", func(s *sluice) error {
			stop, err := hostile.HalfBodies(s.http, 1000, 255<<10)
			defer stop()
			if got := s.post("k", "x"); got != 200 {
				s.Errorf("/json meanwhile: %d", got)
			}
			return err
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			file := t.TempDir() + "/rules.yaml"
			writeFile(t, file, rules(1<<30))
			s := serve(t, nil, "--config", file)
			stop := s.honest()
			quiet := s.memory("VmRSS")
			err := row.attack(s)
			took, failed := stop()
			peak := s.memory("VmHWM")
			p99 := took[len(took)*99/100]
			t.Logf("%d -> %d MB; honest calls: %d, failed %d, p99 %v; attack: %v", quiet, peak, len(took), failed, p99.Round(time.Millisecond), err)
			if peak-quiet > mostGrowth {
				t.Errorf("it grew from %d to %d MB", quiet, peak)
			}
			if failed > 0 {
				t.Errorf("%d of %d honest calls had no answer", failed, len(took))
			}
			if got := s.post("k", "after"); got != 200 {
				t.Errorf("after it: %d", got)
			}
		})
	}
}

// count is how many of the connections the server has not ended.
func (s *sluice) count(callers []*hostile.Caller) (open int) {
	s.Helper()
	count := func() int {
		open = 0
		for _, c := range callers {
			select {
			case <-c.Ended():
			default:
				open++
			}
		}
		return open
	}
	s.eventually("connections beyond the bound are closed", func() bool { return count() <= 4096 })
	return open
}

// Whoever asks for explanations without end gets some of them, and takes none of
// the store's connections from claims.
func TestHostileExplain(t *testing.T) {
	redis := redistest.Start(t)
	s := peopleNodes(t, 1, redis.Addr)[0]
	s.post("five", "x")
	client := redis.Client()
	defer client.Close()
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
	s := peopleNodes(t, 1, "")[0]
	correct := func(token string) int {
		r, err := http.NewRequest(http.MethodPost, "http://"+s.debug+"/admin/drop?domain=d&entry=five=x", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		return a.StatusCode
	}
	for range 20 {
		if got := correct("hunter2"); got != http.StatusOK {
			t.Fatalf("the token: %d", got)
		}
	}
	looked := 0
	for i := range 100 {
		if correct("guess"+strconv.Itoa(i)) == http.StatusForbidden {
			looked++
		}
	}
	if looked < 5 || looked > 20 {
		t.Errorf("%d of 100 wrong tokens were looked at", looked)
	}
	if got := correct("hunter2"); got != http.StatusTooManyRequests {
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
	off := serve(t, []string{"DEBUG_PPROF=off"})
	if code, body := off.get(off.debug + "/debug/pprof/cmdline"); code != 403 || !strings.Contains(body, "DEBUG_PPROF") {
		t.Errorf("%d %s", code, body)
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
