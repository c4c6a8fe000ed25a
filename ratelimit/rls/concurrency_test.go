package rls

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

const slotRules = `domain: d
descriptors:
  - {key: slots, rate_limit: {name: in flight, concurrency: 2, hold_ttl: 60s}}
  - {key: other, rate_limit: {concurrency: 1}}
  - {key: never, rate_limit: {unit: year, requests_per_unit: 0}}
`

// A request takes one slot for any hits, and its end gives the slot back in any form. A third request waits
// for that, or until the end of a slot.
func TestSlots(t *testing.T) {
	f := holdFixtureOf(t, slotRules)
	holds := []string{}
	for _, hits := range []usage{0, 7} {
		hold, over := f.takes(descOf("slots=a", hits))
		if hold == "" || over {
			t.Fatalf("hits %d: hold %q, over %v", hits, hold, over)
		}
		holds = append(holds, hold)
	}
	refused := func(want bool) string {
		t.Helper()
		hold, over := f.takes(desc("slots=a"))
		if over != want || over != (hold == "") {
			t.Fatalf("over %v with hold %q, must be %v", over, hold, want)
		}
		return hold
	}
	refused(true)
	if _, over := f.takes(desc("slots=b")); over {
		t.Error("another key is refused")
	}
	f.ends("slots=a", holds[0], 3)
	f.ends("slots=a", holds[0], 3)
	third := refused(false)
	refused(true)
	f.ends("slots=a", third, unsaid) // the cost is not known
	refused(false)
	f.pass(59 * time.Second)
	refused(true)
	f.pass(time.Second)
	refused(false)
	counted := f.holdsCounted("slots")
	if counted["settled"] != 2 || counted["forged"] != 0 {
		t.Errorf("counted %v", counted)
	}
}

// 100,000 calls that are cut, changed, forged, replayed or of another key give no slot back, and neither do negative
// hits.
func TestHostileSlots(t *testing.T) {
	f := holdFixtureOf(t, slotRules)
	used, _ := f.takes(desc("slots=a"))
	f.ends("slots=a", used, unsaid)
	foreign, _ := f.takes(desc("slots=b"))
	for range 2 {
		if _, over := f.takes(desc("slots=a")); over {
			t.Fatal("refused")
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 100_000 {
		hold := []string{used, used[:1+r.IntN(len(used)-1)], strings.Repeat("A", 1+r.IntN(200)), foreign}[i%4]
		entries := "slots=a," + EntryHold + "=" + hold
		if i%2 == 0 {
			entries = fmt.Sprintf("slots=a,%s=1,%s=%s", EntryEnd, EntryHold, hold)
		}
		f.takes(descOf(entries, usage(r.IntN(3))))
	}
	negative := desc("slots=a")
	negative.IsNegativeHits = true
	f.takes(negative)
	if _, over := f.takes(desc("slots=a")); !over {
		t.Error("a slot came back that nobody has given back")
	}
}

// Envoy gets the limit without a unit, and clients get the form of the IETF draft.
func TestSlotAnswers(t *testing.T) {
	f := holdFixtureOf(t, slotRules)
	f.options.Headers.IETF = true
	a := f.must(rlsRequest(desc("slots=a")))
	st := a.GetStatuses()[0]
	l, unit := st.GetCurrentLimit(), rlsv3.RateLimitResponse_RateLimit_UNKNOWN
	if l.GetRequestsPerUnit() != 2 || l.GetUnit() != unit ||
		l.GetName() != "in flight" || st.GetLimitRemaining() != 1 {
		t.Errorf("the status is %v", st)
	}
	const want = `RateLimit-Policy: "in flight";qu="concurrent-requests";q=2 | RateLimit: "in flight";r=1;t=1`
	if got := headersOf(a); got != want {
		t.Errorf("headers are %s, must be %s", got, want)
	}
	f.must(rlsRequest(desc("slots=a")))
	a = f.must(rlsRequest(desc("slots=a")))
	if d := a.GetStatuses()[0].GetDurationUntilReset().AsDuration(); d != time.Second {
		t.Errorf("a refused client may come again after %v", d)
	}
}

// deadSlots is a ledger that does not answer.
type deadSlots struct{}

func (deadSlots) Slots(_ context.Context, _ []account.SlotAsk, answers []account.SlotAnswer) {
	for i := range answers {
		answers[i].Err = errors.New("the store is down")
	}
}

// What on_store_failure admits has a slot, too, by which it is given back: a node's part is for requests at once, and
// not for those of hold_ttl.
func TestSlotsWithoutAStore(t *testing.T) {
	f := holdFixtureOf(t, slotRules+"  - {key: open, coordination: {on_store_failure: open}, "+
		"rate_limit: {concurrency: 2, hold_ttl: 60s}}\n")
	clock := func() ratelimit.Instant { return f.now }
	limiter := leasing.NewConcurrency(deadSlots{}, leasing.NewLocal(100, f.now, time.Unix(1_800_000_000, 0)), clock)
	limiter.Nodes = func() int { return 1 }
	f.limiter = limiter
	for range 5 {
		a, over := f.takes(desc("slots=a"))
		b, overB := f.takes(desc("slots=a"))
		if a == "" || b == "" || over || overB {
			t.Fatalf("holds %q and %q, over %v and %v", a, b, over, overB)
		}
		if _, over := f.takes(desc("slots=a")); !over {
			t.Fatal("three are in flight of two")
		}
		f.ends("slots=a", a, unsaid)
		f.ends("slots=a", b, unsaid)
		if hold, over := f.takes(desc("open=a")); hold == "" || over {
			t.Fatalf("open: hold %q, over %v", hold, over)
		}
	}
}

// A request that passes keeps its slot, whatever STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT spares of its other limits.
func TestSlotsThatAreNotSpared(t *testing.T) {
	f := holdFixtureOf(t, slotRules+"  - {key: shadow, shadow_mode: true, "+
		"rate_limit: {unit: year, requests_per_unit: 1}}\n")
	f.options.SpareOthers = true
	f.takes(desc("shadow=x"))
	in := 0
	for range 5 {
		if hold, over := f.takes(desc("slots=a"), desc("shadow=x")); !over && hold != "" {
			in++
		}
	}
	if in != 2 {
		t.Errorf("%d are in flight of 2", in)
	}
}
