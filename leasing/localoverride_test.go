package leasing

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A process that decides alone goes by an override from the next ask on, and by the rule's own limit when that is over
// or removed. What was spent counts on.
func TestLocalOverrides(t *testing.T) {
	wall := time.Unix(1_800_000_000, 0)
	l, ctx := NewLocal(100, 1, wall), context.Background()
	r := &ratelimit.Rule{Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Day, Requests: 3, Ceiling: 50}}
	r.Coordination = ratelimit.DefaultCoordination()
	r.Coordination.OnDeny = ratelimit.DenyRefunds
	a := ask{Rule: r, Key: []byte("k"), Cost: 1}
	admits := func(now instant, want int) {
		t.Helper()
		n, v := 0, make([]verdict, 1)
		for l.Decide(ctx, now, []ask{a}, v); !v[0].OverLimit; l.Decide(ctx, now, []ask{a}, v) {
			n++
		}
		if n != want {
			t.Errorf("%d are admitted, not %d", n, want)
		}
	}
	set := func(now instant, o *ratelimit.Override, m ratelimit.Match) (ratelimit.Override, error) {
		return l.SetOverride(ctx, now, &a, o, m)
	}
	admits(1, 3)
	first, err := set(1, &ratelimit.Override{Requests: 10, By: "ann"}, ratelimit.Match{})
	if err != nil || first.Set == 0 {
		t.Fatal(first, err)
	}
	admits(1, 7)
	if is, err := set(1, nil, ratelimit.Match{}); !errors.Is(err, ratelimit.ErrOverrideChanged) || is != first {
		t.Error(is, err)
	}
	second, err := set(1, &ratelimit.Override{Requests: 1000, Expires: first.Set.Add(time.Second)}, ratelimit.Match{Set: first.Set})
	if err != nil || second.Set <= first.Set {
		t.Error(second, err)
	}
	admits(1, 40) // up to the ceiling
	if o, err := l.Overrides(ctx, 1, "", "", 10); err != nil || len(o) != 1 || o[0].Key != KeyName(a.Key) || o[0].Override != second {
		t.Error(o, err)
	}
	v := make([]verdict, 1)
	if l.Decide(ctx, 1, []ask{{Rule: r, Key: a.Key, Kind: ratelimit.Peek}}, v); v[0].Limit == nil || v[0].Limit.Requests != 50 {
		t.Errorf("the limit in force is %v", v[0].Limit)
	}
	later := instant(1 + 2*time.Second)
	if l.Decide(ctx, later, []ask{a}, v); !v[0].OverLimit || v[0].Limit != nil {
		t.Errorf("after it is over: %+v", v[0])
	}
	if _, err = set(later, nil, ratelimit.Match{Any: true}); err != nil {
		t.Error(err)
	}
	if _, ok, err := l.Override(ctx, later, &a); ok || err != nil {
		t.Error("there is one that was removed", err)
	}
	for i := range 100 {
		other := ask{Rule: r, Key: []byte{byte(i)}}
		_, err = l.SetOverride(ctx, later, &other, &ratelimit.Override{}, ratelimit.Match{Any: true})
	}
	if !errors.Is(err, account.ErrFull) {
		t.Errorf("the 101st is no error but %v", err)
	}
}

// A charge that is taken back returns to a bucket that an override has raised, and takes nothing else from it.
func TestUndoUnderAnOverride(t *testing.T) {
	l := NewLocal(100, 1, testWall)
	r := testRule(ratelimit.Limit{
		Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Hour, Requests: 10, Burst: 10, Ceiling: 100,
	})
	a := ask{Rule: r, Key: keyOf(1), Cost: 1}
	if _, err := l.SetOverride(t.Context(), 1, &a, &ratelimit.Override{Requests: 100}, ratelimit.Match{}); err != nil {
		t.Fatal(err)
	}
	v := decideOne(l, 1, a)
	l.Undo(1, []ask{a}, []verdict{v})
	if got := decideOne(l, 1, ask{Rule: r, Key: a.Key, Kind: ratelimit.Peek}).Remaining; v.Remaining != 99 || got != 100 {
		t.Errorf("of 100, %d are left after a request, and %d when it is undone", v.Remaining, got)
	}
	l = NewLocal(100, 1, testWall)
	v = decideOne(l, 1, a)
	l.Undo(1, []ask{{Rule: r.LocalShare(2), Key: a.Key, Cost: 1}}, []verdict{v}) // a node has come meanwhile
	if got := decideOne(l, 1, ask{Rule: r, Key: a.Key, Kind: ratelimit.Peek}).Remaining; got < v.Remaining {
		t.Errorf("of %d, %d are left when a request is undone", v.Remaining, got)
	}
}

// A bucket whose limit was 0 for a while is not full afterwards, where it moves or its place is needed. The override of
// a key moves, too, if the key was counted under another mode before.
func TestBlockedBucketIsNotFull(t *testing.T) {
	from, to := NewLocal(100, 1, testWall), NewLocal(100, 1, testWall)
	r := ownedRule(ratelimit.Limit{
		Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Day, Requests: 10, Burst: 10, Ceiling: 100,
	})
	r.Coordination.OnDeny = ratelimit.DenyRefunds
	n := admit(from, 1, r, 10)
	a, o := ask{Rule: r, Key: keyOf(1)}, ratelimit.Override{Expires: from.LedgerNow(1).Add(time.Second)}
	if _, err := from.SetOverride(t.Context(), 1, &a, &o, ratelimit.Match{}); err != nil {
		t.Fatal(err)
	}
	n += admit(from, 2, r, 1)
	banned, other := ask{Rule: r, Key: keyOf(2), Cost: 1}, *r
	other.Coordination.Mode = ratelimit.Leasing
	decideOne(from, 2, ask{Rule: &other, Key: banned.Key, Cost: 1})
	if _, err := from.SetOverride(t.Context(), 2, &banned, &ratelimit.Override{}, ratelimit.Match{}); err != nil {
		t.Fatal(err)
	}
	later := instant(2 * time.Hour)
	handOver(t, later, from, to, everything)
	if v := decideOne(to, later, banned); !v.OverLimit {
		t.Errorf("a banned key that has moved is admitted: %+v", v)
	}
	if n += admit(to, later, r, 20); n > 10 {
		t.Errorf("%d are admitted of a bucket of 10 that gets no token in 2 hours", n)
	}
}
