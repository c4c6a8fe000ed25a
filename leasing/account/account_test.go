package account

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Both ledgers answer as the scripts say: of windows, and of buckets. Each line has a time after the script's begin, a
// holder, and its message. A ledger "keeps" an account for a time from now.
//
//	go test ./leasing/account -run Scripts -rewrite
func TestWindowScripts(t *testing.T) { runScripts(t, "testdata/windows.txt") }

func TestBucketScripts(t *testing.T) { runScripts(t, "testdata/buckets.txt") }

func runScripts(t *testing.T, path string) {
	datadriven.RunTest(t, path, func(t *testing.T, in *datadriven.TestData) string {
		var out strings.Builder
		p := newPair(t, limitOf(t, strings.TrimPrefix(in.FullCmd(), "play ")))
		for line := range strings.Lines(in.Input) {
			at, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			who, message, _ := strings.Cut(rest, " ")
			after, err := time.ParseDuration(at)
			if err != nil {
				t.Fatal(err)
			}
			answer := p.says(after, who, message)
			for _, h := range p.asked {
				answer += fmt.Sprintf(" %c", rune(h))
			}
			p.asked = nil
			fmt.Fprintln(&out, answer)
		}
		return out.String()
	})
}

// An account is kept from the beginning of its window on, and for one window longer, a fixed one's for at most a day.
func TestWhenAnAccountIsOver(t *testing.T) {
	for _, l := range []ratelimit.Limit{
		fixed(100), weekly(100), limitOf(t, "sliding 100 a week"), {Unit: ratelimit.CalendarMonth, Requests: 100},
	} {
		p := newPair(t, l)
		c := claim(l, "k", 1, 1, 0)
		begins, ends := l.WindowEnd(c.Window-1), l.WindowEnd(c.Window)
		kept := ends.Sub(begins)
		if l.Algorithm == ratelimit.FixedWindow {
			kept = min(kept, 24*time.Hour)
		}
		for _, at := range []struct {
			now  instant
			over bool
		}{{begins - 1, true}, {begins, false}, {ends.Add(kept) - 1, false}, {ends.Add(kept), true}} {
			p.now = at.now
			c.Seq++
			draw := c
			draw.Seq, draw.Want = 0, 1
			for _, m := range []Claim{c, draw} {
				if g := p.must(m); errors.Is(g.Err, ErrOver) != at.over || !at.over && g.Err != nil {
					t.Errorf("%v: window %d, from %d to %d, at %d: %+v", l, c.Window, begins, ends, at.now, g)
				}
			}
		}
		if s := spanOf(&l, lastMonth+1); s.kept(epochAt) {
			t.Errorf("%v: a window after the end of time is kept", l)
		}
	}
}

// The sum is counted up to a bound. What is beyond is in no record either.
func TestTotalsSaturate(t *testing.T) {
	p := newPair(t, fixed(100))
	full := ratelimit.Holder(mostSum / MostBooked)
	for h := range full {
		c := claim(p.limit, "k", 1+h, 1, 0)
		c.Spent = 1 << 62
		if h == 0 {
			c.Spent = MostBooked - 5
		}
		p.must(c)
	}
	for seq, spent := range []tokens{9, 2} {
		c := claim(p.limit, "k", full+1, uint64(seq+1), 0)
		c.Spent = spent
		if g := p.must(c); g.Total != min(spent, 5) || g.Sum != mostSum-5+g.Total || g.Err != nil {
			t.Errorf("with %d more, the sum is %+v", spent, g)
		}
	}
}

func TestRecallCostsLittleOfManyRecords(t *testing.T) {
	a := &account{records: make(records, 5000)}
	a.askedAt(epochAt, time.Hour)
	if a.pause != 100*time.Millisecond {
		t.Errorf("after reading 5,000 records a pause of %v", a.pause)
	}
}

// A claim of a known holder allocates nothing.
func TestClaimsAllocateNothing(t *testing.T) {
	a, nobody := account{}, func(ratelimit.Holder) {}
	c := Claim{Limit: fixed(1_000_000), Holder: 1, Need: 1, Want: 1}
	var g Grant
	if n := testing.AllocsPerRun(100, func() {
		c.Seq++
		g = a.claim(epochAt, &c, 0, nobody)
	}); n > 0 || g.Granted != 1 {
		t.Errorf("%v allocations; %+v", n, g)
	}
}

