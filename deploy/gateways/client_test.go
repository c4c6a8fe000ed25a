package gateways

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A door is where requests enter: at the ready Envoys of a gateway.
type door func() ([]netip.AddrPort, error)

// gateway is the door of a Gateway of Envoy Gateway, at the port of a listener.
func (w *world) gateway(namespace, name string, port int32) door {
	return func() ([]netip.AddrPort, error) {
		list, err := w.Kube.CoreV1().Services(system).List(w.Context(), metav1.ListOptions{LabelSelector: ofGateway(namespace, name)})
		if err != nil {
			return nil, err
		}
		for _, s := range list.Items {
			for _, p := range s.Spec.Ports {
				if p.Port == port {
					return w.door(system, s.Name, p.Name)()
				}
			}
		}
		return nil, fmt.Errorf("no service of gateway %s in %s with port %d", name, namespace, port)
	}
}

// door is the door at a service of Envoys.
func (w *world) door(namespace, service, port string) door {
	return func() ([]netip.AddrPort, error) {
		all, err := w.Endpoints(w.Context(), namespace, service, port)
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("no Envoy of service %s is ready", service)
		}
		return all, err
	}
}

func ofGateway(namespace, name string) string {
	return "gateway.envoyproxy.io/owning-gateway-name=" + name + ",gateway.envoyproxy.io/owning-gateway-namespace=" + namespace
}

// A call is a number of equal requests, and the number of those that pass. The others are answered with 429.
type call struct {
	Host     string // default: the name of the case
	Port     int32  // of the listener of Envoy Gateway; default: 80
	Method   string
	Path     string // default: /
	Headers  string // NAME=VALUE, ...
	From     string // the client's address; default: that of the node
	Sent, OK int
	Pause    int    // milliseconds before each
	Shown    string // x-ratelimit-limit of the responses; "-": none
}

// over sends one of the requests to an Envoy, and reads the response.
func (c call) over(ctx context.Context, envoy netip.AddrPort, client *http.Client) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, c.Method, "http://"+envoy.String()+c.Path, nil)
	if err != nil {
		return nil, err
	}
	r.Host = c.Host
	for pair := range strings.SplitSeq(c.Headers, ", ") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			r.Header.Add(name, value)
		}
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return response, nil
}

// limitIn returns the limit that a response shows, by Envoy's header or by Sluice's own.
func limitIn(r *http.Response) string {
	limit, _, _ := strings.Cut(cmp.Or(r.Header.Get("x-ratelimit-limit"), r.Header.Get("ratelimit-limit")), ",")
	return limit
}

// do sends one request to an Envoy, over a connection of its own.
func do(ctx context.Context, envoy netip.AddrPort, c call) (*http.Response, error) {
	dialer := &net.Dialer{}
	if c.From != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(c.From)}
	}
	return c.over(ctx, envoy, &http.Client{
		Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true},
	})
}

// plays sends the requests of a call one after the other, each to the next Envoy, and says which answers are not as
// expected.
func (d door) plays(ctx context.Context, c call) error {
	envoys, err := d()
	if err != nil {
		return err
	}
	var passed int
	for i := range c.Sent {
		time.Sleep(time.Duration(c.Pause) * time.Millisecond)
		r, err := do(ctx, envoys[i%len(envoys)], c)
		if err != nil {
			return err
		}
		switch r.StatusCode {
		case http.StatusOK:
			passed++
		case http.StatusTooManyRequests:
		default:
			return fmt.Errorf("%+v: %s", c, r.Status)
		}
		limit := limitIn(r)
		if c.Shown != "" && limit != strings.TrimPrefix(c.Shown, "-") {
			return fmt.Errorf("%+v: x-ratelimit-limit is %q", c, limit)
		}
	}
	if passed != c.OK {
		return fmt.Errorf("%+v: %d of %d passed", c, passed, c.Sent)
	}
	return nil
}

// judge reports an error, unless nodes decided without their store meanwhile. On a busy machine the store replies later
// than their deadline of 15 ms. They then admit what on_store_failure says.
func (w *world) judge(l limiters, before float64, err error) {
	w.Helper()
	if err == nil {
		return
	}
	if n := w.sum(l, fallbacks) - before; n > 0 {
		w.Skipf("the machine is busy: nodes made %v decisions without their store, and %v", n, err)
	}
	w.Error(err)
}

const fallbacks = "sluice_fallback_decisions_total{"

// works reports whether a host answers with 200 and this x-ratelimit-limit.
func (d door) works(ctx context.Context, host, limit string) error {
	envoys, err := d()
	if err != nil {
		return err
	}
	r, err := do(ctx, envoys[0], call{Host: host, Headers: "x-api-key=works"})
	if err != nil {
		return err
	}
	if shown := limitIn(r); r.StatusCode == http.StatusNotFound || shown != limit {
		return fmt.Errorf("%s answers %s, and its limit is %q", host, r.Status, shown)
	}
	return nil
}

