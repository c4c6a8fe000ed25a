package account

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Slots are the requests of a key in flight, under a concurrency limit: each has a number and an end. The zero Slots
// are none. They are not safe for concurrent use.
//
// Guarantee: at most limit slots are taken. Each is taken once and given back once. It returns by itself at its end, by
// the clock by which it was taken. A counter with +1 and -1 would leak: an Envoy that dies sends no -1 (docs/adr,
// decision 35).
type Slots []Slot

// Slot is a taken slot.
type Slot struct {
	// Number is random (holds.NewSlot), and chosen before the first ask. So a repeated ask takes no second slot.
	Number int64
	Until  ratelimit.LedgerTime
}

// SlotOp is an operation on slots.
type SlotOp uint8

const (
	// SlotLook changes nothing.
	SlotLook SlotOp = iota
	// SlotTake takes the slot, if one is free. To take a taken slot changes nothing.
	SlotTake
	// SlotGive gives the slot back.
	SlotGive
	// SlotClear gives all slots of the key back.
	SlotClear
)

var slotOps = [...]string{SlotLook: "look", SlotTake: "take", SlotGive: "give", SlotClear: "clear"}

// SlotAsk is an operation on the slots of a key.
type SlotAsk struct {
	Key   string
	Op    SlotOp
	Slot  int64            // not 0, except for SlotLook
	Limit ratelimit.Tokens // maximum of slots
	TTL   time.Duration    // maximum time of a slot
}

// SlotAskOf is an ask in the form of slots, without a key. A refund has no slot: it changes nothing. The Window of such
// an ask is the number of its slot, and the period of its limit the time of a slot.
func SlotAskOf(a *ratelimit.Ask) SlotAsk {
	x := SlotAsk{Slot: int64(a.Window), Limit: a.Rule.Limit.Requests, TTL: a.Rule.Limit.Period()}
	switch {
	case a.Window == 0:
	case a.Kind == ratelimit.Spend:
		x.Op = SlotTake
	case a.Kind == ratelimit.Release:
		x.Op = SlotGive
	}
	return x
}

// SlotAnswer answers a SlotAsk.
type SlotAnswer struct {
	Taken ratelimit.Tokens // by all, afterwards
	Has   bool             // the slot was taken before, or is now
	Err   error            // if set, no other field counts
}

// SlotLedger keeps slots for a fleet. It is safe for concurrent use, and blocks at most until ctx is done. It answers
// asks in their order. After an error an ask may have been executed.
type SlotLedger interface {
	Slots(ctx context.Context, asks []SlotAsk, answers []SlotAnswer)
}

// Decide answers an ask at an instant. It reports whether it has changed more than ended slots. An ended slot alone is
// no change: it is dropped at each read, and need not be written.
func (all *Slots) Decide(now ratelimit.LedgerTime, a *SlotAsk) (x SlotAnswer, changed bool) {
	*all = slices.DeleteFunc(*all, func(s Slot) bool { return s.Until <= now })
	i := slices.IndexFunc(*all, func(s Slot) bool { return s.Number == a.Slot })
	x.Has = i >= 0
	switch {
	case a.Op == SlotGive && x.Has:
		*all, changed = slices.Delete(*all, i, i+1), true
	case a.Op == SlotClear:
		*all = nil
		changed = true
		x.Has = false
	case a.Op == SlotTake && !x.Has && ratelimit.Tokens(len(*all)) < a.Limit:
		*all = append(*all, Slot{a.Slot, now.Add(a.TTL)})
		x.Has, changed = true, true
	}
	x.Taken = ratelimit.Tokens(len(*all))
	return x, changed
}

// Last is the time at which all have returned.
func (all Slots) Last() (at ratelimit.LedgerTime) {
	for _, s := range all {
		at = max(at, s.Until)
	}
	return at
}

// slotsOf names the slots of a key at a store. For example "{second.concurrency*60|edge|user=a}0slots": in the slot of
// the Cluster in which other accounts of the key would be.
func slotsOf(prefix, key string) string { return NameOf(prefix, key, 0) + "slots" }

//go:embed slots.lua
var slotsLua string

var slotsScript = redis.NewScript(slotsLua)

