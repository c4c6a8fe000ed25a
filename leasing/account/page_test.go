package account

import (
	"errors"
	"flag"
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/leasing/ledgertest/specpage"
	"github.com/sluice-gate/sluice/ratelimit"
)

var rewritePage = flag.Bool("rewrite-page", false, "have TestPageExamples write into the page what the ledgers answer")

// The specification's numbers are the code's.
func TestPageConstants(t *testing.T) {
	page := specpage.Read(t)
	slotOf := func(u ratelimit.Unit) time.Duration { return BucketSlot(&ratelimit.Limit{Unit: u}) }
	values := map[string][]string{
		"account.MostBooked": {specpage.Power(int64(MostBooked))},
		"account.mostSum":    {specpage.Power(int64(mostSum))},
		"account.parts":      {fmt.Sprint("1/", parts)},
		"account.BucketSlot": {
			"1/10", specpage.Duration(slotOf(ratelimit.Second) / 2), specpage.Duration(slotOf(ratelimit.Hour)),
		},
	}
	for name, d := range map[string]time.Duration{
		"readAgain": readAgain, "keptMost": keptMost, "overFor": overFor, "bucketWaits": bucketWaits,
		"recordsPause": recordsPause, "askedRarely": askedRarely,
	} {
		values["account."+name] = []string{specpage.Duration(d)}
	}
	for name, n := range map[string]int{
		"mostBurst": int(mostBurst), "nodeDigits": nodeDigits, "namesOfANode": namesOfANode, "claimFields": claimFields,
		"answerFields": answerFields, "Share": Share, "wasSettled": wasSettled, "wasOvertaken": wasOvertaken,
		"wasOver": wasOver,
	} {
		values["account."+name] = []string{strconv.Itoa(n)}
	}
	page.Constants([]string{"account"}, values)
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
	digits, negative := strings.CutPrefix(text, "-")
	base, power, ok := strings.Cut(digits, "^")
	if !ok {
		power = "1"
	}
	n := new(big.Int).Exp(big.NewInt(int64(number(t, base))), big.NewInt(int64(number(t, power))), nil)
	if !n.IsInt64() {
		t.Fatalf("%s is no bound", text)
	}
	if negative {
		return -n.Int64()
	}
	return n.Int64()
}

// The ledgers refuse, or clamp, what is outside the bounds that the specification states, and nothing within.
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
			c := claim(fixed(100), "k", 1, 1, 0)
			c.Want = 1
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
			} else if g := newPair(t, c.Limit).must(c); errors.Is(g.Err, errClaim) != (v < least || v > most) {
				t.Errorf("%s of %d: %v", field, v, g.Err)
			}
		}
	}
	if n < 5 {
		t.Errorf("%d fields have bounds", n)
	}
}

