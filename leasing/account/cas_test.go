package account

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// between is a store in which something happens before each write and read.
type between struct {
	*MemoryStore
	now     instant
	happens func(changes []Change) error
	reads   func()
}

func (b *between) Read(ctx context.Context, keys []StoreKey) (Snapshot, error) {
	if b.reads != nil {
		b.reads()
	}
	return b.MemoryStore.Read(ctx, keys)
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
	b := &between{now: epochAt}
	b.MemoryStore = NewMemoryStore(func() ratelimit.LedgerTime { return b.now })
	l := NewCAS(b, "c:")
	epochOf(t, l) // it begins
	return b, l
}

// ofTen is a claim of one of ten tokens.
func ofTen(key string, h ratelimit.Holder, seq uint64, need tokens) Claim {
	return claim(ratelimit.Limit{Unit: ratelimit.Day, Requests: 10}, key, h, seq, need)
}

// An account that others change each time is given up, and nothing of it is settled. Another of the same message is.
// So are slots.
func TestCASGivesUp(t *testing.T) {
	b, mine := newBetween(t)
	other, tries, slot := NewCAS(b.MemoryStore, "c:"), 0, make([]SlotAnswer, 1)
	take := SlotAsk{Key: "slots", Op: SlotTake, Slot: 1, Limit: 1 << 10, TTL: time.Second}
	b.happens = func([]Change) error {
		tries++
		take := take
		take.Slot = int64(1 + tries)
		other.Slots(t.Context(), []SlotAsk{take}, make([]SlotAnswer, 1))
		return settle(t, other, ofTen("k", 0xb00, uint64(tries), 0))[0].Err
	}
	claims := []Claim{ofTen("k", 0xa00, 1, 5), ofTen("j", 0xa00, 1, 5)}
	g := settle(t, mine, claims...)
	if !errors.Is(g[0].Err, ErrContended) || tries != triesMost {
		t.Errorf("after %d tries the grant is %+v, not an error after %d", tries, g[0], triesMost)
	}
	if g[1].Err != nil || g[1].Granted != 5 {
		t.Errorf("the grant of the other account is %+v", g[1])
	}
	if g := settle(t, other, ofTen("k", 0xb00, uint64(tries)+1, 10))[0]; g.Granted != 10 {
		t.Errorf("%+v: something was taken by a claim that failed", g)
	}
	tries += 10 // later numbers
	if mine.Slots(t.Context(), []SlotAsk{take}, slot); !errors.Is(slot[0].Err, ErrContended) {
		t.Errorf("slots of which others are taken each time: %+v", slot[0])
	}
	ctx, cancel := context.WithCancel(t.Context())
	tries += 10
	changed := b.happens
	b.happens = func(changes []Change) error {
		cancel()
		return changed(changes)
	}
	if _, _, err := mine.Settle(ctx, claims[:1], g); err != nil || !errors.Is(g[0].Err, context.Canceled) {
		t.Errorf("after its context ended: %v, %+v", err, g[0])
	}
}

// Others change accounts between a read and a write, data is lost, and writes fail that were made. What is granted in an
// epoch is in its data, a message without an answer is granted nothing, and the epoch after a loss is young.
func TestCASGrantsWhatIsWritten(t *testing.T) {
	lost, met := errors.New("the connection is lost"), map[string]int{}
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 9)) //nolint:gosec // the same run each time
		b, mine := newBetween(t)
		known, other, older := epochOf(t, mine), NewCAS(b.MemoryStore, "c:"), b.Copy()
		lives, theirs, has := 1, uint64(0), [2]tokens{}
		b.reads = func() {
			switch r.IntN(10) {
			case 0, 1:
				theirs++
				settle(t, other, ofTen([]string{"k", "j"}[r.IntN(2)], 0xb00, theirs, 1))
			case 2:
				lives++
				b.Lose(older, fmt.Sprint(lives))
				epochOf(t, other)
			case 3:
				older = b.Copy()
			}
		}
		b.happens = func(changes []Change) error {
			if b.reads(); r.IntN(10) > 0 {
				return nil
			}
			_, err := b.MemoryStore.Write(t.Context(), fmt.Sprint(lives), changes)
			return errors.Join(err, lost)
		}
		for seq := range uint64(20) {
			claims, grants := []Claim{ofTen("k", 0xa00, seq+1, 1), ofTen("j", 0xa00, seq+1, 1)}, make([]Grant, 2)
			for i := range claims {
				claims[i].Taken, claims[i].Spent = has[i], has[i]
			}
			epoch, _, err := mine.Settle(t.Context(), claims, grants)
			if err == nil && epoch.ID != known.ID && !epoch.Young(epochAt) {
				t.Errorf("seed %d: after a loss the epoch is %+v, and was %+v", seed, epoch, known)
			}
			is := epochOf(t, other)
			for i, g := range grants {
				switch {
				case err != nil || g.Err != nil:
					met["failed"]++
					if g.Err == nil || g.Granted != 0 {
						t.Errorf("seed %d: %v, and a grant is %+v", seed, err, g)
					}
				case epoch.ID == is.ID:
					met["granted"]++
					has[i], known = g.Total, epoch
					look, err := other.Look(t.Context(), claims[i].Key, claims[i].Window, &claims[i].Limit)
					mine := func(h ratelimit.HolderLook) bool { return h.Holder == 0xa00 && h.Granted == g.Total }
					if err != nil || look == nil || !slices.ContainsFunc(look.Holders, mine) {
						t.Errorf("seed %d: granted is %+v, and the data has %+v, %v", seed, g, look, err)
					}
				}
			}
		}
	}
	if met["granted"] < 1000 || met["failed"] < 1000 {
		t.Errorf("what was played? %v", met)
	}
}

