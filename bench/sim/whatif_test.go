package sim

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

func question(maxOver ratelimit.Share, wait time.Duration) Question {
	return Question{
		Limit: ratelimit.Limit{Unit: ratelimit.Second, Requests: 500}, Coordination: ratelimit.DefaultCoordination(),
		Nodes: 3, Seed: 1, MaxOver: maxOver, MaxWait: wait,
		Load: load.Load{Rate: 1500, Keys: 2, Length: 20 * time.Second},
		Net:  Net{Trip: Delay{Least: 4 * time.Millisecond}, Hop: Delay{Least: time.Millisecond}},
	}
}

// Who allows nothing over is not told to drift; who cannot wait is.
func TestRecommendations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		over ratelimit.Share
		wait time.Duration
		want string
	}{
		{ratelimit.Share{}, 15 * time.Millisecond, "it is never over the limit"},
		{ratelimit.Share{PPM: 50_000}, 15 * time.Millisecond, "Use "},
		{ratelimit.Share{}, time.Microsecond, "Nothing keeps within 1µs"},
	} {
		q := question(c.over, c.wait)
		a, err := WhatIf(context.Background(), q, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(a.Reasons, " "); !strings.Contains(got, c.want) {
			t.Errorf("over %v, wait %v: %s", c.over, c.wait, got)
		}
		if eager := &a.Choices[2]; eager.Name != "leasing, eager" || eager.Declared != 3*25 {
			t.Errorf("%s is said to be at most %d over, and three silent nodes may have 25 each", eager.Name, eager.Declared)
		}
		best := &a.Choices[a.Best]
		if allowed := c.over.Of(500); best.Declared > allowed {
			t.Errorf("%s may be %d over, and %d are allowed", best.Name, best.Declared, allowed)
		}
		strict, leasing := a.Choices[0].Plain, a.Choices[1].Plain
		if strict.ClaimsPerThousand() < 3*leasing.ClaimsPerThousand() {
			t.Errorf("strict took %.1f claims, leasing %.1f", strict.ClaimsPerThousand(), leasing.ClaimsPerThousand())
		}
		for _, choice := range a.Choices {
			if choice.Plain.Violation != nil || choice.Bad.Violation != nil {
				t.Errorf("%s: %v %v", choice.Name, choice.Plain.Violation, choice.Bad.Violation)
			}
		}
		var page bytes.Buffer
		if err := a.Page(&q).WriteHTML(&page); err != nil || !strings.Contains(page.String(), "<svg") {
			t.Error("no page", err)
		}
	}
}

func TestSharesAreSaidInDigits(t *testing.T) {
	for n, want := range map[int64]string{1000: "100% wait", 996: "100% wait", 123: "12% wait", 5: "0.5% wait"} {
		if got := share(n, 1000, "wait"); got != want {
			t.Errorf("%d of 1000 is said as %s, want %s", n, got, want)
		}
	}
}

// A recorded trace is played as it was.
func TestWhatIfOfATrace(t *testing.T) {
	t.Parallel()
	var csv strings.Builder
	for i := range 3000 {
		csv.WriteString(strings.Join([]string{fmt.Sprint(float64(i) / 100), []string{"alice", "bob"}[i%2], "2"}, ",") + "\n")
	}
	r, err := load.ReadRecorded(strings.NewReader(csv.String()))
	if err != nil {
		t.Fatal(err)
	}
	q := question(ratelimit.Share{}, 15*time.Millisecond)
	q.Recorded, q.Limit.Requests = r, 60
	a, err := WhatIf(context.Background(), q, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range a.Choices {
		if c.Plain.Requests != 3000 || c.Plain.Offered != 6000 || c.Plain.Keys != 2 {
			t.Errorf("%s: %d requests, %d tokens, %d keys", c.Name, c.Plain.Requests, c.Plain.Offered, c.Plain.Keys)
		}
	}
}