// pageClamps checks what a record has of a claim whose totals are beyond the bounds: others have so much of the
// account already, that refunds of it can be credited.
func pageClamps(t *testing.T, field string, c *Claim, want tokens) {
	t.Helper()
	var a account
	for h := range ratelimit.Holder(2) {
		a.claim(1, &Claim{Limit: c.Limit, Holder: 2 + h, Seq: 1, Taken: MostBooked, Spent: MostBooked}, 0, nil)
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

// The ledgers refuse what the specification says of single values of a claim.
func TestPageValues(t *testing.T) {
	page, p := specpage.Read(t), newPair(t, fixed(100))
	page.Says("tokens that serve a request; below 1 is 1 |")
	page.Says("its number, from 1; of a bucket the slot of its lease, 0 without one, or -1 (section 13) |")
	page.Says("| not 0 | the holder's name |")
	page.Says("| not empty | the key's name |")
	for what, change := range map[string]func(*Claim){
		"no window":           func(c *Claim) { c.Window = 0 },
		"another of a bucket": func(c *Claim) { c.Limit.Algorithm, c.Window = ratelimit.TokenBucket, Stated-1 },
		"a bucket's draw":     func(c *Claim) { c.Seq, c.Limit.Algorithm, c.Window = 0, ratelimit.TokenBucket, 0 },
		"no period":           func(c *Claim) { c.Limit.Unit = 0 },
		"no holder":           func(c *Claim) { c.Holder = 0 },
		"no key":              func(c *Claim) { c.Key = "" },
	} {
		c := claim(p.limit, "k", 1, 1, 1)
		change(&c)
		if g := p.must(c); !errors.Is(g.Err, errClaim) {
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

// All fields in Redis are the specification's, and each packed number is the one that it says.
func TestPageFields(t *testing.T) {
	for mark, of := range map[string]ratelimit.Limit{"fields: window": fixed(100), "fields: bucket": bucketOf(10, 7)} {
		p := newPair(t, of)
		// So that no two numbers are the same: it recalls.
		for _, m := range []struct {
			after time.Duration
			c     Claim
		}{
			{0, Claim{Holder: 1, Seq: 3, Need: 3, Want: 3}},
			{1100 * time.Millisecond, Claim{Holder: 2, Seq: 5, Taken: 7, Spent: 6, Need: 1, Want: 1}},
			{70 * time.Millisecond, Claim{Holder: 1, Seq: 9, Taken: 4, Spent: 2, Need: 99, Want: 99}},
			{70 * time.Millisecond, Claim{Holder: 2, Seq: 16, Taken: 1, Spent: 1}},
		} {
			p.now = p.now.Add(m.after)
			m.c.Key, m.c.Limit, m.c.Window = "k", of, window(&of, p.now)
			p.must(m.c)
		}
		p.pageFields(mark)
	}
}

// pageFields compares the fields of an account's hash with those of the page, and with the account in memory.
func (p *pair) pageFields(mark string) {
	forms := map[string][]string{} // names of numbers that are packed in a field
	for _, row := range specpage.Read(p.T).Rows(mark) {
		names := specpage.Quoted(row[1])
		forms[strings.Trim(row[0], "`")] = names
		if len(names) > 0 && !strings.HasPrefix(row[1], fmt.Sprint(len(names), " doubles")) {
			p.Errorf("%s: %d names, and %q", mark, len(names), row[1])
		}
	}
	w := window(&p.limit, p.now)
	k := p.memory.account("k", w)
	fields := p.one.client.HGetAll(p.Context(), p.nameOf("k", w)).Val()
	seen := map[string]bool{}
	for field, value := range fields {
		kind, holder, isHolder := strings.Cut(field, ":")
		form, numbers := field, k.numbers()
		if isHolder {
			form = kind + ":NAME"
			r := k.records.find(ratelimit.Holder(holder[0] - '0'))
			numbers = map[string]int64{
				"seq": int64(r.seq), "spent": int64(r.spent), "fence": int64(r.fence), "": int64(r.taken),
			}
		}
		names, ok := forms[form]
		seen[form] = true
		var packed [6]int64
		switch {
		case !ok:
			p.Errorf("%s: Redis has a field %s", mark, field)
		case len(names) == 0:
			if n, _ := strconv.ParseInt(value, 10, 64); n != numbers[""] {
				p.Errorf("%s: %s is %q, and in memory %v", mark, field, value, numbers[""])
			}
		case len(value) != 8*len(names) || !unpacked(value, packed[:len(names)]):
			p.Errorf("%s: %s has %d bytes, and %d numbers", mark, field, len(value), len(names))
		}
		for i, name := range names {
			if want, ok := numbers[name]; !ok || packed[i] != want {
				p.Errorf("%s: %s of %s is %v, and in memory %v", mark, name, field, packed[i], want)
			}
		}
	}
	if len(seen) != len(forms) {
		p.Errorf("%s: the page has %v, and Redis %v", mark, forms, fields)
	}
}

// numbers are those of an account, by the names that they have on the page.
func (k *kept) numbers() map[string]int64 {
	if b := k.bucket; b != nil {
		return map[string]int64{
			"level": b.level, "carry": b.carry, "at": int64(b.at), "hand": int64(b.hand), "old": int64(b.old),
			"fence": int64(b.fence),
		}
	}
	a := &k.account
	return map[string]int64{
		"": int64(a.sum), "spent": int64(a.spent), "fence": int64(a.fence), "asked": int64(a.asked),
		"pause": a.pause.Microseconds(), "least": a.least.Microseconds(),
	}
}

// The examples of the specification are played in both ledgers: each gives the answers of the page.
//
//	go test ./leasing/account -run TestPageExamples -rewrite-page
//
// writes their answers into the page. Then read the sentences of these examples again.
func TestPageExamples(t *testing.T) {
	page := specpage.Read(t)
	played := regexp.MustCompile(`(?s)<!-- play: ([^\n]*) -->\n(.*?)<!-- end -->`)
	text := played.ReplaceAllStringFunc(page.Text, func(all string) string {
		m := played.FindStringSubmatch(all)
		p, lines := newPair(t, limitOf(t, m[1])), strings.SplitAfter(m[2], "\n")
		for i, row := range specpage.RowsOf(m[2]) {
			after, ok := strings.CutSuffix(row[0], " ms")
			if !ok {
				t.Fatal(row)
			}
			answer := p.says(time.Duration(number(t, after))*time.Millisecond, row[1], row[2])
			lines[i+2] = fmt.Sprintf("| %s | %s | %s | %s |\n", row[0], row[1], row[2], answer)
		}
		table := strings.Join(lines, "")
		if table != m[2] && !*rewritePage {
			t.Errorf("the page shows\n%s\nand it is\n%s", m[2], table)
		}
		return strings.Replace(all, m[2], table, 1)
	})
	if n := len(played.FindAllString(page.Text, -1)); n < 3 {
		t.Errorf("%d examples", n)
	}
	if *rewritePage {
		page.Text = text
		page.Write()
	}
}

var numerals = regexp.MustCompile(`[0-9]+`)

// The numbers in the sentences of an example are in its table.
func TestPageSentencesSayWhatExamplesShow(t *testing.T) {
	for _, section := range strings.Split(specpage.Read(t).Text, "\n### ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		prose, table, ok := strings.Cut(body, "<!-- play: ")
		table, _, _ = strings.Cut(table, "<!-- end -->")
		if !ok {
			t.Errorf("%s has no example", title)
		}
		shown := numerals.FindAllString(table, -1)
		for _, n := range numerals.FindAllString(prose, -1) {
			if !slices.Contains(shown, n) {
				t.Errorf("%s: the sentences say %s, which the example does not", title, n)
			}
		}
	}
}