// Claims on one account are one change, and another release's record spoils its own account only.
func TestCASMessages(t *testing.T) {
	b, l := newBetween(t)
	c := ofTen("foreign", 0xa00, 1, 1)
	foreign := Change{StoreKey: l.keyOf(&c, c.Window), Data: []byte("another release's"), Until: lastTime}
	if _, err := b.MemoryStore.Write(t.Context(), "1", []Change{foreign}); err != nil {
		t.Fatal(err)
	}
	writes := 0
	b.happens = func(changes []Change) error {
		writes += len(changes)
		return nil
	}
	g := settle(t, l, ofTen("k", 0xa00, 1, 4), c, ofTen("k", 0xb00, 1, 4), ofTen("k", 0xa00, 1, 4), Claim{})
	if writes != 1 || g[0].Granted != 4 || g[2].Granted != 4 || g[2].InHand != 0 {
		t.Errorf("%d changes, %+v", writes, g)
	}
	for i, want := range map[int]error{1: ErrRecord, 3: ErrOvertaken, 4: errClaim} {
		if !errors.Is(g[i].Err, want) {
			t.Errorf("message %d: %v, want %v", i, g[i].Err, want)
		}
	}
}

// Claims of a message are settled in its order: what one does to a window, the next on the window behind it sees.
func TestCASSettlesInOrder(t *testing.T) {
	late := ofTen("k", 0xa00, 1, 0)
	late.Limit.Algorithm = ratelimit.SlidingWindow
	early := late
	early.Window--
	early.Taken, early.Spent = 13, 13
	for behind, claims := range map[tokens][]Claim{13: {early, late}, 0: {late, early}} {
		_, l := newBetween(t)
		for i, g := range settle(t, l, claims...) {
			want := behind
			if claims[i].Window == early.Window {
				want = 13
			}
			if g.Err != nil || g.Sum != want {
				t.Errorf("of %v the window %d has %+v, and must have %d", claims, claims[i].Window, g, want)
			}
		}
	}
}

// What is over is dropped, and nothing else.
func TestCASSweep(t *testing.T) {
	b, l := newBetween(t)
	c := ofTen("k", 0xa00, 1, 4)
	settle(t, l, c)
	over := spanOf(&c.Limit, c.Window).over
	for now, left := range map[instant]int{over - 1: 2, over: 1} { // the epoch stays
		b.now = now
		older := b.Copy()
		if err := l.Sweep(t.Context()); err != nil || len(b.records) != left {
			t.Errorf("at %d %d records are left, not %d: %v", now, len(b.records), left, err)
		}
		b.Lose(older, "1")
	}
}

// Whatever a record is, it is read or refused, and what was read is written as it was.
func FuzzStoredAccount(f *testing.F) {
	a, b := kept{over: 7}, kept{bucket: &bucket{}}
	for h := range ratelimit.Holder(3) {
		c := claim(fixed(7), "k", h+1, 1, 3)
		a.account.claim(epochAt, &c, 0, func(ratelimit.Holder) {})
	}
	c := claim(bucketOf(7, 7), "k", 9, 1, 3)
	b.bucket.claim(epochAt, &c)
	f.Add(a.encode())
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
