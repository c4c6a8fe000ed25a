package main

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
)

const attackedRules = `domain: d
coordination: {on_deny: refund, on_store_failure: closed}
descriptors:
  - {key: many, rate_limit: {unit: year, requests_per_unit: 50000}}
  - {key: audited, coordination: {audit: true}, rate_limit: {unit: year, requests_per_unit: 50}}
`

func attackedNodes(t *testing.T, n int, url string, env ...string) (nodes []*sluice) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, rules, attackedRules)
	for range n {
		nodes = append(nodes, serve(t, append([]string{"STORE_URL=" + url, "ADMIN_TOKEN=hunter2", "DRAIN_TIME=0s"}, env...), "--config", rules))
		nodes[len(nodes)-1].untilHealthy()
	}
	return nodes
}

// ignored says for how long a node admits a key after it was banned at another, and how often. It is asked all the time.
func ignored(t *testing.T, s, other *sluice, lose func()) (n int, last time.Duration) {
	for range 300 { // a lease worth having
		s.post("many", "x")
	}
	lose()
	other.put(t, "many=x", `{"limit": 0, "reason": "abuse"}`)
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(20 * time.Millisecond) {
		if s.post("many", "x") == http.StatusOK {
			n, last = n+1, time.Since(began)
		}
	}
	return n, last
}

// HIGH. The same as leasing's TestAttackBanIsIgnoredAfterALostRecall, with processes, on Redis and on PostgreSQL, whose
// notifications are as fleeting (Listen: "what is missed costs refusals only"): after a failover, a restart of a proxy
// or an idle timeout of the connection that listens, a ban of that second is ignored for as long as the lease lasts.
func TestAttackBanIsIgnoredWhileNobodyListens(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		server := pgtest.Start(t)
		nodes := attackedNodes(t, 2, server.URL())
		n, last := ignored(t, nodes[0], nodes[1], func() {
			server.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
		})
		if last > time.Second {
			t.Errorf("%d are admitted after the ban, the last %v after it", n, last)
		}
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		nodes := attackedNodes(t, 2, server.URL())
		n, last := ignored(t, nodes[0], nodes[1], func() { server.Do("CLIENT", "KILL", "TYPE", "pubsub") })
		if last > time.Second {
			t.Errorf("%d are admitted after the ban, the last %v after it", n, last)
		}
	})
}

// HIGH. "Audited rules have each change in their record": they have none. The record has claims alone, whose limit is the
// one in force: who changed it, when and why is in the log of one node only.
func TestAttackChangesAreNotOnRecord(t *testing.T) {
	server := redistest.Start(t)
	nodes := attackedNodes(t, 1, server.URL())
	nodes[0].put(t, "audited=x", `{"limit": 7, "reason": "ticket 4711"}`)
	keys, _ := server.Do("KEYS", "*record*").([]any)
	if len(keys) == 0 {
		t.Errorf("after a change of an audited key there is no record; all keys are %v", server.Do("KEYS", "*"))
	}
}

// LOW. An override that is over by the store's clock when it is set (a short one, or one for as long as the node's clock
// is behind) is answered 200 with limit 0, "0 per year" in force, the version 0 and an ETag that If-Match refuses: a
// caller reads that the key is banned, and the rule's limit is in force.
func TestAttackAnswerToOneThatIsOver(t *testing.T) {
	nodes := attackedNodes(t, 1, redistest.Start(t).URL())
	r, err := http.NewRequest(http.MethodPut, "http://"+nodes[0].debug+"/v1/overrides/d?many=x",
		strings.NewReader(`{"limit": 5, "reason": "", "expires": "1ns"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer hunter2")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	if answer.StatusCode == http.StatusOK && strings.Contains(string(body), `"limit":0`) {
		t.Errorf("a limit of 5 is answered %d %s, ETag %s", answer.StatusCode, body, answer.Header.Get("ETag"))
	}
}

// LOW. Whoever reaches the debug port without a token keeps holders of the token out: after some wrong or missing tokens
// of an address, requests with the right one are refused, too. Behind an ingress, a sidecar or a port-forward all have
// one address, and a ban in the middle of an incident cannot be set.
func TestAttackWrongTokensKeepOperatorsOut(t *testing.T) {
	nodes := attackedNodes(t, 1, redistest.Start(t).URL())
	ask := func(token string) int {
		r, err := http.NewRequest(http.MethodGet, "http://"+nodes[0].debug+"/v1/overrides", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	for range 30 {
		ask("wrong")
	}
	if code := ask("hunter2"); code != http.StatusOK {
		t.Errorf("after thirty wrong tokens the right one is answered %d", code)
	}
}
