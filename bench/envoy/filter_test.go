package envoy

import (
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/deploy"
)

// What a filter does not play is refused, and the shipped configuration is played.
func TestParseEntries(t *testing.T) {
	all, err := ParseEntries(deploy.EnvoyLLM)
	if err != nil || len(all) != 3 || all[0].GetApplyOnStreamDone() || !all[1].GetApplyOnStreamDone() {
		t.Errorf("%v: %v", all, err)
	}
	for text, want := range map[string]string{
		"a: 1":                                "there are none",
		"[{actions: [{remote_address: {}}]}]": "entry 0: action 0 is none of",
		"[{actions: [{metadata: {descriptor_key: k, metadata_key: {key: a}, source: ROUTE_ENTRY}}]}]": "action 0 is none of",
		"[{hits_addend: {format: '%REQ(a)%%REQ(b)%'}}]":                                               "must be one substitution",
		"[{hits_addend: {format: '%START_TIME%'}}]":                                                   "must be one substitution",
		"[{action: []}]": "unknown field",
	} {
		if _, err := ParseEntries(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, must say %q", text, err, want)
		}
	}
}
