package account

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A registration lasts for its time from its last renewal, and is known to be over long after. What a store does not
// have is not over.
func TestRegistrations(t *testing.T) {
	b, m := newBench(t, fixed(1)), newMoved(t, redistest.Shared(t))
	const node, other, unknown = ratelimit.Holder(1 << 28), ratelimit.Holder(2 << 28), ratelimit.Holder(3 << 28)
	for name, l := range map[string]Registrations{"memory": b.Memory, "Redis": m} {
		register := func(h ratelimit.Holder) {
			if err := l.Register(t.Context(), h); err != nil {
				t.Fatal(name, err)
			}
		}
		is := func(after time.Duration, want ...ratelimit.Holder) {
			t.Helper()
			b.now = epochAt.Add(after)
			m.now = b.now
			got, err := l.Over(t.Context(), []ratelimit.Holder{node, unknown, other})
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: after %v, %v are over, %v; want %v", name, after, got, err, want)
			}
		}
		is(0)
		register(node)
		is(3 * time.Second)
		register(other)
		is(ratelimit.RegisteredFor - time.Microsecond)
		is(ratelimit.RegisteredFor, node)
		register(node)
		is(ratelimit.RegisteredFor+3*time.Second, other)
		is(overFor, node, other)
		register(other)
		is(overFor+2*ratelimit.RegisteredFor, node, other)
		register(unknown)
		b.now = b.now.Add(2 * ratelimit.RegisteredFor)
		if err := b.Sweep(t.Context()); err != nil { // what is over for so long is dropped
			t.Fatal(err)
		}
		is(overFor+4*ratelimit.RegisteredFor, unknown, other)
	}
}

// Only what ended nodes have in hand is taken back, under names that lapse, and not the reader's own.
func TestCloses(t *testing.T) {
	const lapsing, gone, alive = ratelimit.Holder(1 << 27), ratelimit.Holder(5 << 28), ratelimit.Holder(6 << 28)
	holders := []ratelimit.HolderLook{
		{Holder: gone | lapsing, Seq: 7, Granted: 9, Spent: 4, Outstanding: 5},
		{Holder: gone | lapsing | 1, Seq: 8, Granted: 9, Spent: 9},
		{Holder: gone | 2, Seq: 9, Granted: 9, Spent: 4, Outstanding: 5},
		{Holder: alive | lapsing, Seq: 7, Granted: 9, Spent: 4, Outstanding: 5},
	}
	if nodes := Lapsing(holders, alive); !slices.Equal(nodes, []ratelimit.Holder{gone}) {
		t.Errorf("%x may have ended", nodes)
	}
	all := Closes(Claim{Key: "k", Window: 3}, holders, []ratelimit.Holder{gone})
	if len(all) != 1 || all[0] != (Claim{Key: "k", Window: 3, Holder: gone | lapsing, Seq: 8, Taken: 4, Spent: 4}) {
		t.Errorf("%+v", all)
	}
}
