package account

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/leasing/redistest"
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

// Data that is lost between a read and a write has nothing written, and the next message finds another epoch, which is
// young.
func TestCASLosesItsData(t *testing.T) {
	b, l := newBetween(t)
	first := epochOf(t, l)
	if first.Young(epochAt) {
		t.Fatalf("the first epoch is %+v: nothing was lost", first)
	}
	older := b.Copy()
	if g := settle(t, l, ofTen("k", 0xa00, 1, 8))[0]; g.Granted != 8 {
		t.Fatalf("%+v", g)
	}
	b.happens = func([]Change) error {
		b.happens = nil
		b.Lose(older, "2")
		return nil
	}
	if g := settle(t, l, ofTen("k", 0xb00, 1, 8))[0]; !errors.Is(g.Err, ErrLife) {
		t.Errorf("a claim on data that was lost is answered %+v", g)
	}
	second := epochOf(t, l)
	if second.ID == first.ID || !second.Young(epochAt) {
		t.Errorf("the second epoch is %+v after %+v", second, first)
	}
	c := ofTen("k", 0xa00, 2, 0)
	c.Taken = 8
	if g := settle(t, l, c)[0]; g.Sum != 8 {
		t.Errorf("told of what was lost: %+v", g)
	}
}

// A node that has read another epoch makes a new one young, also if others that have not change its record meanwhile.
func TestCASMakesYoung(t *testing.T) {
	b, mine := newBetween(t)
	epochOf(t, mine)
	b.Lose(nil, "2")
	other := NewCAS(b.MemoryStore, "c:")
	if e := epochOf(t, other); e.Young(epochAt) {
		t.Fatalf("a node that has read no other epoch makes it young: %+v", e)
	}
	b.happens = func([]Change) error {
		b.happens = nil
		epochOf(t, other)
		epochOf(t, other) // it has the version of its last beat
		return nil
	}
	if is := epochOf(t, mine); !is.Young(epochAt) {
		t.Errorf("it is %+v", is)
	}
	epochOf(t, mine)
	if is := epochOf(t, other); !is.Young(epochAt) {
		t.Errorf("for others, it is %+v", is)
	}
}

// Data that is lost between two tries of a message takes with it what the first try settled: no claim of the message is
// granted.
func TestCASLosesItsDataBetweenTries(t *testing.T) {
	b, mine := newBetween(t)
	other := NewCAS(b.MemoryStore, "c:")
	tries, older := 0, b.Copy()
	b.happens = func([]Change) error {
		if tries++; tries == 1 { // another node is faster for the first account, and mine for the second
			return settle(t, other, ofTen("k", 0xb00, 1, 1))[0].Err
		}
		return nil
	}
	b.reads = func() {
		if tries == 1 {
			tries++
			b.Lose(older, "2")
			epochOf(t, other)
		}
	}
	grants := make([]Grant, 2)
	claims := []Claim{ofTen("k", 0xa00, 1, 5), ofTen("j", 0xa00, 1, 10)}
	if _, _, err := mine.Settle(t.Context(), claims, grants); !errors.Is(err, ErrLife) {
		t.Errorf("the message is answered %v", err)
	}
	for i, g := range grants {
		if !errors.Is(g.Err, ErrLife) || g.Granted != 0 {
			t.Errorf("claim %d: %+v", i, g)
		}
	}
	if g := settle(t, other, ofTen("j", 0xb00, 1, 10))[0]; g.Granted != 10 {
		t.Errorf("%+v: the lost data's grant is in the new", g)
	}
}

