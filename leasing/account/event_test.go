package account

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Where nothing can be put on record, nothing is granted; what is no event is read as none.
func TestForeignRecord(t *testing.T) {
	s := redistest.Shared(t)
	c := s.Client()
	defer c.Close()
	bucket := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 10, Burst: 100}
	for _, l := range []ratelimit.Limit{daily(100), bucket} {
		r := newLive(t, s.Client(), l)
		at, record := r.nameOf("k", r.window), RecordName("t:", "k")
		claim := func(seq uint64) Claim {
			m := r.claim("k", 7, seq, 5)
			m.Audit = "3 d.rule"
			return m
		}
		c.Set(t.Context(), record, "a string", 0)
		if g := r.settle(claim(1))[0]; g.Err == nil || c.Exists(t.Context(), at).Val() != 0 {
			t.Errorf("with a string in the record's place: %+v", g)
		}
		c.Del(t.Context(), record)
		g := r.settle(claim(2))[0]
		entries := c.XRange(t.Context(), record, "-", "+").Val()
		if g.Granted != 5 || len(entries) != 1 {
			t.Fatalf("%+v, and %d events", g, len(entries))
		}
		want := claim(2)
		if e, err := ReadEvent("t:", entries[0].Values); err != nil || e != NewEvent(&want, &g) || e.Bound != 3 || e.Rule != "d.rule" {
			t.Errorf("%+v %v", e, err)
		}
		for field, v := range map[string]any{
			"account": "t:{k}x", "rule": "", "holder": "who", "claim": "short", "answer": nil,
		} {
			spoilt := map[string]any{}
			for f, was := range entries[0].Values {
				spoilt[f] = was
			}
			spoilt[field] = v
			if e, err := ReadEvent("t:", spoilt); err == nil {
				t.Errorf("%s is %v: %+v", field, v, e)
			}
		}
		c.Del(t.Context(), record)
		r.settle(r.claim("k", 7, 3, 5))
		if n := c.Exists(t.Context(), record).Val(); n != 0 {
			t.Error("a claim is on record that is not audited")
		}
	}
}

// Each message has a kind, and each lease that is credited is an event of its own, before that of the claim that had it
// credited.
func TestEvents(t *testing.T) {
	b := newBench(t, fixed(100))
	var kinds []string
	b.OnEvent = func(e *Event) {
		kinds = append(kinds, e.Kind+" of "+e.Holder)
		if e.Rule != "d.rule with a space" || e.Bound != 7 || e.Key != "k" || e.Limit != 100 || e.Window != b.window(0) {
			t.Errorf("%+v", e)
		}
	}
	audited := func(c *Claim) { c.Audit = "7 d.rule with a space" }
	b.claims(1, 0, 0, 40, audited, eagerly(time.Second))
	b.claims(2, 0, 0, 50, audited)
	b.claims(2, 50, 50, 20, audited)
	b.claims(2, 60, 60, 0, audited)
	b.claims(2, 60, 60, 0, audited, at(1))
	b.claims(3, 0, 5, 0, audited)
	b.claims(4, 0, 0, 1) // of no audited rule
	b.pass(time.Second)
	b.claims(2, 60, 60, 0, audited) // tokens are not short for it: nothing is credited
	b.claims(5, 0, 0, 30, audited, eagerly(time.Second))
	b.Evict("k", b.window(0))
	b.claims(3, 5, 5, 0, audited)
	b.claims(6, 0, 0, 50, audited)
	was := b.window(0)
	b.pass(3 * time.Minute)
	b.OnEvent = func(e *Event) { kinds = append(kinds, e.Kind+" of "+e.Holder) }
	b.claims(6, 0, 0, 50, audited, func(c *Claim) { c.Window = was })
	if g := b.claims(6, 0, 0, 50, audited, func(c *Claim) { c.Key = "" }); g.Err == nil {
		t.Errorf("%+v", g)
	}
	const want = "grant of 1, grant of 2, refused of 2, report of 2, overtaken of 2, charge of 3, report of 2, " +
		"expiry of 1, grant of 5, recovery of 3, learning of 6, over of 6"
	if got := strings.Join(kinds, ", "); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// A key's record is in the slot of its accounts, whatever the prefix. No key begins with a brace that closes.
func TestRecordsAreInTheSlotOfTheirAccounts(t *testing.T) {
	for _, prefix := range []string{"", "p:", "{tag}", "a{tag}b", "half{"} {
		for _, key := range []string{"minute|edge|k=v", "a{b}c", "k}", "{"} {
			l := Redis{prefix: prefix}
			if a, b := hashed(l.nameOf(key, 7)), hashed(RecordName(prefix, key)); a != b {
				t.Errorf("%q of %q: accounts are hashed by %q, and the record by %q", key, prefix, a, b)
			}
		}
	}
}

// hashed is what Redis Cluster hashes of a name (its specification, "Hash tags").
func hashed(name string) string {
	_, rest, _ := strings.Cut(name, "{")
	tag, _, ok := strings.Cut(rest, "}")
	if !ok || tag == "" {
		return "all of " + name
	}
	return tag
}
