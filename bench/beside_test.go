package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/sluicetest"
)

// Two servers are called, while the streams of one of them report.
func TestBeside(t *testing.T) {
	t.Parallel()
	r, page := sluicetest.Measure[*CostReport](t, &CostOptions{
		Rounds: 2, Round: 500 * time.Millisecond, Callers: 32, Calls: 200, Connections: 2, Keys: 10, Streams: 250, Buckets: 3, Reports: 500,
	})
	if r.Sluice.Calls < 140 || r.Sluice.Calls > 260 || r.Beside.Calls != r.Sluice.Calls || r.Streams.Sent < 100 || r.Streams.Cores <= 0 {
		t.Errorf("%+v, with streams %+v", r, r.Beside)
	}
	if !strings.Contains(page, "beside streams, a call takes") {
		t.Errorf("it prints\n%s", page)
	}
}
