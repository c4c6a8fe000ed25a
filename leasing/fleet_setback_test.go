package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// newSetBack is a stage whose ledger's clock can be set, and a busy key of 100 a minute of which some are used.
func newSetBack(t *testing.T, used tokens) *stage {
	limit := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100}
	s := newStrictStage(t, 1, limit, map[string]string{"on_store_failure": "closed"})
	if s.ask(0, "k", used).OverLimit {
		t.Fatalf("%d of 100 are refused", used)
	}
	return s
}

// busy has time pass for a key in use.
func (s *stage) busy(seconds int) {
	for range seconds {
		s.goOn(time.Second)
		s.nodes[0].Beat()
		s.ask(0, "k", 0)
	}
}

// When the ledger's clock is set back by more than a window, a busy key returns to a window that its node has left.
// It begins there without usage, under the name of its earlier usage at the ledger. So its first claim takes all of
// that back. A key that was dropped would return under another name.
func TestWindowThatComesBack(t *testing.T) {
	s := newSetBack(t, 73)
	s.busy(70)
	s.ahead = -65 * time.Second
	s.busy(52)
	if !s.ask(0, "k", 60).OverLimit {
		t.Error("133 of 100 are admitted")
	}
}

// The same window, after the node's last report for it: the report's number is above those of all claims, and so all
// of them are overtaken, without end.
func TestWindowThatComesBackAfterALateReport(t *testing.T) {
	s := newSetBack(t, 50)
	s.busy(55)
	// A refund that is not answered before the window ends.
	s.overdue(0, ask{Rule: s.rule, Key: []byte("k"), Cost: 5, Kind: ratelimit.Refund})
	s.now = s.now.Add(6 * time.Second)
	s.settle()
	s.busy(10)
	s.ahead = -65 * time.Second
	s.busy(49)
	if s.ask(0, "k", 1).OverLimit {
		t.Error("46 of 100 are refused")
	}
}
