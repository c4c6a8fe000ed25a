package account

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/leasing/ledgertest/specpage"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The specification's numbers are the code's.
func TestPageConstants(t *testing.T) {
	page := specpage.Read(t)
	one := func(s string) []string { return []string{s} }
	of := func(d time.Duration) []string { return one(specpage.Duration(d)) }
	slots := []string{"1/10", specpage.Duration(BucketSlot(&ratelimit.Limit{Unit: ratelimit.Second}) / 2), specpage.Duration(BucketSlot(&ratelimit.Limit{Unit: ratelimit.Hour}))}
	page.Constants([]string{"account"}, map[string][]string{
		"account.MostBooked":   one(specpage.Power(int64(MostBooked))),
		"account.mostSum":      one(specpage.Power(int64(mostSum))),
		"account.mostBurst":    one(fmt.Sprint(int64(mostBurst))),
		"account.readAgain":    of(readAgain),
		"account.keptMost":     of(keptMost),
		"account.overFor":      of(overFor),
		"account.bucketWaits":  of(bucketWaits),
		"account.BucketSlot":   slots,
		"account.recordsPause": of(recordsPause),
		"account.askedRarely":  of(askedRarely),
		"account.parts":        one(fmt.Sprint("1/", parts)),
		"account.nodeDigits":   one(strconv.Itoa(nodeDigits)),
		"account.namesOfANode": one(strconv.Itoa(namesOfANode)),
		"account.claimFields":  one(strconv.Itoa(claimFields)),
		"account.answerFields": one(strconv.Itoa(answerFields)),
		"account.Share":        one(strconv.Itoa(Share)),
		"account.wasSettled":   one(strconv.Itoa(wasSettled)),
		"account.wasOvertaken": one(strconv.Itoa(wasOvertaken)),
		"account.wasOver":      one(strconv.Itoa(wasOver)),
	})
	// Each package of which there are constants has such a test.
	want := []string{"account", "approx", "lane", "lease", "leasing", "ratelimit"}
	if d := cmp.Diff(want, page.Packages()); d != "" {
		t.Error(d)
	}
	for _, words := range []string{recallChannel, EpochName} {
		page.Says("`" + strings.TrimSuffix(words, "`"))
	}
	if top := NewHolder() >> 63; top != 1 {
		t.Error("the top bit of a name is not set")
	}
}

