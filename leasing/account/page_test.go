package account

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

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
		booksClamped(t, n)
	}
}

// booksClamped checks what a record has of a claim whose totals may be beyond the bounds. Others have so much of the
// account already that refunds of it can be credited. The total is the larger of both, and what is spent at most that.
func booksClamped(t *testing.T, n tokens) {
	t.Helper()
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