// A refill is exact to the millionth of a token, and its time to the microsecond, also where products exceed 64 bits.
func TestRefillIsExact(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same run each time
	upTo := func(exponent int) int64 { return random.Int64N(1 << (1 + random.IntN(exponent))) }
	for range 50_000 {
		l := &ratelimit.Limit{
			Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Unit(1 + random.IntN(int(ratelimit.Year))),
			Multiplier: 1, Requests: 1 + tokens(upTo(31)),
		}
		seconds := int64(l.Period() / time.Second)
		elapsed, carry, level, full := upTo(62), random.Int64N(seconds), -upTo(60), upTo(60)
		level += upTo(60)
		switch random.IntN(3) {
		case 0: // a product just below 2^64
			l.Requests++
			quotient, _ := bits.Div64(1, 0, uint64(l.Requests))
			elapsed, carry = int64(min(quotient, math.MaxInt64)), seconds-1
		case 1: // or just above
			if missing, _ := bits.Div64(1, 0, uint64(max(60, seconds))); seconds >= 60 {
				level, full, carry = -int64(missing/2), int64(missing-missing/2)+1, seconds-1
			}
		}
		got, rest := Refilled(level, carry, elapsed, full, l)
		sum := new(big.Int).Mul(big.NewInt(elapsed), big.NewInt(int64(l.Requests)))
		added, remainder := sum.Add(sum, big.NewInt(carry)).QuoRem(sum, big.NewInt(seconds), new(big.Int))
		want, wantRest := added.Add(added, big.NewInt(level)), remainder.Int64()
		if want.Cmp(big.NewInt(full)) >= 0 || level >= full {
			want, wantRest = big.NewInt(full), 0
		}
		if want.Int64() != got || wantRest != rest {
			t.Fatalf("%v: from %d + %d after %d us, at most %d: %d + %d, want %v + %d",
				l, level, carry, elapsed, full, got, rest, want, wantRest)
		}
		us := new(big.Int).Mul(big.NewInt(full-level), big.NewInt(seconds))
		us.Sub(us, big.NewInt(carry)).Add(us, big.NewInt(int64(l.Requests-1))).Quo(us, big.NewInt(int64(l.Requests)))
		after, latest := RefilledAfter(full, level, carry, l), big.NewInt(math.MaxInt64/1000)
		switch {
		case full <= level:
			us.SetInt64(0)
		case us.Cmp(latest) > 0:
			us.SetInt64(math.MaxInt64)
		default:
			us.Mul(us, big.NewInt(1000))
		}
		if us.Int64() != int64(after) {
			t.Fatalf("%v: from %d + %d to %d after %v, want %v", l, level, carry, full, after, us)
		}
	}
}

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

// page is the specification. A list or a table to compare is between <!-- name --> and <!-- end -->.
const page = "../../docs/reference/protocol.md"

var rewritePage = flag.Bool("rewrite-page", false, "have TestPageExamples write into the page what the ledgers answer")

func readPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// marked is the part of the page between a mark and the next end.
func marked(t *testing.T, mark string) string {
	t.Helper()
	_, rest, found := strings.Cut(readPage(t), "<!-- "+mark+" -->\n")
	text, _, ended := strings.Cut(rest, "<!-- end -->")
	if !found || !ended {
		t.Fatalf("the page has no %q", mark)
	}
	return text
}

// rowsOf are the rows of a table, without its title, cell by cell.
func rowsOf(table string) (rows [][]string) {
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows[min(2, len(rows)):]
}

var quoted = regexp.MustCompile("`([^`]+)`")

