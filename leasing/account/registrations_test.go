package account

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A registration lasts for its time from its last renewal, and is known to be over long after. What a store does not
// have is not over.
func TestRegistrations(t *testing.T) {
	const node, other, unknown = ratelimit.Holder(1 << 28), ratelimit.Holder(2 << 28), ratelimit.Holder(3 << 28)
	p := newPair(t, fixed(1))
	for name, l := range map[string]Registrations{"memory": p.memory, "Redis": p.Redis} {
		for _, s := range []struct {
			after     time.Duration
			registers ratelimit.Holder
			over      []ratelimit.Holder
		}{
			{0, node, nil},
			{3 * time.Second, other, nil},
			{ratelimit.RegisteredFor - time.Microsecond, 0, nil},
			{ratelimit.RegisteredFor, node, []ratelimit.Holder{node}},
			{ratelimit.RegisteredFor + 3*time.Second, 0, []ratelimit.Holder{other}},
			{overFor, other, []ratelimit.Holder{node, other}},
			{overFor + 2*ratelimit.RegisteredFor, unknown, []ratelimit.Holder{node, other}},
			{overFor + 4*ratelimit.RegisteredFor, 0, []ratelimit.Holder{unknown, other}}, // the first is dropped
		} {
			p.now = epochAt.Add(s.after)
			got, err := l.Over(t.Context(), []ratelimit.Holder{node, unknown, other})
			if err != nil || !slices.Equal(got, s.over) {
				t.Errorf("%s: after %v, %v are over, %v; want %v", name, s.after, got, err, s.over)
			}
			if err := p.memory.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s.registers == 0 {
				continue
			}
			if err := l.Register(t.Context(), s.registers); err != nil {
				t.Fatal(name, err)
			}
		}
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