// Slots implements [SlotLedger]: a sorted set for each key, and a script for each ask, by the clock of its server. Asks
// that found no script are sent again with its text, and had changed nothing.
func (l *Redis) Slots(ctx context.Context, asks []SlotAsk, answers []SlotAnswer) {
	left := make([]int, len(asks))
	for i := range left {
		left[i] = i
	}
	left = l.slots(ctx, asks, answers, left, slotsScript.EvalSha)
	if len(left) > 0 {
		l.slots(ctx, asks, answers, left, slotsScript.Eval)
	}
}

// slots sends asks in a pipeline, and returns those for servers without the script.
func (l *Redis) slots(
	ctx context.Context, asks []SlotAsk, answers []SlotAnswer, left []int,
	eval func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd,
) (again []int) {
	pipe := l.universal().Pipeline()
	cmds := make([]*redis.Cmd, len(left))
	for n, i := range left {
		a := &asks[i]
		cmds[n] = eval(ctx, pipe, []string{slotsOf(l.prefix, a.Key)}, slotOps[a.Op], strconv.FormatInt(a.Slot, 16),
			int64(a.Limit), a.TTL.Microseconds())
	}
	_, _ = pipe.Exec(ctx) // each has its own error
	for n, i := range left {
		answers[i] = slotAnswer(cmds[n])
		if redis.HasErrorPrefix(cmds[n].Err(), "NOSCRIPT") {
			again = append(again, i)
		}
	}
	return again
}

// universal is the client of all keys. That of a Cluster finds the server of each command by itself.
func (l *Redis) universal() redis.UniversalClient {
	if l.cluster != nil {
		return l.cluster
	}
	return l.one.client
}

// slotAnswer reads two integers: the number of taken slots, and 1 if this slot is one of them.
func slotAnswer(c *redis.Cmd) SlotAnswer {
	n, err := c.Int64Slice()
	switch {
	case err != nil:
		return SlotAnswer{Err: fmt.Errorf("redis: %w", err)}
	case len(n) != 2 || n[0] < 0 || n[0] > int64(ratelimit.MaxConcurrency):
		return SlotAnswer{Err: fmt.Errorf("%w: %v of slots", ErrAnswer, n)}
	}
	return SlotAnswer{Taken: ratelimit.Tokens(n[0]), Has: n[1] == 1}
}

// slotRecord is the beginning of a record of slots.
const slotRecord = 2

func (all Slots) encode() []byte {
	w := writer{slotRecord}
	for _, s := range all {
		w.int(s.Number, int64(s.Until))
	}
	return w
}

func (all *Slots) decode(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	r := reader{left: data[1:], failed: data[0] != slotRecord}
	for len(r.left) > 0 && !r.failed {
		*all = append(*all, Slot{r.int(), ratelimit.LedgerTime(r.int())})
	}
	if r.failed {
		return fmt.Errorf("%w: %d bytes that begin with %.16x", ErrRecord, len(data), data)
	}
	return nil
}

// Slots implements [SlotLedger]: a record for each key. The asks about a key are one change. edit may call its function
// several times for a key: each time, answers are written anew.
func (l *CAS) Slots(ctx context.Context, asks []SlotAsk, answers []SlotAnswer) {
	var keys []StoreKey
	var of [][]int // the asks of each
	for i := range asks {
		key := StoreKey{Name: slotsOf(l.prefix, asks[i].Key)}
		k := slices.Index(keys, key)
		if k < 0 {
			k = len(keys)
			keys = append(keys, key)
			of = append(of, nil)
		}
		of[k] = append(of[k], i)
	}
	left, err := l.edit(ctx, keys, func(now instant, k int, r *Record) *Change {
		var all Slots
		failed, changed := all.decode(r.Data), false
		for _, i := range of[k] {
			answers[i] = (SlotAnswer{Err: failed})
			if failed == nil {
				x, changes := all.Decide(now, &asks[i])
				answers[i], changed = x, changed || changes
			}
		}
		if !changed {
			return nil
		}
		return &Change{Data: all.encode(), Until: max(now, all.Last())}
	})
	for _, k := range left {
		for _, i := range of[k] {
			answers[i] = SlotAnswer{Err: err}
		}
	}
}
