package lease

import (
	"testing"
	"time"
)

// What becomes of a recall, by what is under way: a claim that still waits for others becomes the answer, or a claim
// behind it is; one that somebody waits for is left as it is.
func TestRecallOfWhatIsUnderWay(t *testing.T) {
	const now = instant(time.Hour)
	recalled := Errand{recall: true}
	for what, c := range map[string]struct {
		fl    Flight
		is    Errand
		asked bool
	}{
		"a renewal that waits for others":              {Flight{Lingers: true}, recalled, false},
		"a renewal that has left":                      {Flight{Lingers: true, written: true}, Errand{}, true},
		"a renewal that waits for nobody":              {Flight{}, Errand{}, true},
		"somebody waits for it":                        {Flight{Lingers: true, Waiting: 1}, Errand{}, true},
		"the next window's, that waits for others":     {Flight{Lingers: true, Errand: Errand{Ahead: true}}, recalled, false},
		"the next window's, and somebody waits for it": {Flight{Lingers: true, Waiting: 1, Errand: Errand{Ahead: true}}, Errand{Ahead: true}, true},
		"the next window's, that has left":             {Flight{Errand: Errand{Ahead: true}}, Errand{Ahead: true}, true},
		"a lease that is given up":                     {Flight{Lingers: true, Errand: Errand{GiveUp: true}}, Errand{GiveUp: true}, true},
	} {
		h := calmKey(now)
		h.triedAhead = h.Lease.Window + 1
		fl := c.fl
		h.Flies(&fl)
		h.Recall(now)
		if fl.Errand != c.is || h.asked != c.asked {
			t.Errorf("%s: it is now %+v, and a claim behind it is asked for: %v", what, fl.Errand, h.asked)
		}
		if ahead := c.fl.Errand == (Errand{Ahead: true}) && c.is == recalled; ahead != (h.AheadAt == now && h.triedAhead == h.Lease.Window) {
			t.Errorf("%s: the next window is to be claimed at %d, and was tried for window %d", what, h.AheadAt, h.triedAhead)
		}
		if todo := h.Ready(); todo != nil && todo.Claim != nil {
			t.Errorf("%s: a second claim is sent: %+v", what, todo.Claim)
		}
	}
}

// A key of which nothing is under way answers a recall with a claim, if the ledger has anything to hear. While those
// who wait here collect what others give back, as much as they need is kept.
func TestRecallIsAnswered(t *testing.T) {
	const now = instant(time.Hour)
	for what, c := range map[string]struct {
		with func(*Held)
		sent bool
		keep tokens
	}{
		"something is unspent":           {func(*Held) {}, true, 0},
		"nothing is left":                {func(h *Held) { h.Lease.Spent, h.Reported = 20, 20 }, false, 0},
		"nothing is left, and not told":  {func(h *Held) { h.Lease.Spent = 20 }, true, 0},
		"a draw was lost":                {func(h *Held) { h.Lease.Spent, h.Reported, h.vain = 20, 20, true }, true, 0},
		"it collects":                    {func(h *Held) { h.Recalling, h.resume, h.collects = true, now+1, 3 }, true, 3},
		"it has collected":               {func(h *Held) { h.Recalling, h.resume, h.collects = true, now, 3 }, true, 0},
		"it collected for claims before": {func(h *Held) { h.Recalling, h.resume, h.collects = false, now+1, 3 }, true, 0},
	} {
		h := calmKey(now)
		c.with(h)
		h.Recall(now)
		todo := h.Ready()
		if sent := todo != nil && todo.Claim != nil; sent != c.sent || sent && todo.Claim.Errand != (Errand{recall: true, keep: c.keep}) {
			t.Errorf("%s: %+v", what, todo)
		}
	}
}

// What the ledger should hear of before a key is dropped: not where it has settled all, whatever is counted here.
func TestWhatIsUntold(t *testing.T) {
	for what, c := range map[string]struct {
		with   func(*Held)
		untold bool
	}{
		"something is unspent":     {func(h *Held) { h.Reported = 10 }, true},
		"something is not told":    {func(h *Held) { h.Lease.Spent = 20 }, true},
		"all is told":              {func(h *Held) { h.Lease.Spent, h.Reported = 20, 20 }, false},
		"a draw was lost":          {func(h *Held) { h.Lease.Spent, h.Reported, h.vain = 20, 20, true }, true},
		"settled, with a lease":    {func(h *Held) { h.Settled = true }, false},
		"settled, and a lost draw": {func(h *Held) { h.Settled, h.vain = true, true }, false},
	} {
		h := calmKey(instant(time.Hour))
		c.with(h)
		if h.Untold() != c.untold {
			t.Errorf("%s: untold %v", what, h.Untold())
		}
	}
}
