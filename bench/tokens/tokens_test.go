package tokens

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/bench/sluicetest"
)

// litellm's case with real fleets: who peeks goes over, and who holds what a request costs at most does not.
func TestFiveAtOnce(t *testing.T) {
	r, page := sluicetest.Measure[*Report](t, &Options{Nodes: 2, Length: 10 * time.Second, Case: []string{"five"}, Seed: 1})
	if len(r.Measured) != len(ways) {
		t.Fatalf("%d ways are measured, must be %d", len(r.Measured), len(ways))
	}
	for i := range r.Measured {
		m, w := &r.Measured[i], &ways[i]
		if m.Requests < 20 || m.P99 <= 0 || m.Operations <= 0 || m.Used < 50 {
			t.Errorf("nothing was measured: %+v", m)
		}
		if w.hold != nil && m.Over > m.Bound || (w.Name == "header" || w.Name == "maximum") && m.Over+m.Bound > 0 {
			t.Errorf("%s: %d over, in flight were at most %d beyond what they held", m.Way, m.Over, m.Bound)
		}
		if w.baseline && (m.Over == 0 || m.Fitted > 0) {
			t.Errorf("%s: %d over, and %d refused that fitted: it admits whatever comes until the limit is passed", m.Way, m.Over, m.Fitted)
		}
	}
	if strings.Count(page, "learned") != 2 {
		t.Error(page)
	}
}

// What is over is what requests in flight cost beyond what they held, at its highest.
func TestTally(t *testing.T) {
	c := newTally(100)
	for _, cost := range []int64{60, 30} {
		c.answered(nil, cost, time.Millisecond)
		c.flies(cost - 20)
	}
	c.flies(-40)
	c.answered(envoy.ErrOver, 10, time.Millisecond)
	c.answered(envoy.ErrOver, 11, time.Millisecond)
	c.answered(context.DeadlineExceeded, 1, time.Millisecond)
	if c.used != 90 || c.asked != 5 || c.refused != 2 || c.fitted != 1 || c.failed != 1 || c.mostExcess != 50 || c.excess != 10 {
		t.Errorf("%+v", c)
	}
}

// A case begins where it ends before the window does.
func TestUntilFits(t *testing.T) {
	at := time.Unix(1_800_000_000+20, 0) // a minute has begun 20 s ago
	if d := untilFits(at, time.Minute, 37*time.Second); d != 0 {
		t.Errorf("it waits %v", d)
	}
	if d := untilFits(at, time.Minute, 39*time.Second); d < 40*time.Second || d > 41*time.Second {
		t.Errorf("it waits %v", d)
	}
}