// The two messages have the fields that the specification has, of these types.
func TestPageMessages(t *testing.T) {
	page := specpage.Read(t)
	for name, of := range map[string]reflect.Type{"Claim": reflect.TypeFor[Claim](), "Grant": reflect.TypeFor[Grant]()} {
		var got, want [][2]string
		for _, row := range page.Rows("message: " + name) {
			got = append(got, [2]string{strings.Trim(row[0], "`"), row[1]})
		}
		for _, f := range reflect.VisibleFields(of) {
			kind := f.Type.Kind().String()
			if f.Type == reflect.TypeFor[error]() {
				kind = "error"
			}
			if !f.Anonymous {
				want = append(want, [2]string{f.Name, kind})
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: code -, page +\n%s", name, d)
		}
	}
}

// wholeOf reads 5, -2^43, 10^12 and 365 d.
func wholeOf(t *testing.T, text string) int64 {
	t.Helper()
	if days, ok := strings.CutSuffix(text, " d"); ok {
		return wholeOf(t, days) * int64(24*time.Hour)
	}
	digits, sign := strings.CutPrefix(text, "-")
	base, power, ok := strings.Cut(digits, "^")
	if !ok {
		power = "1"
	}
	b, err1 := strconv.ParseInt(base, 10, 64)
	p, err2 := strconv.ParseInt(power, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	n := new(big.Int).Exp(big.NewInt(b), big.NewInt(p), nil)
	if !n.IsInt64() {
		t.Fatalf("%s is no bound", text)
	}
	if sign {
		return -n.Int64()
	}
	return n.Int64()
}

// The ledger refuses, or clamps, what is outside the bounds that the specification states, and nothing within.
func TestPageBounds(t *testing.T) {
	bounded := regexp.MustCompile(`^(clamped |draws )?(\S+) to (\S+(?: d)?)$`)
	n := 0
	for _, row := range specpage.Read(t).Rows("message: Claim") {
		m := bounded.FindStringSubmatch(row[3])
		if m == nil {
			continue
		}
		n++
		field, least, most := strings.Trim(row[0], "`"), wholeOf(t, m[2]), wholeOf(t, m[3])
		for _, v := range []int64{least - 1, least, most, most + 1} {
			c := Claim{Key: "k", Limit: fixed(100), Holder: 1, Seq: 1, Want: 1}
			if m[1] == "draws " {
				c.Seq = 0
			}
			at := reflect.ValueOf(&c).Elem().FieldByName(field)
			if field == "Limit" {
				at = at.FieldByName("Requests")
			}
			switch {
			case at.CanInt():
				at.SetInt(v)
			case v < 0:
				continue
			default:
				at.SetUint(uint64(v))
			}
			if m[1] == "clamped " {
				pageClamps(t, field, &c, tokens(max(least, min(v, most))))
				continue
			}
			b := newBench(t, c.Limit)
			c.Window = b.window(0)
			if g := b.settles(&c); errors.Is(g.Err, errClaim) != (v < least || v > most) {
				t.Errorf("%s of %d: %v", field, v, g.Err)
			}
		}
	}
	if n < 5 {
		t.Errorf("%d fields have bounds", n)
	}
}

// pageClamps checks what a record has of a claim whose totals are beyond the bounds: others have so much of the account
// already, that refunds of it can be credited.
func pageClamps(t *testing.T, field string, c *Claim, want tokens) {
	t.Helper()
	var a account
	const seq = 1
	for h := range ratelimit.Holder(2) {
		a.claim(1, &Claim{Limit: c.Limit, Holder: 2 + h, Seq: seq, Taken: MostBooked, Spent: MostBooked}, 0, nil)
	}
	// The total is the larger of both, and what is spent at most that.
	if field == "Taken" {
		c.Spent = -MostBooked
	} else {
		c.Taken = max(-MostBooked, c.Spent)
	}
	a.claim(2, c, 0, func(ratelimit.Holder) {})
	r := a.records.find(c.Holder)
	if got := map[string]tokens{"Taken": r.taken, "Spent": r.spent}[field]; got != want {
		t.Errorf("%s is booked as %d, and the page says %d", field, got, want)
	}
}

// What the specification says of single values of a claim is so.
func TestPageValues(t *testing.T) {
	page, b := specpage.Read(t), newBench(t, fixed(100))
	page.Says("tokens that serve a request; below 1 is 1 |")
	for h, unit := range []tokens{-1, 0, 1} {
		b.is(b.claims(ratelimit.Holder(h+1), 0, 0, 300, func(c *Claim) { c.Unit = unit }), []tokens{100, 0, 0}[h], []tokens{100, 0, 0}[h],
			100, 0)
	}
	page.Says("its number, from 1; of a bucket the slot of its lease, 0 without one, or -1 (section 13) |")
	page.Says("| not 0 | the holder's name |")
	page.Says("| not empty | the key's name |")
	for what, change := range map[string]func(*Claim){
		"no window":           func(c *Claim) { c.Window = 0 },
		"another of a bucket": func(c *Claim) { c.Limit.Algorithm, c.Window = ratelimit.TokenBucket, Stated-1 },
		"no holder":           func(c *Claim) { c.Holder = 0 },
		"no key":              func(c *Claim) { c.Key = "" },
	} {
		if g := b.claims(1, 0, 0, 0, change); !errors.Is(g.Err, errClaim) {
			t.Errorf("%s: %v", what, g.Err)
		}
	}
}

// The scripts' arguments and answers are in the specification's order.
func TestPageScripts(t *testing.T) {
	page := specpage.Read(t)
	told := regexp.MustCompile(`(?s)\nlocal (Seq, .*?) = struct\.unpack`).FindStringSubmatch(commonLua)
	says := regexp.MustCompile(`-- reply: (.*)`).FindStringSubmatch(commonLua)
	for mark, names := range map[string]string{"script: arguments": told[1], "script: answer": says[1]} {
		want := strings.Split(strings.Join(strings.Fields(names), " "), ", ")
		if d := cmp.Diff(want, specpage.Quoted(page.Between(mark))); d != "" {
			t.Errorf("%s: code -, page +\n%s", mark, d)
		}
	}
}

// All fields in Redis are the specification's, and each packed number is what it says.
func TestPageFields(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client()
	defer client.Close()
	for mark, of := range map[string]ratelimit.Limit{"fields: window": fixed(100), "fields: bucket": bucketOf10} {
		m := newMoved(t, s)
		b := newBench(t, of)
		send := func(after time.Duration, c Claim) {
			b.now = b.now.Add(after)
			m.now = b.now
			c.Key, c.Limit, c.Window = "k", of, b.window(0)
			grants := make([]Grant, 1)
			if _, _, err := m.Settle(t.Context(), []Claim{c}, grants); err != nil || grants[0].Err != nil {
				t.Fatal(err, grants[0].Err)
			}
			b.settles(&c)
		}
		// So that no two numbers are the same: it recalls.
		send(0, Claim{Holder: 1, Seq: 3, Need: 3, Want: 3})
		send(1100*time.Millisecond, Claim{Holder: 2, Seq: 5, Taken: 7, Spent: 6, Need: 1, Want: 1})
		send(70*time.Millisecond, Claim{Holder: 1, Seq: 9, Taken: 4, Spent: 2, Need: 99, Want: 99})
		send(70*time.Millisecond, Claim{Holder: 2, Seq: 16, Taken: 1, Spent: 1})
		pageFields(t, mark, client.HGetAll(t.Context(), m.nameOf("k", b.window(0))).Val(), b)
		client.Del(context.Background(), m.nameOf("k", b.window(0)))
	}
}

var bucketOf10 = ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 7, Burst: 10}

// pageFields compares fields of a hash with those of the page, and with an account in memory.
func pageFields(t *testing.T, mark string, fields map[string]string, b *bench) {
	forms := map[string][]string{} // names of numbers that are packed in a field
	for _, row := range specpage.Read(t).Rows(mark) {
		names := specpage.Quoted(row[1])
		if forms[strings.Trim(row[0], "`")] = names; len(names) > 0 &&
			!strings.HasPrefix(row[1], fmt.Sprint(len(names), " doubles")) {
			t.Errorf("%s: %d names, and %q", mark, len(names), row[1])
		}
	}
	k := b.account("k", b.window(0))
	seen, values := map[string]bool{}, b.accountNumbers(k)
	for field, value := range fields {
		kind, holder, isHolder := strings.Cut(field, ":")
		form, numbers := field, values
		if isHolder {
			form = kind + ":NAME"
			r := k.records.find(ratelimit.Holder(holder[0] - '0'))
			numbers = map[string]float64{
				"seq": float64(r.seq), "spent": float64(r.spent), "fence": float64(r.fence), "": float64(r.taken),
			}
		}
		names, ok := forms[form]
		seen[form] = true
		switch {
		case !ok:
			t.Errorf("%s: Redis has a field %s", mark, field)
		case len(names) == 0: // an integer
			if n, _ := strconv.ParseFloat(value, 64); n != numbers[""] {
				t.Errorf("%s: %s is %q, and in memory %v", mark, field, value, numbers[""])
			}
		case len(value) != 8*len(names):
			t.Errorf("%s: %s has %d bytes, and %d numbers", mark, field, len(value), len(names))
		default:
			for i, name := range names {
				n := doubleAt(value, i)
				if want, ok := numbers[name]; !ok || n != want {
					t.Errorf("%s: %s of %s is %v, and in memory %v", mark, name, field, n, want)
				}
			}
		}
	}
	if len(seen) != len(forms) {
		t.Errorf("%s: the page has %v, and Redis %v", mark, forms, fields)
	}
}

// accountNumbers are the numbers of an account, by the names that they have on the page.
func (b *bench) accountNumbers(k *kept) map[string]float64 {
	if k.bucket == nil {
		us := func(d time.Duration) float64 { return float64(d.Microseconds()) }
		of := &k.account
		return map[string]float64{
			"": float64(of.sum), "spent": float64(of.spent), "fence": float64(of.fence), "asked": float64(of.asked),
			"pause": us(of.pause), "least": us(of.least),
		}
	}
	of := k.bucket
	return map[string]float64{
		"level": float64(of.level), "carry": float64(of.carry), "at": float64(of.at), "hand": float64(of.hand),
		"old": float64(of.old), "fence": float64(of.fence),
	}
}

func doubleAt(packed string, i int) float64 {
	bits := uint64(0)
	for j := range 8 {
		bits |= uint64(packed[8*i+j]) << (8 * j)
	}
	return math.Float64frombits(bits)
}
