package gateways

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

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
