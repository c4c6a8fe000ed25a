package accuracy

import (
	"strings"
	"testing"
	"time"
)

// A mode is recommended for what it was better at, and not where it was worse.
func TestAdviceFollowsTheFigures(t *testing.T) {
	const m = time.Millisecond
	strict := &sum{offered: 1000, ops: 1000}
	leasing := &sum{offered: 1000, ops: 20, early: 5, p99: 7 * m, faultP999: 40 * m}
	for _, c := range []struct {
		approx, routing sum
		want            []string
	}{
		{sum{p99: 397 * m, faultP999: 400 * m}, sum{offered: 1000, ops: 5}, []string{"Use leasing", "Use routing", "Do not use approx"}},
		{sum{p99: 1 * m, faultP999: 3 * m}, sum{offered: 1000, ops: 30, early: 9}, []string{"Use leasing", "Nothing here speaks for routing", "Use approx where no request may wait for the store"}},
		{sum{p99: 1 * m, faultP999: 90 * m}, sum{offered: 1000, ops: 30, early: 1}, []string{"", "Use routing", "leasing where faults count"}},
		{sum{p99: 7 * m, faultP999: 3 * m}, sum{offered: 1000}, []string{"", "", "Use approx only for what must not wait while the store fails"}},
		{sum{p99: 1 * m}, sum{offered: 1000}, []string{"", "", "Use approx where no request"}},
	} {
		for i, line := range advice(strict, leasing, &c.routing, &c.approx) {
			if !strings.Contains(line, c.want[i]) {
				t.Errorf("of %+v: %s\nwant %q", c.approx, line, c.want[i])
			}
		}
	}
	busy := &sum{offered: 1000, ops: 1500, p99: m}
	if line := advice(strict, busy, busy, busy)[0]; !strings.Contains(line, "saved no store operations") {
		t.Error(line)
	}
}
