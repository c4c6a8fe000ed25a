package account

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// between is a store in which something happens before each write.
type between struct {
	*MemoryStore
	happens func(changes []Change) error
}

func (b *between) Write(ctx context.Context, life string, changes []Change) ([]bool, error) {
	if b.happens != nil {
		if err := b.happens(changes); err != nil {
			return nil, err
		}
	}
	return b.MemoryStore.Write(ctx, life, changes)
}

func newBetween(t *testing.T) (*between, *CAS) {
	t.Helper()
	now := epochAt
	b := &between{MemoryStore: NewMemoryStore(func() ratelimit.LedgerTime { return now })}
	l := NewCAS(b, "c:")
	if _, err := l.Verify(t.Context()); err != nil { // the epoch begins
		t.Fatal(err)
	}
	return b, l
}

func casClaim(key string, h ratelimit.Holder, seq uint64, need tokens) Claim {
	l := ratelimit.Limit{Unit: ratelimit.Day, Requests: 10}
	return Claim{Key: key, Window: l.WindowAt(epochAt), Limit: l, Holder: h, Seq: seq, Need: need, Want: need}
}

// settle1 settles one claim.
func settle1(t *testing.T, l Ledger, c Claim) Grant {
	t.Helper()
	g := make([]Grant, 1)
	if _, _, err := l.Settle(t.Context(), []Claim{c}, g); err != nil && g[0].Err == nil {
		t.Fatalf("%v, and the grant is %+v", err, g[0])
	}
	return g[0]
}

// Another node takes tokens between this one's read and its write: what is granted is what is left.
func TestCASReadsAgain(t *testing.T) {
	b, mine := newBetween(t)
	other := NewCAS(b.MemoryStore, "c:")
	met := 0
	b.happens = func([]Change) error {
		if met++; met <= 3 {
			if g := settle1(t, other, casClaim("k", 0xb00, uint64(met), 0)); g.Err != nil {
				return g.Err
			}
			c := casClaim("k", ratelimit.Holder(0xc00+met), 1, 3)
			if g := settle1(t, other, c); g.Granted != 3 {
				return fmt.Errorf("another node was granted %+v", g)
			}
		}
		return nil
	}
	if g := settle1(t, mine, casClaim("k", 0xa00, 1, 5)); g.Err != nil || g.Granted != 1 || g.Sum != 10 {
		t.Errorf("the last of 10 tokens: %+v", g)
	}
	if met != 4 {
		t.Errorf("%d writes were tried, not 4", met)
	}
}

// An account that others change each time is given up, and nothing of it is settled. Another of the same message is.
func TestCASGivesUp(t *testing.T) {
	b, mine := newBetween(t)
	other, tries := NewCAS(b.MemoryStore, "c:"), uint64(0)
	b.happens = func([]Change) error {
		tries++
		return settle1(t, other, casClaim("k", 0xb00, tries, 0)).Err
	}
	claims, grants := []Claim{casClaim("k", 0xa00, 1, 5), casClaim("calm", 0xa00, 1, 5)}, make([]Grant, 2)
	if _, _, err := mine.Settle(t.Context(), claims, grants); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(grants[0].Err, ErrContended) || tries != triesMost {
		t.Errorf("after %d tries the grant is %+v, not an error after %d", tries, grants[0], triesMost)
	}
	if grants[1].Err != nil || grants[1].Granted != 5 {
		t.Errorf("the grant of the other account is %+v", grants[1])
	}
	if g := settle1(t, other, casClaim("k", 0xb00, tries+1, 10)); g.Granted != 10 {
		t.Errorf("%+v: something was taken by a claim that failed", g)
	}
	ctx, cancel := context.WithCancel(t.Context())
	tries += 10
	b.happens = func([]Change) error {
		cancel()
		tries++
		return settle1(t, other, casClaim("k", 0xb00, tries, 0)).Err
	}
	if _, _, err := mine.Settle(ctx, claims[:1], grants); err != nil || !errors.Is(grants[0].Err, context.Canceled) {
		t.Errorf("after its context ended: %v, %+v", err, grants[0])
	}
}

// Data that is lost between a read and a write has nothing written, and the next message finds another epoch, which is
// young.
func TestCASLosesItsData(t *testing.T) {
	b, l := newBetween(t)
	first, err := l.Verify(t.Context())
	if err != nil || first.ID == 0 || first.Young(epochAt) {
		t.Fatalf("the first epoch is %+v, %v: nothing was lost", first, err)
	}
	older := b.Copy()
	if g := settle1(t, l, casClaim("k", 0xa00, 1, 8)); g.Granted != 8 {
		t.Fatalf("%+v", g)
	}
	b.happens = func([]Change) error {
		b.happens = nil
		b.Lose(older, "2")
		return nil
	}
	if g := settle1(t, l, casClaim("k", 0xb00, 1, 8)); !errors.Is(g.Err, ErrLife) {
		t.Errorf("a claim on data that was lost is answered %+v", g)
	}
	second, err := l.Verify(t.Context())
	if err != nil || second.ID == first.ID || !second.Young(epochAt) {
		t.Errorf("the second epoch is %+v after %+v, %v", second, first, err)
	}
	c := casClaim("k", 0xa00, 2, 0)
	c.Taken = 8
	if g := settle1(t, l, c); g.Sum != 8 {
		t.Errorf("told of what was lost: %+v", g)
	}
	if _, err := l.Prolong(t.Context()); err != nil {
		t.Error(err)
	}
	if e, _ := l.Verify(t.Context()); e.ID != second.ID || !e.Young(epochAt) {
		t.Errorf("the epoch is %+v, was %+v", e, second)
	}
}

