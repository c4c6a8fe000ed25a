package leasing

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// docs/protocol.md cannot say what the code does not do: its examples, constants and
// formats are held against the code here, and every test, file and section that is
// cited, in the page or in a comment, must exist.

var rewrite = flag.Bool("rewrite-page", false, "have the tests of docs/protocol.md write into the page what the code says")

const protocolPage = "../docs/protocol.md"

// protocolDoc is the page.
type protocolDoc struct{ text string }

func readPage(t *testing.T) *protocolDoc {
	t.Helper()
	text, err := os.ReadFile(protocolPage)
	if err != nil {
		t.Fatal(err)
	}
	return &protocolDoc{string(text)}
}

// shows holds what stands between the marks of a name against what the code says.
func (d *protocolDoc) shows(t *testing.T, name, want string) {
	t.Helper()
	begins, ends := "<!-- "+name+" -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(d.text, begins)
	got, after, ended := strings.Cut(rest, ends)
	switch {
	case !ok || !ended:
		t.Errorf("the page has no %q", name)
	case got != want && *rewrite:
		d.text = before + begins + want + ends + after
	case got != want:
		t.Errorf("%s: the page shows\n%s\nand it is\n%s", name, got, want)
	}
}

// rewrite writes the page, if that is wanted.
func (d *protocolDoc) rewrite(t *testing.T) {
	t.Helper()
	if !*rewrite {
		return
	}
	if err := os.WriteFile(protocolPage, []byte(d.text), 0o644); err != nil {
		t.Fatal(err)
	}
}

var number = regexp.MustCompile(`[0-9][0-9.,]*[0-9]|[0-9]`)

func numbersIn(text string) (all []float64) {
	for _, n := range number.FindAllString(text, -1) {
		if v, err := strconv.ParseFloat(strings.ReplaceAll(n, ",", ""), 64); err == nil {
			all = append(all, v)
		}
	}
	return all
}

// The sentences about an example have no number that the example does not show.
func TestProtocolSentencesSayWhatExamplesShow(t *testing.T) {
	examples := 0
	for _, section := range strings.Split(readPage(t).text, "\n### ") {
		if !strings.Contains(section, "<!-- example: ") {
			continue
		}
		examples++
		heading, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		shown := map[float64]bool{}
		var prose []string
		for i, part := range strings.Split(body, "```") {
			if i%2 == 0 {
				prose = append(prose, part)
				continue
			}
			for _, n := range numbersIn(part) {
				shown[n] = true
			}
		}
		for _, n := range numbersIn(inSections.ReplaceAllString(strings.Join(prose, " "), "")) {
			if !shown[n] {
				t.Errorf("%s: the sentences say %v, which no line of the example does", heading, n)
			}
		}
	}
	if examples == 0 {
		t.Error("the page has no examples")
	}
}

// The constants of the page are the code's.
func TestProtocolConstants(t *testing.T) {
	page := readPage(t)
	defer func() { page.rewrite(t) }()
	us := func(l ledgerTime) time.Duration { return time.Duration(l) * time.Microsecond }
	c := ratelimit.DefaultCoordination()
	safe, eager := ratelimit.Claim{}, ratelimit.Claim{Reclaim: ratelimit.ReclaimEager}
	table := "| constant | value | meaning |\n|---|---|---|\n"
	for _, row := range [][3]any{
		{"`DefaultLeaseTTL`", ratelimit.DefaultLeaseTTL, "how long a lease lasts unless the rule or plenty says otherwise"},
		{"`margin`, `reclaim: safe`", lease.Margin(&safe, c.Lease.TTL), "how much earlier than the ledger a holder stops spending a lease of that length"},
		{"`margin`, `reclaim: eager`", lease.Margin(&eager, c.Lease.TTL), "the same where the ledger reclaims expired leases"},
		{"`StoreDeadline`", ratelimit.StoreDeadline, "the longest that a request waits for the ledger"},
		{"`claimTimeout`", claimTimeout, "after which a claim without an answer counts as lost"},
		{"`horizon`", lease.Horizon, "how long a lease should last at the measured demand"},
		{"`idleAfter`", lease.IdleAfter, "after which an idle key's tokens are given back"},
		{"`plentyAbove`", fmt.Sprintf("1/%d", ledger.PlentyAbove), "more than this share of the limit is left, here or unspent at others: plenty"},
		{"`roomAbove`", fmt.Sprintf("1/%d", ledger.RoomAbove), "and more than this share here"},
		{"`idleShare`", fmt.Sprintf("1/%d", ledger.IdleShare), "of the limit, for the leases of plenty of all holders together"},
		{"`leastShares`", ledger.LeastShares, "parts of `idleShare` at least, one a holder"},
		{"`longest`", us(ledger.Longest), "the longest lease of plenty"},
		{"`recallAgain`", us(ledger.RecallAgain), "before the same lease is recalled once more"},
		{"`recallTakes`", us(ledger.RecallTakes), "for how long a node that was refused may ask again for what was recalled"},
		{"`recallPause`", lease.RecallPause, "between two such claims"},
		{"`company`", lease.Company, "for which a claim that nobody waits for may wait for others to travel with"},
		{"`longCompany`", lease.LongCompany, "the same, of a lease of plenty that is used up, where the key is seldom asked for"},
		{"`recallKeeps`", lease.RecallKeeps, "a recalled holder keeps what its demand needs for this long"},
		{"`backOff`", lease.BackOff, "between claims while tokens are out at other holders; up to twice as long"},
		{"`relearnTime`", ledger.RelearnTime, "how long a ledger that lost its data learns at least"},
		{"`relearnShare`", fmt.Sprintf("1/%d", ledger.RelearnShare), "of a limit, granted in all while the ledger learns"},
		{"`beatEvery`", beatEvery, "how long a node does without a word from the ledger"},
		{"`leadMost`", lease.LeadMost, "a busy key's next lease is claimed this long before its window ends, at the earliest; earlier only where two round trips take longer"},
		{"`doubtWait`", lease.DoubtWait, "the longest that a request waits for a window to have begun"},
		{"`maxSkew`", fmt.Sprintf("1/%d", lease.MaxSkew), "by which two clocks may run apart"},
		{"`mostRecords`", ledger.MostRecords, "records of an account, beyond which those of expired leases are folded"},
		{"`foldAfter`", ledger.FoldAfter, "after which the record of a holder that has ended may be folded"},
		{"`bucketWaits`", ledger.BucketWaits, "the longest that a bucket waits for a clock that went back"},
		{"`refusalHold`", lease.RefusalHold, "after which a refusal is asked for again"},
		{"`SeatTTL`", approx.SeatTTL, "how long a seat is held without renewal"},
		{"`CheckTimeout`", c.CheckTimeout, "how long a request of mode approx waits below the watermark"},
		{"`SyncInterval`", c.SyncInterval, "how old what a node of mode approx knows may be"},
	} {
		table += fmt.Sprintf("| %v | %v | %v |\n", row[:]...)
	}
	page.shows(t, "constants", table)
}

