package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	goflag "flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

var (
	playAll   = goflag.Bool("troubles", false, "play every trouble of the alerts; unset: two of them, 60 times as fast")
	speed     = goflag.Float64("speed", 5, "with -troubles: by what the durations of alerts.yaml and alertmanager.yml are divided; 1 is real time")
	quietTime = goflag.Duration("quiet", 0, "with -troubles: how long the demo's load has no page; 0: an hour of the alerts, divided by the speed")
)

// page is one alert in a notification that Alertmanager sent to the receiver page.
type page struct {
	fleet, alert, status, summary, runbook string
	at                                     time.Time
}

// pager is a Prometheus that scrapes fleets, and an Alertmanager that pages. Both run the shipped files. Where speed is
// not 1, each duration in these is divided by it, and so are Prometheus's intervals.
type pager struct {
	*testing.T
	speed      float64
	dir        string // of the targets
	prometheus string
	mu         sync.Mutex
	pages      []page // guarded by mu
}

// scaled is a duration of the alerts, in the time of this run.
func (p *pager) scaled(d time.Duration) time.Duration { return time.Duration(float64(d) / p.speed) }

var ruleTimes = regexp.MustCompile(`(\[|for: |group_wait: |group_interval: |keep_firing_for: )(\d+[smh])\b`)

// scale divides the durations of a file.
func (p *pager) scale(text string) string {
	return ruleTimes.ReplaceAllStringFunc(text, func(found string) string {
		m := ruleTimes.FindStringSubmatch(found)
		d, err := time.ParseDuration(m[2])
		if err != nil {
			p.Fatal(err)
		}
		return fmt.Sprint(m[1], p.scaled(d).Milliseconds(), "ms")
	})
}