// A write that fails may have been made: nothing is granted, and the holder's next message puts it right.
func TestCASWriteThatFails(t *testing.T) {
	b, l := newBetween(t)
	lost := errors.New("the connection is lost")
	b.happens = func(changes []Change) error {
		b.happens = nil
		_, err := b.MemoryStore.Write(t.Context(), "1", changes)
		return errors.Join(err, lost)
	}
	if g := settle(t, l, ofTen("k", 0xa00, 1, 8))[0]; !errors.Is(g.Err, lost) || g.Granted != 0 {
		t.Errorf("%+v", g)
	}
	if g := settle(t, l, ofTen("k", 0xa00, 2, 10))[0]; g.Err != nil || g.Granted != 10 {
		t.Errorf("%+v: all 10 are free, for the holder has none", g)
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

// slotLedgers are all kinds, and clock has them go by another time, but Redis.
func slotLedgers(t *testing.T, clock func() ratelimit.LedgerTime) map[string]SlotLedger {
	t.Helper()
	inRedis := dialled(t, redistest.Shared(t).Client())
	return map[string]SlotLedger{"redis": inRedis, "cas": NewCAS(NewMemoryStore(clock), "")}
}

// Each ledger answers as Slots do, message by message, whatever is asked.
func TestSlotLedgersAgree(t *testing.T) {
	now := ratelimit.LedgerTime(time.Now().UnixMicro())
	for name, ledger := range slotLedgers(t, func() ratelimit.LedgerTime { return now }) {
		t.Run(name, func(t *testing.T) {
			runs := 0
			rapid.Check(t, func(t *rapid.T) {
				runs++
				all := map[string]*Slots{"a": {}, "b{}": {}}
				clear := []SlotAsk{{Key: "a", Op: SlotClear}, {Key: "b{}", Op: SlotClear}}
				ledger.Slots(context.Background(), clear, make([]SlotAnswer, 2))
				for range rapid.IntRange(1, 10).Draw(t, "messages") {
					asks := make([]SlotAsk, rapid.IntRange(1, 6).Draw(t, "asks"))
					for i := range asks {
						asks[i] = SlotAsk{
							Key: rapid.SampledFrom([]string{"a", "b{}"}).Draw(t, "key"),
							Op:  SlotOp(rapid.IntRange(0, len(slotOps)-1).Draw(t, "op")), Slot: rapid.Int64Range(1, 6).Draw(t, "slot"),
							Limit: ratelimit.Tokens(rapid.IntRange(0, 4).Draw(t, "limit")), TTL: time.Hour,
						}
					}
					answers := make([]SlotAnswer, len(asks))
					ledger.Slots(context.Background(), asks, answers)
					for i := range asks {
						if want, _ := all[asks[i].Key].Decide(now, &asks[i]); answers[i] != want {
							t.Fatalf("%+v: %+v, must be %+v", asks[i], answers[i], want)
						}
					}
				}
			})
		})
	}
}

// A slot that is not given back returns at its end, and not earlier. Redis then drops the key.
func TestSlotsComeBack(t *testing.T) {
	now := ratelimit.LedgerTime(time.Now().UnixMicro())
	take := func(slot int64) []SlotAsk { return []SlotAsk{{"a", SlotTake, slot, 1, 500 * time.Millisecond}} }
	for name, ledger := range slotLedgers(t, func() ratelimit.LedgerTime { return now }) {
		one := make([]SlotAnswer, 1)
		ledger.Slots(t.Context(), take(1), one)
		began := time.Now()
		for slot := int64(2); ; slot++ {
			if ledger.Slots(t.Context(), take(slot), one); one[0].Err != nil {
				t.Fatal(one[0].Err)
			}
			if one[0].Has {
				break
			}
			now += 100_000 // of those that go by it
		}
		if passed := time.Since(began); name == "redis" && passed < 400*time.Millisecond {
			t.Errorf("redis: a slot of 500 ms is free after %v", passed)
		}
	}
}

// A record of another kind is an error, and stays as it is.
func TestSlotRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := Slots{}
		for range rapid.IntRange(0, 20).Draw(t, "slots") {
			number, until := rapid.Int64Range(1, 1<<48).Draw(t, "number"), rapid.Int64().Draw(t, "until")
			all = append(all, Slot{number, ratelimit.LedgerTime(until)})
		}
		var read Slots
		data := all.encode()
		if err := read.decode(data); err != nil || !slices.Equal(read, all) {
			t.Fatalf("%v of %v: %v", read, all, err)
		}
		data[0] = 1
		if err := new(Slots).decode(data); !errors.Is(err, ErrRecord) {
			t.Fatalf("a record of an account: %v", err)
		}
	})
}
