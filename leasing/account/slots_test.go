package account

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

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
