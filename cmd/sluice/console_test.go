package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	goflag "flag"
	"fmt"
	"image/png"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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
	rules := rulesFile(t, `domain: d
descriptors:
  - {key: five, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: v, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: '<b>k', value: '"<i>*', rate_limit: {unit: year, requests_per_unit: 5}}
`)
	s := serve(t, []string{"REDIS_URL=redis://:hunter9@" + redis.Addr, "ADMIN_TOKEN=hunter2", "PEER_SECRET=hunter3"}, "--config", rules)
	for _, v := range hostileValues {
		q := asking(descriptor(1, "v", v), descriptor(1, "five", v), descriptor(1, v, v))
		q.Descriptors[2].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_DAY}
		s.overGRPC(q)
		q.Domain = v
		s.overGRPC(q)
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

var screens = goflag.String("screens", "", "a directory for the pictures of the console, of all scenes, at all widths, light and dark; unset: a few, that are thrown away")

// The console leads with what is wrong, and what is old does not look new: under
// load, with a node that hangs, a bad file, and a Redis that hangs. What requests bring along is shown as the text that it is.
func TestConsoleScreens(t *testing.T) {
	t.Parallel()
	const rules = `domain: d
descriptors:
  - {key: api_key, coordination: {mode: approx, drift_budget: 40%, max_nodes: 4, check_timeout: 0s}, rate_limit: {unit: second, requests_per_unit: 20}}
  - {key: tenant, coordination: {on_store_failure: open}, rate_limit: {unit: second, requests_per_unit: 100}}
  - {key: invoice, coordination: {on_store_failure: closed}, rate_limit: {unit: day, requests_per_unit: 100}}
`
	all := *screens != "" // scenes
	b := newBrowser(t)
	f := newFleet(t, 3, setup{rules: rules, store: aRedis(t)})
	// loads has a node decide until the test ends.
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(cancel)
	loads := func(n *sluice, pause time.Duration, of func(i int) (key, value string)) {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key, value := of(i)
				_, _ = n.send(asking(descriptor(1, key, value)))
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	for n, node := range f.nodes {
		loads(node, 10*time.Millisecond, func(i int) (key, value string) {
			if i%20 == 0 {
				return "invoice", hostileValues[i/20%len(hostileValues)]
			}
			return []string{"api_key", "tenant", "invoice"}[i%3], fmt.Sprint("key-", (i/3+n)%4)
		})
	}
	first := f.nodes[0]
	page := "http://" + first.debug + "/console"
	b.window(1280, 900, false)
	b.open(page + "?domain=d&entry=" + url.QueryEscape("invoice="+hostileValues[0]))
	b.shows("under load", "d.api_key", "20 per second", "(this node)", "3 of 3 nodes respond", "Over-admission of the worst key", "Next request: ")
	const line = "document.querySelector('#lead polyline') && document.querySelectorAll('#lead polyline')[0].getAttribute('points').split(' ').length > 4"
	b.eventually("charts have a line", line)
	dom := b.eval("document.documentElement.outerHTML")
	if !strings.Contains(dom, "&lt;script&gt;document.title='owned'&lt;/script&gt;") {
		t.Errorf("the page does not show a hostile value as text: %.6000s", dom)
	}
	for _, bad := range []string{"<title>owned", "onerror=\"document", "<svg onload", "<script>document.title"} {
		if strings.Contains(dom, bad) {
			t.Errorf("the page has %q as markup: %.6000s", bad, dom)
		}
	}
	b.open(page) // again: what was drawn is still there
	b.eventually("a page that is opened anew has the past", line)
	const names = "[...document.querySelectorAll('#rules tbody tr')].map((r) => r.cells[0].innerText).join()"
	const seen = "document.querySelector('#rules tbody tr').cells[4].innerText + document.querySelector('#cards').innerText"
	order, figures := b.eval(names), b.eval(seen)
	b.eventually("figures change", seen+" !== "+fmt.Sprintf("%q", figures))
	if now := b.eval(names); now != order || strings.Count(order, ",") != 2 {
		t.Errorf("the rules were in the order %s, and are in the order %s", order, now)
	}
	b.pictures("load")

	if all {
		last := f.nodes[2]
		last.Signal(syscall.SIGSTOP)
		_, port, _ := strings.Cut(last.debug, ":")
		b.shows("a node hangs", "1 of 3 nodes are silent", "SILENT, last seen")
		b.eventually("the node that hangs is greyed out", "[...document.querySelectorAll('#nodes tr.gone')].some((r) => r.innerText.includes(':"+port+"'))")
		b.pictures("node-stopped")
		last.Signal(syscall.SIGCONT)
		b.shows("it goes on", "3 of 3 nodes respond")
	}

	writeFile(t, f.file, strings.Replace(rules, "unit: second", "unit: fortnight", 1))
	b.shows("a bad file", "The current rules are bad", "fortnight")
	b.pictures("bad-file")
	writeFile(t, f.file, rules)
	b.eventually("it is mended", "!document.body.innerText.includes('The current rules are bad')")

	f.redis.Signal(syscall.SIGSTOP)
	b.shows("Redis hangs", "The store has not answered for", "decisions a second are made without the store", "As of ", "tenant (open)")
	b.pictures("redis-stopped")
	f.redis.Signal(syscall.SIGCONT)
	b.shows("Redis is back", "3 of 3 nodes respond")
	b.eventually("the store answers", "!document.body.innerText.includes('The store has not answered for')")
	if text := b.eval("document.body.innerText"); strings.Contains(strings.ToLower(text), "more was admitted than is declared") {
		t.Errorf("what on_store_failure admitted is shown as a broken bound:\n%.2000s", text)
	}

	first.Signal(syscall.SIGSTOP)
	b.shows("this node hangs", "This node does not answer", "Last seen at")
	if opacity := b.eval("getComputedStyle(document.querySelector('#cards')).opacity"); opacity == "1" {
		t.Error("what a node said that does not answer any more looks new")
	}
	b.pictures("this-node-stopped")
	first.Signal(syscall.SIGCONT)
	b.shows("this node goes on", "d.api_key")
	b.eventually("it is shown as it is now", "document.body.className === ''")
	if !all {
		return
	}

	f.redis.Kill()
	f.redis.Run()
	b.shows("Redis lost its data", "The store lost its data, in the last quarter of an hour")
	b.pictures("data-lost")

	small := f.join("MAX_KEYS=64")
	small.untilHealthy()
	b.open("http://" + small.debug + "/console")
	loads(small, 0, func(i int) (key, value string) { return "invoice", fmt.Sprint("many-", i%500) })
	b.shows("a full table", "The table of keys is full")
	b.pictures("table-full")
}

// eventually waits for an expression on the page to be true.
func (b *browser) eventually(what, expression string) {
	b.Helper()
	if !becomes(func() bool {
		time.Sleep(50 * time.Millisecond) // a look costs Chromium as much as it costs this test
		return b.eval("Boolean("+expression+")") == "true"
	}) {
		b.Errorf("%s: not within %v:\n%.2000s", what, patience, b.eval("document.body.innerText"))
	}
}

// shows waits until the page's text has all of these.
func (b *browser) shows(what string, want ...string) {
	b.Helper()
	list, err := json.Marshal(want)
	if err != nil {
		b.Fatal(err)
	}
	b.eventually(fmt.Sprintf("%s: %q", what, want), string(list)+".every((w) => document.body.innerText.includes(w))")
}

// pictures takes the page at all widths, light and dark, or two of these, and looks whether it fits.
func (b *browser) pictures(scene string) {
	b.Helper()
	dir := cmp.Or(*screens, b.TempDir())
	for _, width := range []int{1280, 768, 400} {
		for scheme, dark := range map[string]bool{"light": false, "dark": true} {
			if *screens == "" && (dark != (width == 400) || width == 768) { // two of six
				continue
			}
			name := filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", scene, width, scheme))
			b.window(width, 900, dark)
			b.eventually("it is folded on a phone", fmt.Sprintf("[...document.querySelectorAll('details.section')].every((d) => d.open === %t)", width > 640))
			b.eval("dispatchEvent(new Event('resize'))")
			shot := run(b, chromedp.FullScreenshot(100)) // from top to bottom
			if err := os.WriteFile(name, shot, 0o600); err != nil {
				b.Fatal(err)
			}
			if wide := b.eval("document.documentElement.scrollWidth"); wide != fmt.Sprint(width) {
				b.Errorf("%s: at %d pixels the page is %s wide: it does not fit", scene, width, wide)
			}
			high, _ := strconv.Atoi(b.eval("document.documentElement.scrollHeight"))
			if width == 400 && (high == 0 || high > 5*844) {
				b.Errorf("%s: on a phone the page has %d pixels, more than five screens of 844", scene, high)
			}
			picture, err := png.DecodeConfig(bytes.NewReader(shot))
			if err != nil || picture.Width != width || picture.Height < 900 {
				b.Errorf("%s is %d by %d: %v", name, picture.Width, picture.Height, err)
			}
		}
	}
	b.window(1280, 900, false)
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
