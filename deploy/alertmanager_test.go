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

// One cause is one page, with the file that people copy from. Its consequences are inhibited, in its fleet and in
// no other. Alerts of severity info do not page.
func TestOneCauseIsOnePage(t *testing.T) {
	t.Parallel()
	var firing []map[string]any
	var want []string
	fires := func(severity, fleet string, names ...string) {
		for _, name := range names {
			firing = append(firing, map[string]any{"labels": map[string]string{
				"alertname": name, "severity": severity, "namespace": "edge", "job": fleet, "instance": "a:6070",
			}})
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
		if _ = cmd.Wait(); t.Failed() {
			t.Logf("Alertmanager:\n%s", log.String())
		}
	})
	body, err := json.Marshal(firing)
	if err != nil {
		t.Fatal(err)
	}
	until := func(ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not within half a minute")
			}
		}
	}
	until(func() bool { // it is ready
		r, err := http.Post("http://"+address+"/api/v2/alerts", "application/json", bytes.NewReader(body))
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	// Alertmanager processes alerts and inhibitions one after the other.
	var page []string
	defer func() {
		if t.Failed() {
			t.Logf("these page somebody: %v, must be %v", page, want)
		}
	}()
	until(func() bool {
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
		page = nil
		for _, a := range alerts {
			if a.Status.State != "suppressed" && a.Receivers[0].Name == "page" {
				page = append(page, a.Labels["alertname"]+" "+a.Labels["job"])
			}
		}
		slices.Sort(page)
		return slices.Equal(page, want)
	})
}
