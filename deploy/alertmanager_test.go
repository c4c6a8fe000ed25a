package deploy

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// alertmanager runs one with the file that people copy from. It returns its address.
func alertmanager(t *testing.T) string {
	t.Helper()
	path := ""
	for _, name := range []string{"alertmanager", "prometheus-alertmanager"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
		}
	}
	if path == "" {
		t.Fatal("there is no alertmanager here, and this test needs one: make deps")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	cmd := exec.Command(path, "--config.file=prometheus/alertmanager.yml", "--storage.path="+t.TempDir(),
		"--web.listen-address="+address, "--cluster.listen-address=")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if r, err := http.Get("http://" + address + "/-/ready"); err == nil {
			r.Body.Close()
			return address
		}
		if time.Now().After(end) {
			t.Fatalf("Alertmanager is not ready:\n%s", log.String())
		}
	}
}

// fire has alerts fire.
func fire(t *testing.T, address string, firing []map[string]string) {
	t.Helper()
	var post []map[string]any
	for _, labels := range firing {
		post = append(post, map[string]any{"labels": labels})
	}
	body, err := json.Marshal(post)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.Post("http://"+address+"/api/v2/alerts", "application/json", bytes.NewReader(body))
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatal(r, err)
	}
	r.Body.Close()
}

// pages are the alerts that page now. Alertmanager processes alerts and inhibitions one after the other.
func pages(t *testing.T, address string) (names []string) {
	t.Helper()
	r, err := http.Get("http://" + address + "/api/v2/alerts")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var alerts []struct {
		Labels    map[string]string
		Receivers []struct{ Name string }
		Status    struct{ State string }
	}
	if err := json.NewDecoder(r.Body).Decode(&alerts); err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts {
		if a.Status.State != "suppressed" && a.Receivers[0].Name == "page" {
			names = append(names, a.Labels["alertname"]+" "+a.Labels["job"])
		}
	}
	slices.Sort(names)
	return names
}

// One cause is one page. Its consequences are inhibited, in its fleet and in no other. Alerts of severity
// info do not page.
func TestOneCauseIsOnePage(t *testing.T) {
	t.Parallel()
	var firing []map[string]string
	var want []string
	fires := func(severity, fleet string, names ...string) {
		for _, name := range names {
			firing = append(firing, map[string]string{"alertname": name, "severity": severity, "namespace": "edge", "job": fleet, "instance": "a:6070"})
		}
	}
	for fleet, c := range map[string]struct{ causes, effects string }{
		"an outage of the store": {
			"SluiceStoreBreakerOpen", "SluiceStoreSlow SluiceFallbackActive SluiceErrors SluiceSlow SluiceSeatShortage SluiceLeaseStarvation SluiceStaleClaims SluiceOverloaded",
		},
		"a slow store":        {"SluiceStoreSlow", "SluiceFallbackActive SluiceSlow"},
		"late answers":        {"SluiceFallbackActive", "SluiceSlow"},
		"an empty restart":    {"SluiceLedgerLost", "SluiceAccountsLost SluiceStoreClockStepped"},
		"a store that evicts": {"SluiceAccountsLost", "SluiceStoreMayEvict"},
		"bad rules":           {"SluiceConfigRejected", "SluiceRulesDiffer SluiceRulesFromCopy"},
		"no node":             {"SluiceFleetDown", "SluiceNodeDown SluiceRulesDiffer"},
		"two causes":          {"SluiceConfigRejected SluiceTableFull", ""},
	} {
		causes := strings.Fields(c.causes)
		fires("warning", fleet, append(causes, strings.Fields(c.effects)...)...)
		fires("info", fleet, "SluiceHotKey")
		for _, name := range causes {
			want = append(want, name+" "+fleet)
		}
	}
	slices.Sort(want)
	address := alertmanager(t)
	fire(t, address, firing)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		got := pages(t, address)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("these page somebody: %v, must be %v", got, want)
		}
	}
}
