package store

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/sluicetest"
)

// A request that may have been counted in either of two windows is evidence of
// nothing; any other counts where it was asked.
func TestTally(t *testing.T) {
	tally := newTally(2, time.Second)
	at := func(ms int64) time.Time { return time.UnixMilli(1_800_000_000_000 + ms) }
	ask := func(from, to int64, ok bool) { tally.answered(1, at(from), at(from), at(to), ok, nil) }
	ask(100, 110, false) // none had been admitted yet
	ask(200, 210, true)
	ask(300, 310, false) // one had
	ask(400, 410, true)
	ask(500, 510, true) // one more than the limit
	ask(990, 1010, true)
	ask(996, 997, true)
	ask(1003, 1004, false)
	ask(1100, 1110, true)
	admitted, over, under, allowed := tally.sums()
	if admitted != 6 || over != 1 || under != 0 || allowed != 3 || tally.early != 2 {
		t.Errorf("%d admitted, %d over, %d under of %d, %d early; want 6, 1, 0, 3, 2", admitted, over, under, allowed, tally.early)
	}
	ask(1200, 1210, false)
	if _, _, under, _ = tally.sums(); under != 0 {
		t.Errorf("%d under: what was admitted at the turn may have been this window's", under)
	}
}

// Each mode has the turn of the window in the middle of its time.
func TestTurnIsHalfway(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(1_800_000_000+second, 0) } // a minute begins there
	for _, c := range []struct {
		now            int64
		window, length time.Duration
		want           time.Duration
	}{
		{0, time.Minute, time.Minute, 30 * time.Second},
		{30, time.Minute, time.Minute, 0},
		{31, time.Minute, time.Minute, 59 * time.Second},
		{50, time.Minute, 40 * time.Second, 50 * time.Second},
		{0, time.Minute, 20 * time.Second, 0},
		{0, time.Hour, time.Minute, 0},
		{0, time.Hour, time.Hour, 0},
		{0, time.Second, time.Second, 500 * time.Millisecond},
	} {
		if got := untilTurnIsHalfway(at(c.now), c.window, c.length); got != c.want {
			t.Errorf("at second %d, %v of windows of %v: waits %v, want %v", c.now, c.length, c.window, got, c.want)
		}
	}
}

// Real fleets, a Redis each: every mode answers all that is asked, within what it
// declares, and what Redis did is there to compare.
func TestStore(t *testing.T) {
	r, page := sluicetest.Measure[*Report](t, &Options{Nodes: []int{2}, Rate: 500, Length: time.Second, Rows: []string{"6"}, Seed: 1})
	if err := r.Problems(); err != nil {
		t.Error(err)
	}
	if len(r.Measured) != len(modes) {
		t.Fatalf("%d measurements, want %d", len(r.Measured), len(modes))
	}
	for i, m := range r.Measured {
		// Redis' time is certain where each request asks it: else it may be lost in what an idle one takes.
		if m.Asked < 300 || m.CPU < 0 || i < 2 && m.CPU == 0 || m.Bytes <= 0 || m.P99 <= 0 {
			t.Errorf("nothing was measured: %+v", m)
		}
		if asks := m.Commands["incrby"].Calls; (i == 0) != (asks == m.Asked) {
			t.Errorf("%s: %d INCRBY for %d decisions", m.Mode, asks, m.Asked)
		}
		if i > 0 && (m.Claims+m.Draws <= 0 || m.Reasons["waiting"] == 0) {
			t.Errorf("%s: nothing was claimed: %+v", m.Mode, m)
		}
	}
	if !strings.Contains(page, rows[5].Name) {
		t.Error("the page does not show the row")
	}
}
