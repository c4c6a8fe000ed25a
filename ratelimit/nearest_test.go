package ratelimit

import "testing"

func TestNearest(t *testing.T) {
	units := []string{"second", "minute", "hour", "day", "week", "month", "year"}
	keys := []string{"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric"}
	for said, want := range map[string]string{
		"secnod": "second", "seconds": "second", "sec": "second", "s": "second", "h": "hour", "Minutes": "minute",
		"monthh": "month", "fortnight": "", "m": "", "": "", "dayy": "day",
	} {
		if got := Nearest(said, units); got != want {
			t.Errorf("unit %q: %q, want %q", said, got, want)
		}
	}
	for said, want := range map[string]string{
		"ratelimit": "rate_limit", "rate-limit": "rate_limit", "rateLimits": "rate_limit", "descriptor": "descriptors",
		"desciptors": "descriptors", "vlaue": "value", "shadowMode": "shadow_mode", "foo": "", "kye": "key",
		"a name that is far too long to be a misspelling of one": "",
	} {
		if got := Nearest(said, keys); got != want {
			t.Errorf("key %q: %q, want %q", said, got, want)
		}
	}
	if got := Nearest("ab", []string{"aa", "bb"}); got != "" {
		t.Errorf("of two that are as near: %q", got)
	}
}