func newPager(t *testing.T, speed float64) *pager {
	p := &pager{T: t, speed: speed, dir: t.TempDir()}
	hook := httptest.NewServer(http.HandlerFunc(p.receive))
	t.Cleanup(hook.Close)
	routes := p.scale(strings.Replace(read(t, "deploy/prometheus/alertmanager.yml"), "- name: page\n",
		"- name: page\n    webhook_configs: [{url: "+strconv.Quote(hook.URL)+"}]\n", 1))
	if !strings.Contains(routes, hook.URL) {
		t.Fatal("alertmanager.yml has no receiver page")
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "alerts.yaml"), p.scale(read(t, "deploy/prometheus/alerts.yaml")))
	writeFile(t, filepath.Join(dir, "alertmanager.yml"), routes)
	alertmanager := runWeb(t, alertmanagerProgram(t), "--config.file="+filepath.Join(dir, "alertmanager.yml"),
		"--storage.path="+filepath.Join(dir, "alertmanager"), "--cluster.listen-address=")
	interval := max(200*time.Millisecond, p.scaled(5*time.Second)).Milliseconds()
	writeFile(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf(`global: {scrape_interval: %dms, scrape_timeout: %dms, evaluation_interval: %dms}
rule_files: [alerts.yaml]
alerting: {alertmanagers: [{static_configs: [{targets: [%q]}]}]}
scrape_configs: [{job_name: sluice, file_sd_configs: [{files: [%q]}]}]
`, interval, interval, interval, alertmanager, filepath.Join(p.dir, "*.json")))
	p.prometheus = runWeb(t, tool(t, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"))
	return p
}

// alertmanagerProgram has another name in Debian.
func alertmanagerProgram(t *testing.T) string {
	if path, err := exec.LookPath("alertmanager"); err == nil {
		return path
	}
	return tool(t, "prometheus-alertmanager")
}

// receive books a notification.
func (p *pager) receive(_ http.ResponseWriter, r *http.Request) {
	var note struct {
		Alerts []struct {
			Status              string
			Labels, Annotations map[string]string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&note); err != nil {
		p.Errorf("Alertmanager sent something else: %v", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range note.Alerts {
		p.pages = append(p.pages, page{a.Labels["namespace"], a.Labels["alertname"], a.Status, a.Annotations["summary"], a.Annotations["runbook_url"], time.Now()})
	}
}

// sent are the pages of a fleet so far.
func (p *pager) sent(fleet string) (of []page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, page := range p.pages {
		if page.fleet == fleet {
			of = append(of, page)
		}
	}
	return of
}

// scrape has Prometheus scrape these debug ports as one fleet, and no others.
func (p *pager) scrape(fleet string, targets ...string) {
	text, err := json.Marshal([]map[string]any{{"targets": targets, "labels": map[string]string{"namespace": fleet}}})
	if err != nil {
		p.Fatal(err)
	}
	name := filepath.Join(p.dir, fleet)
	writeFile(p.T, name, string(text))
	if err := os.Rename(name, name+".json"); err != nil { // Prometheus must not read half of it
		p.Fatal(err)
	}
}

// firing tells whether an alert of a fleet fires, if it pages or not.
func (p *pager) firing(fleet, alert string) bool {
	return query(p.T, p.prometheus, fmt.Sprintf(`ALERTS{alertstate="firing",namespace=%q,alertname=%q}`, fleet, alert)) > 0
}

// trouble is what happens to a fleet, and the alert that has to page.
type trouble struct {
	name   string
	env    []string
	store  func(t *testing.T) storeServer // nil: a Redis
	begin  func(f *troubled)
	end    func(f *troubled)
	alert  string        // that pages; empty: none may
	or     string        // one that is right, too
	within time.Duration // from begin to the page: the range of the expression, "for", group_wait, and a minute for scrapes
	fires  string        // an alert that fires without a page
	lasts  time.Duration
	hits   uint64 // of each request
}

// In the time of the alerts.
const (
	calmTime  = 2 * time.Minute
	afterTime = 12 * time.Minute // the longest range, and the time between two notifications, are over
)

// slowStore is a Redis behind a proxy.
type slowStore struct {
	*redistest.Server
	proxy *redistest.Proxy
}

func (s slowStore) URL() string { return "redis://" + s.proxy.Addr }

func startSlowStore(t *testing.T) storeServer {
	server := redistest.Start(t)
	return slowStore{server, redistest.NewProxy(t, server.Addr)}
}

// steppedStore is a Redis whose machine's clock a test sets.
type steppedStore struct {
	*redistest.Server
	step func(time.Duration)
}

func startSteppedStore(t *testing.T) storeServer {
	server, step := redistest.StartStepped(t)
	return steppedStore{server, step}
}

func delays(d time.Duration) func(*troubled) {
	return func(f *troubled) { f.store.(slowStore).proxy.Delay(d) }
}

func signals(s syscall.Signal) func(*troubled) { return func(f *troubled) { f.store.Signal(s) } }

// invented is a demand for keys that come once.
func invented(n int) (key, value string) { return "tenant", fmt.Sprint("invented-", n) }

// oneKey is more than the limit of 30 a second allows.
func oneKey(int) (key, value string) { return "api_key", "key-0" }

var troubles = []trouble{
	{
		name: "outage", lasts: 10 * time.Minute, alert: "SluiceStoreBreakerOpen", within: 3 * time.Minute,
		begin: signals(syscall.SIGSTOP), end: signals(syscall.SIGCONT),
	},
	{
		name: "bad-rules", lasts: 5 * time.Minute, alert: "SluiceConfigRejected", within: 3 * time.Minute,
		begin: func(f *troubled) {
			writeFile(f.T, f.file, "domain: d\ndescriptors:\n- {key: tenant, rate_limit: {unit: fortnight}}\n")
		},
		end: func(f *troubled) { writeFile(f.T, f.file, troubledRules) },
	},
	{
		name: "empty-restart", lasts: 3 * time.Minute, alert: "SluiceLedgerLost", within: 2 * time.Minute,
		begin: func(f *troubled) { f.store.Kill(); f.store.Run() },
	},
	{
		name: "full-table", lasts: 13 * time.Minute, alert: "SluiceTableFull", within: 12 * time.Minute, env: []string{"MAX_KEYS=32"},
		begin: func(f *troubled) { f.asks(invented) }, end: func(f *troubled) { f.asks(usualDemand) },
	},
	{
		name: "dead-node", lasts: 5 * time.Minute, alert: "SluiceNodeDown", within: 4 * time.Minute,
		begin: func(f *troubled) { _ = f.nodes[2].cmd.Process.Kill() }, end: func(f *troubled) { f.restart(2) },
	},
	{
		name: "slow-redis", lasts: 17 * time.Minute, alert: "SluiceSlow", within: 16*time.Minute + 30*time.Second, store: startSlowStore,
		or:    "SluiceFallbackActive", // where the machine makes more of it than store_deadline
		begin: delays(12 * time.Millisecond), end: delays(0),
	},
	{
		name: "late-redis", lasts: 17 * time.Minute, alert: "SluiceFallbackActive", within: 9 * time.Minute, store: startSlowStore,
		begin: delays(40 * time.Millisecond), end: delays(0),
	},
	{
		name: "drift", lasts: 5 * time.Minute, hits: 2, fires: "SluiceDriftBudgetNearlyUsed",
		begin: func(f *troubled) { f.asks(oneKey) }, end: func(f *troubled) { f.asks(usualDemand) },
	},
	{
		name: "clock-step", lasts: 3 * time.Minute, alert: "SluiceStoreClockStepped", within: 2 * time.Minute, store: startSteppedStore,
		begin: func(f *troubled) { f.store.(steppedStore).step(5 * time.Second) },
	},
	{name: "rollout", env: []string{"DRAIN_TIME=1s"}, begin: rollOut},
}

//go:embed lab/demo.yaml
var demoYAML string

// troubledRules are the demo's, with a limit that these fleets can reach.
var troubledRules = strings.NewReplacer("domain: edge", "domain: d", "requests_per_unit: 100}", "requests_per_unit: 30}", "drift_budget: 6%", "drift_budget: 20%").Replace(demoYAML)

// rollOut replaces one node after the other, with other rules.
func rollOut(f *troubled) {
	f.file = filepath.Join(f.TempDir(), "rules.yaml")
	writeFile(f.T, f.file, strings.Replace(troubledRules, "requests_per_unit: 3000", "requests_per_unit: 3100", 1))
	for i := range f.nodes {
		f.restart(i)
		time.Sleep(f.pager.scaled(30 * time.Second)) // the rollout takes its time
	}
}

// Each trouble of a fleet is one page, within its time, and it is resolved when the trouble is over. The demo's
// load, a rollout and a drift budget that is nearly used do not page.
func TestTroublesPage(t *testing.T) {
	t.Parallel()
	played, fast := troubles[:2], 60.0
	if *playAll {
		played, fast, commandTime = troubles, *speed, 3*time.Hour
	}
	p := newPager(t, fast)
	t.Run("fleets", func(t *testing.T) {
		if *playAll {
			t.Run("demo", func(t *testing.T) {
				t.Parallel()
				p.demo(t)
			})
		}
		for _, tr := range played {
			t.Run(tr.name, func(t *testing.T) {
				t.Parallel()
				newTroubled(t, p, &tr).play(&tr, !*playAll)
			})
		}
	})
}

// play has the trouble happen and end, and judges the pages. brief ends it with its page, and is over when that is
// resolved.
func (f *troubled) play(tr *trouble, brief bool) {
	f.wait(calmTime, nil)
	began := time.Now()
	tr.begin(f)
	last := func(status string) func() bool {
		return func() bool {
			sent := f.pager.sent(f.name)
			return brief && len(sent) > 0 && sent[len(sent)-1].status == status
		}
	}
	f.wait(tr.lasts, last("firing"))
	if tr.fires != "" && !f.pager.firing(f.name, tr.fires) {
		f.Errorf("%s does not fire", tr.fires)
	}
	if tr.end != nil {
		tr.end(f)
	}
	ended := time.Now()
	f.wait(afterTime, last("resolved"))
	if f.judge(tr, began, ended); f.Failed() {
		for i, n := range f.nodes {
			f.Logf("node %d logged:\n%.3000s", i, n.log())
		}
	}
}

// wait lets a time of the alerts pass, or less.
func (f *troubled) wait(d time.Duration, over func() bool) {
	for end := time.Now().Add(f.pager.scaled(d)); time.Now().Before(end) && (over == nil || !over()); {
		time.Sleep(50 * time.Millisecond)
	}
}

// judge holds the pages against the one that there must be.
func (f *troubled) judge(tr *trouble, began, ended time.Time) {
	f.Logf("of %d timers, %d were late", f.timers.all.Load(), f.timers.late.Load())
	status := ""
	for _, page := range f.pager.sent(f.name) {
		after := time.Duration(float64(page.at.Sub(began)) * f.pager.speed).Round(time.Second)
		f.Logf("%s after the begin: %s %s: %s (%s)", after, page.alert, page.status, page.summary, page.runbook)
		right := page.alert == tr.alert || tr.or != "" && page.alert == tr.or
		switch {
		case !right && page.status == "resolved": // another page for it was sent
			continue
		case !right && f.timers.busy() && ofTime.MatchString(page.alert):
			f.Logf("this machine is too busy to judge %s: run the test on one with nothing else to do", page.alert)
			continue
		case !right || page.at.Before(began):
			f.Errorf("%s pages, must be %q only, in the trouble only", page.alert, tr.alert)
		case status == "" && after > tr.within+time.Duration(5*float64(time.Second)*f.pager.speed):
			f.Errorf("the page comes %v after the begin, must within %v", after, tr.within)
		case page.status == "firing" && page.at.After(ended.Add(f.pager.scaled(6*time.Minute))):
			f.Errorf("%s pages %v after the end", page.alert, page.at.Sub(ended))
		}
		status = page.status
	}
	if tr.alert != "" && status != "resolved" {
		f.Errorf("the last page of %s is %q, must be resolved", tr.alert, status)
	}
}

// demo has the demo's load on its own fleet, for as long as the troubles last or longer.
func (p *pager) demo(t *testing.T) {
	length := max(*quietTime, p.scaled(time.Hour))
	cmd := command(nil, "demo", "--no-envoy", "--for", length.String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() })
	var kept timers
	stop := make(chan struct{})
	go kept.keep(stop)
	var targets []string
	last := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		last = lines.Text()
		if m := regexp.MustCompile(`node \d: http://(\S+)/console`).FindStringSubmatch(last); m != nil {
			if targets = append(targets, m[1]); len(targets) == 3 {
				p.scrape("demo", targets...)
			}
		}
		if strings.Contains(last, "without an answer") {
			break
		}
	}
	p.scrape("demo") // its nodes end now
	close(stop)
	busy := kept.busy()
	t.Logf("%s of the demo, which are %s of the alerts: %s; of %d timers, %d were late", length, time.Duration(float64(length)*p.speed), last, kept.all.Load(), kept.late.Load())
	for _, page := range p.sent("demo") {
		t.Logf("%s %s: %s", page.alert, page.status, page.summary)
		if page.status == "firing" && (!busy || !ofTime.MatchString(page.alert)) {
			t.Errorf("%s pages, and there is no trouble", page.alert)
		}
	}
	if len(targets) != 3 {
		t.Errorf("%d nodes", len(targets))
	}
}

// troubled is a fleet under a demand that its limits allow, whose pages are read.
type troubled struct {
	*fleet
	pager  *pager
	name   string
	swap   [3]sync.Mutex // of a node and its client
	demand atomic.Pointer[demand]
	timers timers
}

// timers tell how busy the machine is: how many of the fleet's timers came late.
type timers struct{ all, late atomic.Int64 }

// late is more than a request may take at a node.
const late = 5 * time.Millisecond

// keep looks at a timer of a hundredth of a second until it is stopped.
func (t *timers) keep(stop <-chan struct{}) {
	for {
		due := time.Now().Add(10 * time.Millisecond)
		select {
		case <-stop:
			return
		case <-time.After(time.Until(due)):
		}
		t.all.Add(1)
		if time.Since(due) > late {
			t.late.Add(1)
		}
	}
}

// busy is whether so many came late that a node without a trouble is slow.
func (t *timers) busy() bool { return 200*t.late.Load() > t.all.Load() }

// ofTime are alerts that a node without CPU has, too.
var ofTime = regexp.MustCompile("^Sluice(Slow|FallbackActive|Overloaded|Errors|StaleFences|NodeDown|FleetDown)$")

// demand is the nth request to a node.
type demand func(n int) (key, value string)

// usualDemand is three busy keys of each rule, and addresses that come for the first time.
func usualDemand(n int) (key, value string) {
	if n%10 == 0 {
		return "remote_address", fmt.Sprint("new-", n)
	}
	return [...]string{"api_key", "tenant", "account", "remote_address"}[n%4], fmt.Sprint("key-", n/4%3)
}

func newTroubled(t *testing.T, p *pager, tr *trouble) *troubled {
	f := &troubled{pager: p, name: tr.name}
	start := tr.store
	if start == nil {
		start = func(t *testing.T) storeServer { return aRedis(t) }
	}
	f.fleet = newFleet(t, len(f.swap), setup{rules: troubledRules, store: start(t), ring: len(f.swap), env: tr.env})
	f.hits = tr.hits
	f.asks(usualDemand)
	f.load()
	f.scraped()
	return f
}

func (f *troubled) asks(d demand) { f.demand.Store(&d) }

// scraped has Prometheus scrape the nodes that there are now.
func (f *troubled) scraped() {
	var targets []string
	for _, n := range f.nodes {
		targets = append(targets, n.debug)
	}
	f.pager.scrape(f.name, targets...)
}

// restart ends a node, if it has not ended, and starts another in its place.
func (f *troubled) restart(i int) {
	f.swap[i].Lock()
	defer f.swap[i].Unlock()
	_ = f.nodes[i].cmd.Process.Signal(syscall.SIGTERM)
	<-f.nodes[i].exited
	f.nodes[i] = f.launch(i)
	f.clients[i] = rls.NewRateLimitServiceClient(f.nodes[i].dial())
	f.scraped()
}

// load asks each node 25 times a second.
func (f *troubled) load() {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range f.nodes {
		wg.Go(func() {
			tick := time.NewTicker(40 * time.Millisecond)
			defer tick.Stop()
			for n := i; ; n += len(f.addrs) {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				key, value := (*f.demand.Load())(n)
				f.swap[i].Lock()
				f.askFor(i, key, value)
				f.swap[i].Unlock()
			}
		})
	}
	wg.Go(func() { f.timers.keep(stop) })
	f.Cleanup(func() {
		close(stop)
		wg.Wait()
	})
}
