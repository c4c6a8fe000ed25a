package gateways

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
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

// to returns one of the requests.
func (c call) to(ctx context.Context, envoy netip.AddrPort) (*http.Request, error) {
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
	return r, nil
}

// limitIn returns the limit that a response shows, by Envoy's header or by Sluice's own.
func limitIn(r *http.Response) string {
	limit, _, _ := strings.Cut(cmp.Or(r.Header.Get("x-ratelimit-limit"), r.Header.Get("ratelimit-limit")), ",")
	return limit
}

// do sends one request to an Envoy.
func do(ctx context.Context, envoy netip.AddrPort, c call) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := c.to(ctx, envoy)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{}
	if c.From != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(c.From)}
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err == nil {
		_ = response.Body.Close()
	}
	return response, err
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