// counts checks the metrics of rules, under the names and labels of Envoy Gateway's mapping: what the cases sent is there.
func (w *world) counts(mode string) {
	for _, c := range []struct {
		route, key2                string
		total, within, over, shade float64
	}{
		{route: "header", key2: "rule-0-match-0", total: 9, within: 6, over: 3},
		{route: "cidr-distinct", key2: "masked_remote_address_0_0_0_0/0", total: 9, within: 6, over: 3},
		{route: "shadow", key2: "rule-0-match-0", total: 5, within: 3, over: 2, shade: 2},
		{route: "cost", key2: "rule-0-match-0", total: 10, within: 6, over: 4},
	} {
		id := fmt.Sprintf("httproute/%s/%s/rule/0/match/0/%s", mode, c.route, c.route)
		labels := fmt.Sprintf(`{domain="%s/eg/http",key1="%s_%s",key2="%s"}`, mode, id, id, c.key2)
		for name, want := range map[string]float64{"total_hits": c.total, "within_limit": c.within, "over_limit": c.over, "shadow_mode": c.shade} {
			if got := w.sum(ofEnvoyGateway, "ratelimit_service_rate_limit_"+name+labels); got != want {
				w.Errorf("%s of %s is %v, not %v", name, labels, got, want)
			}
		}
	}
}

// sum adds the values of the series that begin so, at all limiters.
func (w *world) sum(l limiters, series string) (sum float64) {
	w.Helper()
	list, err := w.pods(l)
	w.check(err)
	for _, p := range list.Items {
		if p.Status.PodIP == "" || p.DeletionTimestamp != nil {
			continue
		}
		r, err := http.Get(fmt.Sprintf("http://%s:%d/metrics", p.Status.PodIP, l.metrics))
		w.check(err)
		for s := bufio.NewScanner(r.Body); s.Scan(); {
			if text := s.Text(); strings.HasPrefix(text, series) {
				value, err := strconv.ParseFloat(text[strings.LastIndex(text, " ")+1:], 64)
				w.check(err)
				sum += value
			}
		}
		_ = r.Body.Close()
	}
	return sum
}

// A load sends requests at a steady rate, whatever the answers, to the ready Envoys of a door in turn, over connections that stay.
type load struct {
	door
	request call
	client  *http.Client
	stop    context.CancelFunc
	running sync.WaitGroup
	envoys  atomic.Pointer[[]netip.AddrPort]
	stall   time.Duration // the longest pause between two requests: longer than a tick, it is the machine's

	sent, passed, refused, free, failed atomic.Int64
	mu                                  sync.Mutex
	errors                              []string // the first few
}

const rate = 200 // requests a second

// begin starts a load of requests.
func (d door) begin(t *testing.T, request call) *load {
	t.Helper()
	l := &load{door: d, request: request, client: &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 50, DisableCompression: true},
	}}
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Minute)
	l.stop = stop
	l.running.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			_ = l.look()
		}
	})
	l.running.Go(func() {
		tick := time.NewTicker(time.Second / rate)
		defer tick.Stop()
		for last := time.Now(); ctx.Err() == nil; {
			<-tick.C
			l.stall = max(l.stall, time.Since(last))
			last = time.Now()
			l.running.Go(l.send)
		}
	})
	return l
}

// end stops the load, and waits for its answers.
func (l *load) end() {
	l.stop()
	l.running.Wait()
	l.client.CloseIdleConnections()
}

func (l *load) look() error {
	all, err := l.door()
	if err == nil {
		l.envoys.Store(&all)
	}
	return err
}

func (l *load) send() {
	envoys := *l.envoys.Load()
	to := envoys[int(l.sent.Add(1))%len(envoys)]
	answer, err := l.request.over(context.Background(), to, l.client)
	if err != nil {
		l.fail(err.Error())
		return
	}
	switch {
	case answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusTooManyRequests:
		l.fail(answer.Status)
	case limitIn(answer) == "":
		l.free.Add(1)
	case answer.StatusCode == http.StatusOK:
		l.passed.Add(1)
	default:
		l.refused.Add(1)
	}
}

func (l *load) fail(why string) {
	l.failed.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.errors) < 5 {
		l.errors = append(l.errors, why)
	}
}

// drain sends requests one after the other until least passed: nodes may take some seconds to find the last tokens of others.
// Then it goes on until 100 in a row are refused.
func (l *load) drain(least int64) {
	for end := time.Now().Add(20 * time.Second); l.passed.Load() < least && time.Now().Before(end); {
		before := l.refused.Load()
		l.send()
		if l.refused.Load() > before {
			time.Sleep(20 * time.Millisecond)
		}
	}
	for row, n := 0, 0; row < 100 && n < 2*budget; n++ {
		before := l.refused.Load()
		l.send()
		row++
		if l.refused.Load() == before {
			row = 0
		}
	}
}

func (l *load) String() string {
	return fmt.Sprintf("%d sent, %d passed, %d refused, %d without a limit, %d failed %v", l.sent.Load(), l.passed.Load(), l.refused.Load(), l.free.Load(), l.failed.Load(), l.errors)
}
