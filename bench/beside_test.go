package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/bench/sluicetest"
)

// Two servers are called, while the streams of one of them report.
func TestBeside(t *testing.T) {
	if testing.Short() {
		t.Skip("builds sluice")
	}
	t.Parallel()
	got, err := (&CostOptions{
		Setup: report.Setup{Binary: sluicetest.Build(t), Lab: sluicetest.Lab(t)}, Rounds: 2, Round: 500 * time.Millisecond, Callers: 32, Calls: 200, Connections: 2, Keys: 10,
		Streams: 250, Buckets: 3, Reports: 500,
	}).Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := got.(*CostReport)
	if r.Sluice.Calls < 140 || r.Sluice.Calls > 260 || r.Beside.Calls != r.Sluice.Calls || r.Streams.Sent < 100 || r.Streams.Cores <= 0 {
		t.Errorf("%+v, with streams %+v", r, r.Beside)
	}
	var out strings.Builder
	if err := r.Page().WriteText(&out); err != nil || !strings.Contains(out.String(), "beside streams, a call takes") {
		t.Errorf("%v: it prints\n%s", err, out.String())
	}
}
