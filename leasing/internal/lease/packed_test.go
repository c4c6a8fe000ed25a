package lease

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-gate/sluice/ratelimit"
)

var perMinute100 = ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100}

// notPacked are the fields of held that a cold key does not have: it is packed only
// where they say nothing. All others must come back as they were, also those that
// somebody adds.
var notPacked = map[string]bool{
	".underWay": true, ".Rule": true, ".Next": true, ".todo": true,
	".Gauges.Of": true, ".Name": true, ".Fruits": true, ".holds": true, ".Demand.LastUse": true, // see TestPackedIsTheSame
	".Lease.Requests": true, ".Lease.Burst": true, ".Lease.RequestsHigh": true, ".Lease.BurstHigh": true,
	".Lease.Algorithm": true, ".Lease.Period": true,
}

// fill sets every number of v by draw, and every bool.
func fill(v reflect.Value, path string, draw func() int64) {
	if notPacked[path] {
		return
	}
	v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
	switch v.Kind() { //nolint:exhaustive // a field of another kind fails the test
	case reflect.Struct:
		for i := range v.NumField() {
			name := "." + v.Type().Field(i).Name
			if v.Type().Field(i).Anonymous {
				name = ""
			}
			fill(v.Field(i), path+name, draw)
		}
	case reflect.Int64:
		v.SetInt(draw())
	case reflect.Uint64:
		v.SetUint(uint64(draw()))
	case reflect.Float64:
		v.SetFloat(float64(draw()) / 7)
	case reflect.Bool:
		v.SetBool(draw()&1 != 0)
	default:
		panic(fmt.Sprintf("what becomes of held%s when a key is cold?", path))
	}
}

// What is known of a key is the same after it was packed, whatever it is.
func TestPackedIsTheSame(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	rule := testRule(perMinute100)
	rule.Counters = new(ratelimit.RuleCounters)
	for range 20_000 {
		h := Held{Rule: rule, Name: 40 + ratelimit.Holder(rnd.IntN(2))}
		h.Fruits, h.holds = uint8(rnd.IntN(MostFruitless+9)), uint8(rnd.IntN(mostHolds+1))
		h.Demand.LastUse = instant(rnd.Int64N(int64(1000 * time.Hour)))
		if rnd.IntN(2) == 0 {
			h.Gauges.Of = rule.Counters
		}
		switch rnd.IntN(4) {
		case 0:
		case 1:
			h.Lease.SetLimit(&ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Day, Multiplier: 3, Requests: 1 << 35, Burst: 1<<36 + 5})
		default:
			h.Lease.SetLimit(&rule.Limit)
		}
		few := rnd.IntN(2) == 0
		fill(reflect.ValueOf(&h).Elem(), "", func() int64 {
			switch n := rnd.IntN(6); {
			case n == 0 || few && n < 4:
				return 0
			case n == 1:
				return int64(Never)
			case n == 2:
				return rnd.Int64N(1<<61) - 1<<60
			}
			return rnd.Int64N(1000) - 100
		})
		b := h.Pack(nil, 3)
		var back Held
		back.Unpack(append(b, 0xff, 0xff, 0xff), rule, 40) // whatever lies behind
		if later := back.Demand.LastUse.Sub(h.Demand.LastUse); later < 0 || later >= Tick {
			t.Fatalf("last used %v later", later)
		}
		if back.Demand.LastUse = h.Demand.LastUse; back != h {
			t.Fatalf("of %+v there is %+v", h, back)
		}
	}
}

// What a cold key spends from its lease, a busy one would have spent just so: the same
// requests are admitted, with the same answers, and what is known afterwards is the same.
func TestColdSpendsAsBusy(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	rule := testRule(perMinute100)
	answered, asked := 0, 0
	for range 20_000 {
		now := instant(time.Hour)
		near := func() instant {
			return [...]instant{0, now - 1, now, now + 1, now.Add(time.Minute), Never}[min(rnd.IntN(20), 4+rnd.IntN(2))]
		}
		few := func() tokens { return tokens(rnd.IntN(12)) }
		h := Held{Rule: rule, Name: 40}
		h.Told, h.AheadAt = now-7, near()
		if rnd.IntN(5) == 0 {
			h.Pause = near()
		}
		h.Lease = Lease{Granted: 10 + few(), Spent: few(), Returned: few() / 2, Available: few(), Deadline: near(), Reset: near(), Window: 3}
		h.Renewal, h.Settled = Renewal{few(), near()}, rnd.IntN(2) == 0
		if rnd.IntN(10) > 0 {
			h.Lease.SetLimit(&rule.Limit)
		}
		kept := h.Pack(nil, 3)
		for range 3 {
			a := ask{Rule: rule, Cost: 1 + few()/3}
			asked++
			var v verdict
			ok := SpendPacked(kept, now, &a, &v)
			busy := h
			want, would := busy.Lease.Take(now, &a, Keeps)
			plain := would && !want.OverLimit && now >= h.Pause && now < h.AheadAt && !busy.Due(now, busy.Lease.Unspent())
			if ok != plain || ok && v != want {
				t.Fatalf("%+v\nanswers %+v %v, and when it is cold %+v %v", h, want, would, v, ok)
			}
			if ok {
				answered++
				h = busy
				h.Demand.Used += a.Cost
				h.Demand.LastUse, h.Settled = now, false
			}
			var back Held
			if back.Unpack(kept, rule, 40); back != h {
				t.Fatalf("%+v\nis when it was cold %+v", h, back)
			}
		}
	}
	if answered < asked/20 || answered > asked/2 {
		t.Errorf("%d of %d were answered", answered, asked)
	}
}

