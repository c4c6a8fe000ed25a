package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
)

const peopleRules = `domain: d
descriptors:
  - {key: five, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: tier, value: "g*", descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 50}}]}
  - {key: tier, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]}
  - {key: drift, coordination: {mode: approx, drift_budget: 10%}, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: ban, rate_limit: {unit: day, requests_per_unit: 0}}
`

// hostileValues are values that would be markup, script or worse if anything took them for it.
var hostileValues = []string{
	`<script>document.title='owned'</script>`, `"><img src=x onerror="document.title='owned'">`, `';document.title='owned';//`,
	`</td></table><svg onload=document.title='owned'>`, "{{constructor.constructor('x')()}}", "\u202e\x00evil",
}

// Nothing that a request brings along is markup on any page, nothing on the
// debug port changes anything without the token, and none shows a secret.
func TestDebugPortIsSafe(t *testing.T) {
	redis := redistest.Start(t)
	redis.Do("ACL", "SETUSER", "default", "on", "resetpass", ">hunter9")
	rules := rulesFile(t, peopleRules+"  - {key: v, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 5}}\n  - {key: '<b>k', value: '\"<i>*', rate_limit: {unit: year, requests_per_unit: 5}}\n")
	s := serve(t, []string{"REDIS_URL=redis://:hunter9@" + redis.Addr, "ADMIN_TOKEN=hunter2", "PEER_SECRET=hunter3"}, "--config", rules)
	client := s.overGRPC()
	for _, v := range hostileValues {
		q := asking(descriptor(1, "v", v), descriptor(1, "five", v), descriptor(1, v, v))
		q.Descriptors[2].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_DAY}
		client(q)
		q.Domain = v
		client(q)
	}
	pages := []string{"/", "/console", "/console/console.js", "/console/page.js", "/console/charts.js", "/console/console.css", "/console/state", "/console/history", "/rlconfig", "/stats", "/ring", "/metrics", "/debug/pprof/cmdline"}
	for _, v := range hostileValues {
		pages = append(pages, "/explain?domain=d&entry="+url.QueryEscape("five="+v), "/explain?domain="+url.QueryEscape(v)+"&entry="+url.QueryEscape(v))
	}
	for _, page := range pages {
		r, body := s.do(http.MethodGet, s.debug+page, "")
		kind := r.Header.Get("Content-Type")
		if strings.HasPrefix(kind, "text/html") && page != "/console" {
			t.Errorf("%s is HTML: %s", page, kind)
		}
		if page != "/metrics" && page != "/debug/pprof/cmdline" && r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s may be taken for another type than %s", page, kind)
		}
		if strings.HasPrefix(kind, "application/json") && strings.ContainsAny(body, "<>") {
			t.Errorf("%s has markup in it", page)
		}
		if strings.Contains(body, "hunter") {
			t.Errorf("%s shows a secret", page)
		}
	}
	if _, body := s.get(s.debug + "/console"); strings.Contains(body, "owned") || strings.Contains(body, "http://") || strings.Contains(body, "https://") {
		t.Error("the page is not only its own")
	}
	for _, path := range []string{"/admin/reset", "/admin/drop", "/v1/overrides/d"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			answer, _ := s.do(method, s.debug+path+"?domain=d&entry=five=x", "")
			if answer.StatusCode != http.StatusForbidden && answer.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s without the token: %d", method, path, answer.StatusCode)
			}
		}
	}
}

// The page, as a browser shows it: rules, keys, an explanation, and hostile values as the text that they are.
func TestConsoleInABrowser(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	s := newFleet(t, 1, setup{rules: peopleRules, store: aRedis(t)}).nodes[0]
	for _, v := range hostileValues {
		for range 3 {
			s.post("five", v)
		}
	}
	for range 50 {
		s.post("drift", "busy")
	}
	b.window(390, 844, false)
	b.open("http://" + s.debug + "/console?domain=d&entry=" + url.QueryEscape("five="+hostileValues[0]))
	dom := ""
	s.eventually("the page shows what the node does", func() bool {
		s.post("drift", "busy") // a key that is idle is not shown for long
		dom = b.eval("document.documentElement.outerHTML")
		// A chart's line needs two looks; by then the page may tell of the values that are no text, as of errors.
		return strings.Contains(dom, "d.five") && strings.Contains(dom, "drift=busy") && strings.Contains(dom, "<polyline")
	})
	for _, want := range []string{
		`id="problems"`, "d.drift", "5 per year", "drift=busy", "<polyline", "answers", "Next request: OK", "(this node)",
		"&lt;script&gt;document.title='owned'&lt;/script&gt;", // as text
	} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, bad := range []string{"<title>owned", "onerror=\"document", "<svg onload", "<script>document.title"} {
		if strings.Contains(dom, bad) {
			t.Errorf("the page has %q as markup", bad)
		}
	}
	if t.Failed() {
		t.Logf("%.6000s", dom)
	}
}

