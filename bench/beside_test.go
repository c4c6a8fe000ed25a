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
	r, err := Beside(t.Context(), BesideOptions{
		Setup: report.Setup{Binary: sluicetest.Build(t)}, Rounds: 2, Round: 500 * time.Millisecond, Calls: 200, Connections: 2, Keys: 10,
		Streams: 250, Buckets: 3, Reports: 500,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Alone.Calls != 200 || r.Beside.Calls != 200 || r.Streams.Sent < 100 || r.Streams.Cores <= 0 || r.CPURatio <= 0 {
		t.Errorf("%+v", r)
	}
	var out strings.Builder
	if err := r.Page().WriteText(&out); err != nil || !strings.Contains(out.String(), "beside streams, a call takes") {
		t.Errorf("%v: it prints\n%s", err, out.String())
	}
}