// manyLeft is a cold key with so many tokens, which is not due to be renewed.
func manyLeft(rule *ratelimit.Rule, n tokens) []byte {
	h := Held{Rule: rule, Name: 40}
	h.AheadAt = Never
	h.Lease = Lease{Granted: n, Available: n, Deadline: Never, Reset: Never, Window: 3}
	h.Renewal = Renewal{After: Never}
	h.Lease.SetLimit(&rule.Limit)
	return h.Pack(nil, 3)
}

// A key that is asked for again and again is made busy: after 64 requests, whatever each of
// them costs.
func TestColdKeyThatIsAskedForOften(t *testing.T) {
	rule := testRule(perMinute100)
	for _, cost := range []tokens{1, 3} {
		kept := manyLeft(rule, 1000)
		n, now := 0, instant(time.Hour)
		for SpendPacked(kept, now, &ask{Rule: rule, Cost: cost}, new(verdict)) {
			n++
		}
		if n != 64 {
			t.Errorf("%d requests for %d tokens were answered by a cold key, want 64", n, cost)
		}
	}
}

// What a cold key has spent is counted in 32 bits: it spends as many tokens as they hold,
// and a request for more makes it busy.
func TestColdKeySpendsUpTo32Bits(t *testing.T) {
	rule := testRule(perMinute100)
	kept, now := manyLeft(rule, 1<<40), instant(time.Hour)
	for _, c := range []struct {
		cost tokens
		ok   bool
	}{{1 << 32, false}, {1 << 31, true}, {1 << 31, false}, {1<<31 - 1, true}} {
		if ok := SpendPacked(kept, now, &ask{Rule: rule, Cost: c.cost}, new(verdict)); ok != c.ok {
			t.Errorf("%d more tokens were spent: %v, want %v", c.cost, ok, c.ok)
		}
	}
	var back Held
	if back.Unpack(kept, rule, 40); back.Lease.Spent != 1<<32-1 {
		t.Errorf("%d are spent", back.Lease.Spent)
	}
}

// A cold key whose lease was granted under its rule's limit takes no room for that limit.
func TestLimitOfTheRuleTakesNoRoom(t *testing.T) {
	rule, other := testRule(perMinute100), perMinute100
	other.Requests++
	h := Held{Rule: rule, Name: 40}
	h.Lease.SetLimit(&other)
	without := len((&Held{Rule: rule, Name: 40}).Pack(nil, 3))
	larger := len(h.Pack(nil, 3))
	h.Lease.SetLimit(&rule.Limit)
	if same := len(h.Pack(nil, 3)); same != without || larger <= same {
		t.Errorf("%d bytes without a limit, %d with the rule's, %d with another", without, same, larger)
	}
}

// A cold key is looked at when its window is over if the ledger is to hear of that once more,
// also where nobody keeps gauges of its rule; and not at all if there is nothing to do.
func TestWhenAColdKeyIsLookedAt(t *testing.T) {
	end := instant(time.Hour)
	for _, c := range []struct {
		what  string
		spent tokens
		want  instant
	}{
		{"all is reported", 0, Never},
		{"some is not", 3, end},
	} {
		h := Held{Rule: testRule(perMinute100), Name: 40}
		h.Rule.Coordination.Mode, h.Rule.Coordination.DriftBudget = ratelimit.Approx, ratelimit.Share{Tokens: 20}
		h.Lease.SetLimit(&h.Rule.Limit)
		h.Lease.Spent, h.Lease.Reset = c.spent, end
		if got := h.OverDue(); got != c.want {
			t.Errorf("%s: it is looked at at %d, want %d", c.what, got, c.want)
		}
	}
}
