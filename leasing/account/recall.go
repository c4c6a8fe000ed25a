package account

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// recall is the state of an account's recalls. The zero recall recalls at once. A recall is a hint: if it is lost,
// requests are refused that could have been admitted, without other effects.
type recall struct {
	// asked is the ledger's time of the last recall; 0: there was none.
	asked instant
	pause time.Duration // until the next recall; it grows while no tokens come back
	// least is the shortest pause. Invariant: it grows with the number of records, so that reading them takes a small
	// part of the ledger's time.
	least time.Duration
}

// Pauses of recalls.
const (
	askedRarely  = time.Second           // the longest pause
	recordsPause = 20 * time.Microsecond // for each record, which takes a microsecond to read
)

// recallAll recalls all other holders with tokens in hand, if it is time. It reports whether they were recalled now or
// a moment ago. It reads all records. A claim shortly after a recall is answered as if it had recalled: the tokens of
// others are on their way. So its sender waits for them, instead of a refusal.
func (a *account) recallAll(but ratelimit.Holder, now instant, ask func(ratelimit.Holder)) bool {
	since := now.Sub(a.asked)
	if since >= 0 && since < a.pause {
		return since < readAgain
	}
	a.askedAt(now, since)
	for i := range a.records {
		if r := &a.records[i]; r.holder != but && r.inHand() > 0 {
			ask(r.holder)
		}
	}
	return true
}

// askedAt sets the time of the next recall. While nothing comes back, pauses double from least to askedRarely. They
// begin again with least if the clock was set back, or if the last recall was more than two seconds ago.
func (a *account) askedAt(now instant, since time.Duration) {
	pause := 2 * a.pause
	if since < 0 || since > 2*askedRarely {
		pause = 0
	}
	a.asked = now
	a.least = max(readAgain, time.Duration(len(a.records))*recordsPause)
	a.pause = max(a.least, min(pause, askedRarely))
}