// quotedIn are the names between backticks in a text.
func quotedIn(text string) (names []string) {
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// The names of accounts on the page are those of keys, and the page has the other names in Redis.
func TestPageNames(t *testing.T) {
	for line := range strings.Lines(marked(t, "names")) {
		name := quotedIn(line)[0]
		if key, ok := ratelimit.KeyOfName(name); !ok || ratelimit.KeyName(key) != name {
			t.Errorf("%s is no key's name", name)
		}
	}
	for _, name := range []string{EpochName, recallChannel} {
		if !strings.Contains(readPage(t), "`"+name) {
			t.Errorf("the page lacks %s", name)
		}
	}
}

// The ledgers refuse a claim with a value outside of its bounds, and take one within. Totals are clamped instead.
func TestClaimsAreBounded(t *testing.T) {
	type values []int64
	for _, row := range []struct {
		field        string
		set          func(*Claim, int64)
		good, refuse values
	}{
		{"limit", func(c *Claim, n int64) { c.Limit.Requests = tokens(n) }, values{0, 1e12}, values{-1, 1e12 + 1}},
		{"seq", func(c *Claim, n int64) { c.Seq = uint64(n) }, values{1, 1 << 52}, values{1<<52 + 1}},
		{"size of a draw", func(c *Claim, n int64) { c.Seq, c.Want = 0, tokens(n) }, values{1, 1e12}, values{0, 1e12 + 1}},
		{"window", func(c *Claim, n int64) { c.Window = ratelimit.Window(n) }, nil, values{0}},
		{"slot of a bucket", func(c *Claim, n int64) {
			c.Limit.Algorithm, c.Window = ratelimit.TokenBucket, ratelimit.Window(n)
		}, values{-1, 0, 1}, values{-2}},
		{"draw of a bucket", func(c *Claim, n int64) {
			c.Seq, c.Limit.Algorithm, c.Window = 0, ratelimit.TokenBucket, ratelimit.Window(n)
		}, nil, values{0}},
		{"unit of time", func(c *Claim, n int64) { c.Limit.Unit = ratelimit.Unit(n) }, nil, values{0}},
		{"holder", func(c *Claim, n int64) { c.Holder = ratelimit.Holder(n) }, values{1}, values{0}},
		{"length of the key", func(c *Claim, n int64) { c.Key = strings.Repeat("k", int(n)) }, values{1}, values{0}},
	} {
		refused := func(n int64) error {
			c := claim(fixed(100), "k", 1, 1, 1)
			row.set(&c, n)
			return newPair(t, c.Limit).must(c).Err
		}
		for _, n := range row.good {
			if err := refused(n); errors.Is(err, errClaim) {
				t.Errorf("%s of %d: %v", row.field, n, err)
			}
		}
		for _, n := range row.refuse {
			if err := refused(n); !errors.Is(err, errClaim) {
				t.Errorf("%s of %d is not refused: %v", row.field, n, err)
			}
		}
	}
	for _, n := range []tokens{-MostBooked - 1, -MostBooked, MostBooked, MostBooked + 1} {
		// Others have so much of the account already that refunds of it can be credited. The total is the larger of both,
		// and what is spent at most that.
		want := max(-MostBooked, min(n, MostBooked))
		for field, c := range map[string]Claim{"taken": {Taken: n, Spent: -MostBooked}, "spent": {Taken: -MostBooked, Spent: n}} {
			var a account
			for h := range ratelimit.Holder(2) {
				a.claim(1, &Claim{Limit: fixed(100), Holder: 2 + h, Seq: 1, Taken: MostBooked, Spent: MostBooked}, 0, nil)
			}
			c.Limit, c.Holder, c.Seq = fixed(100), 1, 1
			a.claim(2, &c, 0, func(ratelimit.Holder) {})
			r := a.records.find(c.Holder)
			if got := map[string]tokens{"taken": r.taken, "spent": r.spent}[field]; got != want {
				t.Errorf("%s of %d is booked as %d", field, n, got)
			}
		}
	}
}

// All fields in Redis are the specification's, and each packed number is the one that it says: that of the account in
// memory.
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
		forms := map[string][]string{} // names of numbers that are packed in a field
		for _, row := range rowsOf(marked(p.T, mark)) {
			names := quotedIn(row[1])
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
	played := regexp.MustCompile(`(?s)<!-- play: ([^\n]*) -->\n(.*?)<!-- end -->`)
	text := played.ReplaceAllStringFunc(readPage(t), func(all string) string {
		m := played.FindStringSubmatch(all)
		p, lines := newPair(t, limitOf(t, m[1])), strings.SplitAfter(m[2], "\n")
		for i, row := range rowsOf(m[2]) {
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
	if n := len(played.FindAllString(text, -1)); n < 3 {
		t.Errorf("%d examples", n)
	}
	if *rewritePage {
		if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