// browser is a page in a Chromium.
type browser struct {
	*testing.T
	page context.Context
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		found, _ := exec.LookPath(name)
		path = cmp.Or(path, found)
	}
	if path == "" {
		t.Skip("REPORTED MISSING: there is no Chromium here, and the console was not tried in a browser (make deps installs it where the system has it)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true), chromedp.WSURLReadTimeout(patience))
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	allocated, release := chromedp.NewExecAllocator(ctx, options...)
	there, end := chromedp.NewContext(allocated)
	t.Cleanup(func() {
		_ = chromedp.Cancel(there)
		end()
		release()
		cancel()
	})
	return &browser{T: t, page: there}
}

// run does an action on the page, and returns its value.
func run[T any](b *browser, action chromedp.Action[T]) T {
	b.Helper()
	value, err := chromedp.Run(b.page, action)
	if err != nil {
		b.Fatal(err)
	}
	return value
}

// window sets how wide the page is, and whether its reader prefers it dark.
func (b *browser) window(width, height int, dark bool) {
	b.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	run(b, chromedp.EmulateViewport(int64(width), int64(height)))
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(b.page, emulation.SetEmulatedMedia, media); err != nil {
		b.Fatal(err)
	}
}

func (b *browser) open(url string) {
	b.Helper()
	run(b, chromedp.Navigate(url))
}

// eval is the value of an expression on the page, as text.
func (b *browser) eval(expression string) string {
	b.Helper()
	value, err := chromedp.Run(b.page, chromedp.Evaluate[any](expression))
	if err != nil {
		return fmt.Sprint("exception: ", err)
	}
	return fmt.Sprint(value)
}

// shoot writes the whole page, from top to bottom, into a PNG.
func (b *browser) shoot(file string, width int, dark bool) {
	b.Helper()
	b.window(width, 900, dark)
	b.eval("dispatchEvent(new Event('resize'))")
	if err := os.WriteFile(file, run(b, chromedp.FullScreenshot(100)), 0o600); err != nil {
		b.Fatal(err)
	}
}

const hourlyRules = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: hour, requests_per_unit: 36000}\n"

// envoyStream is a stream of an Envoy.
type envoyStream = rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasClient

func (s *sluice) envoy(name string) envoyStream {
	s.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(s.Context(), rlqs.HolderHeader, name), patience)
	s.Cleanup(cancel)
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(s.dial()).StreamRateLimitQuotas(ctx)
	if err != nil {
		s.Fatal(err)
	}
	return stream
}

// reports has an Envoy report a refused request of each bucket, and returns the answer.
func (s *sluice) reports(stream envoyStream, values ...string) *rlqsv3.RateLimitQuotaResponse {
	s.Helper()
	m := &rlqsv3.RateLimitQuotaUsageReports{Domain: "d"}
	for _, v := range values {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: &rlqsv3.BucketId{Bucket: map[string]string{"k": v}}, NumRequestsDenied: 1,
		})
	}
	sent := stream.Send(m)
	answer, err := stream.Recv()
	if sent != nil || err != nil {
		s.Fatal(sent, err)
	}
	return answer
}

// A node that drains ends its streams, and takes no lease back. Without their leases, Envoys would refuse everything
// until another node answers. That one has a lease for them at once.
func TestEnvoysOfANodeThatLeaves(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, setup{rules: hourlyRules, store: aRedis(t)})
	leased := func(m *rlqsv3.RateLimitQuotaResponse) {
		t.Helper()
		a := m.BucketAction[len(m.BucketAction)-1].GetQuotaAssignmentAction() // the last one counts
		if a.GetRateLimitStrategy().GetTokenBucket().GetMaxTokens() == 0 || a.GetAssignmentTimeToLive().AsDuration() == 0 {
			t.Errorf("the Envoy has no lease: %v", m)
		}
	}
	for _, s := range f.nodes {
		stream := s.envoy("edge")
		leased(s.reports(stream, "v"))
		s.Signal(syscall.SIGTERM)
		m, err := stream.Recv()
		for ; err == nil; m, err = stream.Recv() {
			leased(m)
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ends with %v", err)
		}
	}
}

// The console shows streams as holders: the largest leases and how many there are, with what
// requests brought along hidden, and a name that is markup as text.
func TestConsoleShowsEnvoys(t *testing.T) {
	t.Parallel()
	s := serve(t, []string{"CONSOLE_REDACT=true"}, "--config", rulesFile(t, hourlyRules))
	const name = "<b onload=x>\"edge\""
	values := make([]string, 30)
	for i := range values {
		values[i] = fmt.Sprint("s3cret", i)
	}
	s.reports(s.envoy(name), values...)
	var v console.State
	var body string
	s.eventually("the console shows all", func() bool {
		_, body = s.get(s.debug + "/console/state")
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		return v.Envoys != nil && v.Envoys.Leases == 30
	})
	if e := v.Envoys; e.Streams != 1 || len(e.Held) != 24 || e.Held[0].Name != name || e.Held[0].Charged != 1800 ||
		!strings.HasPrefix(e.Held[0].Account, "hour|d|k=#") {
		t.Errorf("it shows %+v", e)
	}
	if strings.Contains(body, "s3cret") || strings.Contains(body, "<b") {
		t.Errorf("it shows a value, or markup: %s", body)
	}
	// A caller of RLS and the Envoys share a budget.
	_, text := s.get(s.debug + "/explain?domain=d&entry=k=s3cret0")
	if !strings.Contains(text, `"envoys":[{"name":`) || !strings.Contains(text, `"free":34200`) {
		t.Errorf("of an Envoy's account explain says %s", text)
	}
	b := newBrowser(t)
	b.open("http://" + s.debug + "/console")
	s.eventually("the page shows them", func() bool {
		return b.eval(`document.querySelectorAll('#held tbody tr').length`) == "24"
	})
	if cell := b.eval(`document.querySelector('#held tbody td').textContent`); cell != name {
		t.Errorf("the page names the Envoy %q", cell)
	}
	if note := b.eval(`$('envoysnote').textContent`); !strings.HasPrefix(note, "1 streams hold 30 leases;") ||
		!strings.HasSuffix(note, "The largest 24 are shown, 6 more are not.") {
		t.Errorf("the page says %q", note)
	}
}