var (
	citedTest    = regexp.MustCompile(`\b(Test|Fuzz)[A-Z][A-Za-z0-9]+`)
	citedFile    = regexp.MustCompile("`((?:leasing|routing|approx|bench|ratelimit|docs)/[a-z0-9_./-]+\\.[a-z]+)`")
	citedSection = regexp.MustCompile(`docs/protocol\.md, sections? ([0-9.]+[0-9]|[0-9])(?:(?: to | and )([0-9.]+[0-9]|[0-9]))?`)
	brokenLine   = regexp.MustCompile(`\n\s*(?://|--) `)
	ownSection   = regexp.MustCompile(`(?m)^###? ([0-9]+(?:\.[0-9]+)?)\.? `)
	inSections   = regexp.MustCompile(`\b[Ss]ections?\s+([0-9]+(?:\.[0-9]+)?)(?:\s+(?:to|and)\s+([0-9]+(?:\.[0-9]+)?))?`)
	sourceWord   = regexp.MustCompile(`[A-Za-z_]+`)
	codeName     = regexp.MustCompile("`(?:[A-Za-z]+\\.)*([A-Za-z]+)`")
	plantedBug   = regexp.MustCompile(`"[a-z][^"]+"`)
	testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9]+)\(`)
)

// sources is what the page may cite of the code, and what the code cites of the page.
type sources struct {
	tests, words map[string]bool
	planted      string      // the tests that plant faults
	cites        [][3]string // file, section, and the last of several sections
}

func readSources(t *testing.T) *sources {
	t.Helper()
	s := &sources{tests: map[string]bool{}, words: map[string]bool{}}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); err != nil || d.IsDir() || ext != ".go" && ext != ".lua" && ext != ".proto" {
			return err
		}
		source, err := os.ReadFile(path)
		if err == nil {
			s.take(path, string(source))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *sources) take(path, source string) {
	for _, m := range citedSection.FindAllStringSubmatch(brokenLine.ReplaceAllString(source, " "), -1) {
		s.cites = append(s.cites, [3]string{path, m[1], m[2]})
	}
	if !strings.HasSuffix(path, "_test.go") {
		for _, w := range sourceWord.FindAllString(source, -1) {
			s.words[w] = true
		}
		return
	}
	for _, m := range testFunction.FindAllStringSubmatch(source, -1) {
		s.tests[m[1]] = true
	}
	if strings.HasSuffix(path, "sim/bugs_test.go") || strings.HasSuffix(path, "leasing/ledger/exhaust_test.go") {
		s.planted += source
	}
}

// The sections that comments cite exist, and those that the page itself does.
func TestProtocolSectionsExist(t *testing.T) {
	text, sections := readPage(t).text, map[string]bool{"": true}
	for _, m := range ownSection.FindAllStringSubmatch(text, -1) {
		sections[m[1]] = true
	}
	cites := readSources(t).cites
	if len(cites) == 0 {
		t.Error("no comment cites the page")
	}
	for _, m := range inSections.FindAllStringSubmatch(text, -1) {
		cites = append(cites, [3]string{protocolPage, m[1], m[2]})
	}
	for _, c := range cites {
		for _, section := range c[1:] {
			if !sections[section] {
				t.Errorf("%s cites section %s, and the page has none", c[0], section)
			}
		}
	}
}

// The tests, planted faults, files and names that the page cites exist.
func TestProtocolCitations(t *testing.T) {
	text, code := readPage(t).text, readSources(t)
	for _, name := range citedTest.FindAllString(text, -1) {
		if !code.tests[name] {
			t.Errorf("the page cites %s, and there is no such test", name)
		}
	}
	for _, m := range citedFile.FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
			t.Errorf("the page cites a file that is not there: %v", err)
		}
	}
	_, glossary, _ := strings.Cut(text, "| word | meaning | in the code |")
	glossary, _, _ = strings.Cut(glossary, "\n## ")
	for line := range strings.Lines(glossary) {
		columns := strings.Split(line, " | ")
		for _, m := range codeName.FindAllStringSubmatch(columns[len(columns)-1], -1) {
			if !code.words[m[1]] {
				t.Errorf("the glossary says that the code has %s, and it has not", m[0])
			}
		}
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "Planted: ") {
			continue
		}
		for _, m := range plantedBug.FindAllString(line, -1) {
			if !strings.Contains(code.planted, m) {
				t.Errorf("the page says that %s is planted, and no test does", m)
			}
		}
	}
}