// A write that fails may have been made: nothing is granted, and the holder's next message puts it right.
func TestCASWriteThatFails(t *testing.T) {
	b, l := newBetween(t)
	lost := errors.New("the connection is lost")
	b.happens = func(changes []Change) error {
		b.happens = nil
		if _, err := b.MemoryStore.Write(t.Context(), "1", changes); err != nil {
			return err
		}
		return lost
	}
	if g := settle1(t, l, casClaim("k", 0xa00, 1, 8)); !errors.Is(g.Err, lost) || g.Granted != 0 {
		t.Errorf("%+v", g)
	}
	if g := settle1(t, l, casClaim("k", 0xa00, 2, 10)); g.Err != nil || g.Granted != 10 {
		t.Errorf("%+v: all 10 are free, for the holder has none", g)
	}
}

// Claims on one account are one change, and another release's record spoils its own account only.
func TestCASMessages(t *testing.T) {
	b, l := newBetween(t)
	c := casClaim("foreign", 0xa00, 1, 1)
	foreign := Change{StoreKey: l.keyOf(&c, c.Window), Data: []byte("another release's"), Until: lastTime}
	if _, err := b.MemoryStore.Write(t.Context(), "1", []Change{foreign}); err != nil {
		t.Fatal(err)
	}
	writes := 0
	b.happens = func(changes []Change) error {
		writes += len(changes)
		return nil
	}
	claims := []Claim{casClaim("k", 0xa00, 1, 4), c, casClaim("k", 0xb00, 1, 4), casClaim("k", 0xa00, 1, 4), {}}
	grants := make([]Grant, len(claims))
	if _, _, err := l.Settle(t.Context(), claims, grants); err != nil {
		t.Fatal(err)
	}
	if writes != 1 || grants[0].Granted != 4 || grants[2].Granted != 4 || grants[2].InHand != 0 {
		t.Errorf("%d changes, %+v", writes, grants)
	}
	if !errors.Is(grants[1].Err, ErrRecord) || !errors.Is(grants[3].Err, ErrOvertaken) || !errors.Is(grants[4].Err, errClaim) {
		t.Errorf("the errors are %v, %v, %v", grants[1].Err, grants[3].Err, grants[4].Err)
	}
}

// Claims of a message are settled in its order: what one does to a window, the next on the window behind it sees.
func TestCASSettlesInOrder(t *testing.T) {
	late, early := casClaim("k", 0xa00, 1, 0), casClaim("k", 0xa00, 1, 0)
	late.Limit.Algorithm, early.Limit.Algorithm = ratelimit.SlidingWindow, ratelimit.SlidingWindow
	early.Window--
	early.Taken, early.Spent = 13, 13
	for want, claims := range map[tokens][]Claim{13: {early, late}, 0: {late, early}} {
		_, l := newBetween(t)
		grants := make([]Grant, 2)
		if _, _, err := l.Settle(t.Context(), claims, grants); err != nil {
			t.Fatal(err)
		}
		for i, c := range claims {
			sum := want
			if c.Window == early.Window {
				sum = 13
			}
			if grants[i].Err != nil || grants[i].Sum != sum {
				t.Errorf("of %v the window %d has %+v, and must have %d", claims, c.Window, grants[i], sum)
			}
		}
	}
}

// What is over is dropped, and nothing else.
func TestCASSweep(t *testing.T) {
	now := epochAt
	s := NewMemoryStore(func() ratelimit.LedgerTime { return now })
	l := NewCAS(s, "c:")
	c := casClaim("k", 0xa00, 1, 4)
	settle1(t, l, c)
	for _, at := range []struct {
		now  instant
		left int
	}{{spanOf(&c.Limit, c.Window).over - 1, 2}, {spanOf(&c.Limit, c.Window).over, 1}} {
		now = at.now
		if err := l.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(s.records) != at.left {
			t.Errorf("%d records are left, not %d", len(s.records), at.left)
		}
	}
}

// Whatever a record is, it is read or refused, and what was read is written as it was.
func FuzzStoredAccount(f *testing.F) {
	a := kept{over: 7}
	for h := range 3 {
		a.account.claim(epochAt, &Claim{Holder: ratelimit.Holder(h + 1), Seq: 1, Need: 3, Want: 3, Limit: ratelimit.Limit{Requests: 7}}, 0, func(ratelimit.Holder) {})
	}
	f.Add(a.encode())
	b := kept{bucket: &bucket{}}
	b.bucket.claim(epochAt, &Claim{Holder: 9, Seq: 1, Need: 3, Want: 3, Limit: ratelimit.Limit{
		Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 7, Burst: 7,
	}})
	f.Add(b.encode())
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, data []byte) {
		var k, again kept
		if k.decode(data) != nil {
			return
		}
		written := k.encode()
		if err := again.decode(written); err != nil || !bytes.Equal(again.encode(), written) {
			t.Fatalf("%x was read as %+v, written as %x, and that is read as %+v, %v", data, k, written, again, err)
		}
	})
}
