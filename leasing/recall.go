package leasing

import "time"

// A recall is a message of the ledger to a holder: others wait for tokens of this
// account, and there are none left but those that are leased. The holder gives back
// at once what it does not need in the next moment. It is a hint: when it is lost,
// others are refused, and nothing else is wrong (docs/protocol.md, section 4.11).
//
//	claim: 1 waits --> nothing left, 40 leased elsewhere --recall--> other holder
//	                                                                   |
//	asked again after recallPause <-- 38 left <-- claim: 38 returned --'

const (
	// recallPause is how long a node waits before it asks again for what was
	// recalled: about two round trips and some work.
	recallPause = 2 * time.Millisecond
	// recallKeeps is for how long a holder keeps enough for its own demand.
	recallKeeps = 20 * time.Millisecond
)

// recall is what a node knows of recalls of one key.
type recall struct {
	asked     bool    // this node was asked to give back, while a claim was under way
	stretched bool    // the lease was made larger and longer: it is not given back when idle
	recalling bool    // others have been asked to give back, for this node's claim
	resume    instant // until then, what waits does not claim again
	resting   *flight // that ends then
}

// Recalled takes in that others wait for tokens of an account, by its name in the
// ledger. It does not block.
func (f *Fleet) Recalled(account string) {
	key := []byte(account)
	if !f.RawNames {
		var ok bool
		if key, ok = keyOfName(account); !ok {
			return // nothing of this version's
		}
	}
	s, _, h := f.locked(key)
	defer s.mu.Unlock()
	if h == nil {
		return
	}
	if h.flight != nil {
		h.asked = true
		return
	}
	f.giveBackSome(h, 0)
}

// giveBackSome has a claim sent that returns what is not needed, but for keep. The
// caller holds the shard's lock.
func (f *Fleet) giveBackSome(h *held, keep tokens) {
	h.asked = false
	if h.rule == nil || h.lease.Unspent() <= 0 && h.lease.Spent == h.reported {
		return // the ledger knows it by now
	}
	fl := f.newFlight(h)
	fl.recall, fl.keep = true, keep
	f.launch(h, fl)
}

// giveBack returns what the next moment does not need, but for keep at least.
func (h *held) giveBack(keep tokens) {
	keep = max(keep, tokens(recallKeeps.Seconds()*h.demand.perSec))
	h.lease.Returned += max(0, h.lease.Unspent()-keep)
	h.stretched = false
}

// untilAgain is a flight that ends when what was recalled may be there.
func (f *Fleet) untilAgain(h *held, now instant) *flight {
	if h.resting == nil || h.resting.ended() {
		fl := &flight{done: make(chan struct{})}
		f.after(h.resume.Sub(now), func() { close(fl.done) })
		h.resting = fl
	}
	return h.resting
}
