package account

import (
	"testing"

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
