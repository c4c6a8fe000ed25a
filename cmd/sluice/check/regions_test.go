package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Over regions, each rule declares what the distance costs. One that cannot wait for the store fails.
func TestRegions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	rule := func(coordination string) {
		t.Helper()
		text := "domain: d\ndescriptors:\n  - {key: k, coordination: " + coordination + ", rate_limit: {unit: minute, requests_per_unit: 6000}}\n" +
			"  - {key: ban, rate_limit: {unit: minute, requests_per_unit: 0}}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		coordination string
		code         int
		says         []string
	}{
		{"{mode: routing, store_deadline: 400ms, on_store_failure: closed}", 0, []string{
			"In 3 regions, 80ms from the store", "d.k   routing  85ms           demand of 160ms      751       0",
		}},
		{"{mode: routing, store_deadline: 200ms}", 0, []string{"at 80ms use 320ms", "1,000"}},
		{"{mode: routing, store_deadline: 150ms}", 1, []string{"too far away"}}, // an owner has half of it
		{"{store_deadline: 400ms}", 0, []string{"With mode routing, a region does so once"}},
		{"{mode: approx, store_deadline: 400ms}", 0, []string{"2ms, then drifts", "1,000 and its drift"}},
		{"{mode: routing, store_deadline: 50ms}", 1, []string{"too far away"}},
	} {
		rule(x.coordination)
		code, out, errs := printed("--nodes=6", "--regions=3", "--rtt=80ms", file)
		for _, want := range x.says {
			if code != x.code || !strings.Contains(out+errs, want) {
				t.Errorf("%s: %d, want %d and %q\n%s%s", x.coordination, code, x.code, want, out, errs)
			}
		}
	}
	for flags, want := range map[string]string{
		"--regions=4": "--regions is 4", "--regions=2": "need each other", "--rtt=80ms": "need each other", "--rtt=2s": "--rtt is 2s",
		"--regions=2 --rtt=80ms --no-store": "--regions needs a store",
	} {
		if code, _, errs := printed(append(strings.Fields(flags), file)...); code != 2 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s, want %q", flags, code, errs, want)
		}
	}
}
