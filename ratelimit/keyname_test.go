package ratelimit_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

// The name of an account tells its key, whatever is in it.
func TestKeysOfNames(t *testing.T) {
	// Zones far ahead of UTC and behind it, and such whose clocks are set at midnight.
	zones := []string{
		"UTC", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12", "America/Asuncion", "Africa/Cairo", "Asia/Kathmandu",
	}
	billed := func(day int, name string) ratelimit.Limit {
		c, err := zone.Calendar(day, name)
		if err != nil {
			t.Fatal(err)
		}
		return ratelimit.Limit{Unit: ratelimit.Month, Requests: 30_000_000_000}.Billed(c)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		b := make([]byte, rnd.IntN(30))
		for i := range b {
			b[i] = byte(rnd.IntN(256))
			if rnd.IntN(4) == 0 {
				b[i] = "|=~#%{}.*"[rnd.IntN(9)]
			}
		}
		return string(b)
	}
	for range 10_000 {
		l := ratelimit.Limit{
			Unit:       ratelimit.Unit(1 + rnd.IntN(int(ratelimit.CalendarMonth))),
			Algorithm:  ratelimit.Algorithm(rnd.IntN(len(ratelimit.Algorithms))),
			Multiplier: uint32(rnd.IntN(3) * rnd.IntN(1000)),
		}
		if rnd.IntN(4) == 0 {
			l = billed(1+rnd.IntN(31), zones[rnd.IntN(len(zones))])
		}
		key := ratelimit.AppendPrefix(nil, text(), l)
		for range rnd.IntN(4) {
			key = ratelimit.AppendEntry(key, text(), text(), rnd.IntN(4) == 0)
		}
		key = ratelimit.SealKey(key, 0)
		if got, ok := ratelimit.KeyOfName(ratelimit.KeyName(key)); !ok || !bytes.Equal(got, key) {
			t.Fatalf("%q is the name of %q, and read as that of %q", ratelimit.KeyName(key), key, got)
		}
	}
	edge := ratelimit.AppendPrefix(nil, "edge", billed(15, "America/New_York"))
	got := ratelimit.KeyName(ratelimit.AppendEntry(edge, "user", "bob", ratelimit.OfRequest))
	if got != "month@15@America/New_York|edge|user=bob" {
		t.Error(got)
	}
	for _, name := range []string{
		"", "#0", "x|y", "minute", "minute.none|d", "minute*x|d", "minute|%", "minute|%G0",
		"month@|d", "month@x@UTC|d", "month@200@UTC|d", "minute@1@UTC|d", "month.sliding_window@1@UTC|d", "month@1@%|d",
		"sluice:life",
	} {
		if key, ok := ratelimit.KeyOfName(name); ok {
			t.Errorf("%q is the name of %q", name, key)
		}
	}
}
