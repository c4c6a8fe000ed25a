package account

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// CRITICAL. On PostgreSQL and etcd (CAS) a claim reads the record of the override, and writes the account only: that the
// record is still the one it read is not looked at (Change has versions of the account alone). A ban that is set between
// the read and the write of a node's first claim is answered as set, and after it the claim takes the whole limit. Nobody
// recalls the node, for when the ban was set it had no part of the account ("Who claims of an account for the first time
// meanwhile is not told"): it spends its lease for as long as it lasts, or until the window ends. The package says that a
// message is judged by the override that is set when it is settled. Claims of a key that is new, or of a new window,
// while it is banned are what a ban is for: the abuser arrives at one node after the other.
func TestAttackClaimSettlesUnderAnOldOverride(t *testing.T) {
	b, node := newBetween(t)
	operator := NewCAS(b.MemoryStore, "c:", nil)
	told := map[string]bool{}
	b.OnRecall = func(h ratelimit.Holder, name string) { told[name] = true }
	c := casClaim("k", 1, 1, 10)
	c.Limit.Ceiling = 100
	set := ratelimit.LedgerTime(0)
	b.happens = func(changes []Change) error {
		if set == 0 {
			o, err := operator.SetOverride(t.Context(), &OverrideChange{
				Key: "k", Limit: c.Limit, Override: &ratelimit.Override{}, Match: ratelimit.Match{Any: true},
			})
			if err != nil {
				t.Fatal(err)
			}
			set = o.Set
		}
		return nil
	}
	g := settle1(t, node, c)
	if set == 0 {
		t.Fatal("the ban was not set between")
	}
	if g.Granted > 0 && len(told) == 0 {
		t.Errorf("the ban is set, and then %d tokens are granted to a node that nobody recalls: %+v", g.Granted, g)
	}
}

// LOW. The same at a holder that has a part already: it is recalled, but before its grant was settled. (A node that
// has a message under way asks once more: it holds then.) The grant that was settled after the ban is not judged by it.
func TestAttackClaimOfAHolderSettlesUnderAnOldOverride(t *testing.T) {
	b, node := newBetween(t)
	operator := NewCAS(b.MemoryStore, "c:", nil)
	c := casClaim("k", 1, 1, 1)
	c.Limit.Ceiling = 100
	settle1(t, node, c)
	done := false
	b.happens = func([]Change) error {
		if !done {
			done = true
			_, err := operator.SetOverride(t.Context(), &OverrideChange{
				Key: "k", Limit: c.Limit, Override: &ratelimit.Override{}, Match: ratelimit.Match{Any: true},
			})
			return err
		}
		return nil
	}
	c.Seq, c.Taken, c.Spent, c.Need, c.Want = 2, 1, 1, 9, 9
	if g := settle1(t, node, c); g.Granted > 0 {
		t.Errorf("after a ban is set %d tokens are granted, judged by %+v", g.Granted, g.Override)
	}
}

// LOW. Versions are times of the store. After a loss, at a server whose clock is behind (a failover), a ban that is set
// then has an earlier version than the override that a node tells again: the node wins, and the ban is gone, though its
// PUT was answered 200 and nobody set anything since.
func TestAttackToldAgainBeatsALaterChange(t *testing.T) {
	l := casClaim("k", 1, 1, 1).Limit
	l.Ceiling = 100
	old := ratelimit.Override{Requests: 100, Set: epochAt}
	var r Overridden // lost
	ban := OverrideChange{Key: "k", Limit: l, Override: &ratelimit.Override{}, Match: ratelimit.Match{Any: true}}
	if _, err := r.Change(epochAt.Add(-2_000_000_000), &ban); err != nil { // 2 s behind
		t.Fatal(err)
	}
	again := OverrideChange{Key: "k", Limit: l, Override: &old, Again: true}
	if _, err := r.Change(epochAt.Add(-1_000_000_000), &again); err != nil {
		t.Fatal(err)
	}
	if r.Requests != 0 {
		t.Errorf("after a ban was set an older override is in force: %+v", r.Override)
	}
}

// HIGH. An override resets what was spent of a token bucket: all the time since the account's last message is filled by
// the rate in force at the next one, also the time before the override was set. Who raises a key (to unlimited, or to the
// limit of another tier) and takes that back gives it its whole burst again, debt of refused requests included, if a
// message comes between: the override was in force for no time at all. "It never changes the amount that was spent."
func TestAttackRaisedForAnInstantABucketIsFull(t *testing.T) {
	now := epochAt
	m := NewMemory(10, func() ratelimit.LedgerTime { return now })
	limit := ratelimit.Limit{
		Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Hour, Requests: 10, Burst: 10, Ceiling: ratelimit.MaxLimit,
	}
	seq := uint64(0)
	claim := func(spent, need tokens) Grant {
		seq++
		return settle1(t, m, Claim{
			Key: "k", Limit: limit, Holder: 1, Seq: seq, Taken: spent, Spent: spent, Need: need, Want: need,
			TTL: time.Second,
		})
	}
	set := func(o *ratelimit.Override) {
		if _, err := m.SetOverride(t.Context(), &OverrideChange{
			Key: "k", Limit: limit, Override: o, Match: ratelimit.Match{Any: true},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if g := claim(0, 10); g.Granted != 10 {
		t.Fatalf("%+v", g)
	}
	claim(200, 0) // 190 refused requests, which are charged: 19 hours
	now = now.Add(time.Minute)
	set(&ratelimit.Override{Requests: 100_000})
	claim(200, 0) // as each holder is asked for
	set(nil)
	if g := claim(200, 10); g.Granted > 0 {
		t.Errorf("190 are owed of a bucket of 10 an hour; raised for no time at all it grants %d: %+v", g.Granted, g)
	}
}
