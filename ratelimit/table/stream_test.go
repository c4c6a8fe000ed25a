package table

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// peer is a node of a fleet without a store.
type peer struct {
	*Alone
	skew instant
	to   map[*peer]*Stream
	due  map[*peer][][]byte // messages under way to others
}

// Peers come to one table, and what a living node had is not lost, in fleets whose connections break, whose nodes end
// and begin, and whose clocks differ.
func TestPeers(t *testing.T) {
	for seed := range uint64(*histories) {
		rnd, now := rand.New(rand.NewPCG(seed, 0)), instant(1e12)
		failf := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("history %d: %s", seed, fmt.Sprintf(format, args...))
		}
		var all []*peer
		// Some clocks begin in 1970, and others are years ahead.
		skew := func() instant { return []instant{0, instant(rnd.IntN(100)) * 1e6, 1 - now, 1e14}[rnd.IntN(4)] }
		join := func() *peer {
			p := &peer{skew: skew(), to: map[*peer]*Stream{}, due: map[*peer][][]byte{}}
			p.Alone = &Alone{
				Table: New(nil),
				Wall:  func() time.Time { return time.UnixMicro(int64(now + p.skew)) },
				Clock: func() ratelimit.Instant { return ratelimit.Instant(now * 1000) },
			}
			return p
		}
		for range 2 + rnd.IntN(4) {
			all = append(all, join())
		}
		connect := func(a, b *peer) {
			if a.to[b] == nil {
				a.to[b], b.to[a] = NewStream(a.Table), NewStream(b.Table)
			}
		}
		broken := func(a, b *peer) {
			delete(a.to, b)
			delete(b.to, a)
			delete(a.due, b)
			delete(b.due, a)
		}
		sends := func(a, b *peer) (any bool) {
			if s := a.to[b]; s != nil {
				if m := s.Next(); m != nil {
					a.due[b] = append(a.due[b], m)
				}
			}
			return len(a.due[b]) > 0
		}
		hears := func(a, b *peer) {
			if q := a.due[b]; len(q) > 0 {
				a.due[b] = q[1:]
				if err := b.Receive(q[0], now); err != nil {
					failf("%v", err)
				}
			}
		}
		acked := map[string]Record{}
		for range 50 + rnd.IntN(500) {
			now += instant(rnd.IntN(2_000_000))
			i := rnd.IntN(len(all))
			a, b := all[i], all[(i+1+rnd.IntN(len(all)-1))%len(all)]
			switch event := rnd.Float64(); {
			case event < 0.3:
				sends(a, b)
			case event < 0.6:
				hears(a, b)
			case event < 0.72:
				connect(a, b)
			case event < 0.75: // all clocks are set, as when a host resumes
				for _, p := range all {
					p.skew = skew()
					p.Forget()
				}
			case event < 0.78:
				broken(a, b)
			case event < 0.79 && len(all) > 2:
				for _, p := range all {
					broken(a, p)
				}
				all[i] = join()
				maps.DeleteFunc(acked, func(key string, r Record) bool {
					return !slices.ContainsFunc(all, func(p *peer) bool { is := p.Record(key); return !r.Above(&is) })
				})
			case event < 0.95:
				key := fmt.Sprint(rnd.IntN(4))
				r, err := a.Set(t.Context(), Record{Key: key, Value: []string{"", "a", "b"}[rnd.IntN(3)]}, Any)
				if is := a.Record(key); err != nil || is != r {
					failf("%v was set (%v), and its node has %v", r, err, is)
				}
				if is := acked[key]; r.Above(&is) {
					acked[key] = r
				}
			}
		}
		for round, busy := 0, true; busy; round++ {
			busy = false
			for _, a := range all {
				for _, b := range all {
					if a != b {
						connect(a, b)
						busy = sends(a, b) || busy
						hears(a, b)
					}
				}
			}
			if round > 1000 {
				failf("messages go round for ever")
			}
		}
		for i := range 4 {
			key := fmt.Sprint(i)
			first, r := all[0].Record(key), acked[key]
			for _, p := range all {
				if is := p.Record(key); is != first || r.Above(&is) {
					failf("a node has %v, and another %v; %v was set", is, first, r)
				}
			}
		}
	}
}

// A message makes sense, or changes nothing and is counted.
func TestMalformedMessages(t *testing.T) {
	now := instant(1e15)
	good := encode([]Record{{Key: "k", Version: 7, Value: "v"}, {Key: "l", Version: 8, Ends: 9}})
	for name, b := range map[string][]byte{
		"cut":             good[:len(good)-1],
		"an empty key":    encode([]Record{{Version: 7, Value: "v"}}),
		"a long key":      encode([]Record{{Key: string(make([]byte, MostKey+1)), Version: 7}}),
		"a long value":    encode([]Record{{Key: "k", Version: 7, Value: string(make([]byte, MostValue+1))}}),
		"no version":      encode([]Record{{Key: "k", Value: "v"}}),
		"ahead":           encode([]Record{{Key: "k", Version: farthest + 1, Value: "v"}}),
		"too many":        encode(make([]Record, messageRecords+1)),
		"a length beyond": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
	} {
		x := New(nil)
		if err := x.Receive(b, now); !errors.Is(err, ErrRecord) || x.Len() != 0 || x.Rejected.Load() != 1 {
			t.Errorf("%s: %v, and %d records", name, err, x.Len())
		}
	}
	x := New(nil)
	if err := x.Receive(good, now); err != nil || x.Record("k").Value != "v" {
		t.Error(err)
	}
	if again := NewStream(x).Next(); !bytes.Equal(again, good) {
		t.Errorf("%q is sent on as %q", good, again)
	}
}

func FuzzReceive(f *testing.F) {
	f.Add(encode([]Record{{Key: "k", Version: 7, Value: "v"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := New(nil)
		if err := x.Receive(b, 1e15); err != nil && !x.Empty() {
			t.Errorf("a refused message left %d records", x.Len())
		}
	})
}
