package lease

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The scenarios of testdata are scripts: what happens to one key of one node, a command a
// line, and below ---- what the Held answered and what it wants done. After a change,
//
//	go test ./leasing/internal/lease -run Scripts -rewrite
//
// writes the outputs anew; each line of the difference then wants to be held against
// docs/protocol.md. The commands are in [commands] below, and what they do is in
// scriptplay_test.go.

var rewriteScripts = flag.Bool("rewrite", false, "have TestScripts write into testdata what the scripts print")

// Each script prints what its file says. It prints the same when the key is packed after each
// command in which that may be, and is unpacked for the next: nobody can tell a cold key from
// a busy one.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no scripts: %v", err)
	}
	protocol, err := os.ReadFile("../../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			citesWhatThereIs(t, string(text), string(protocol))
			busy := play(t, file, string(text), false)
			if d := cmp.Diff(strings.Split(busy, "\n"), strings.Split(play(t, file, string(text), true), "\n")); d != "" {
				t.Errorf("packed after each command, it says another thing (-busy +packed):\n%s", d)
			}
			switch d := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(busy, "\n")); {
			case d == "":
			case !*rewriteScripts:
				t.Errorf("it says another thing than its file (-file +now):\n%s", d)
			default:
				if err := os.WriteFile(file, []byte(busy), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

var (
	scriptCites   = regexp.MustCompile(`docs/protocol\.md, sections? ([0-9][0-9.]*(?: \([^)]*\))?(?:,? (?:and )?[0-9][0-9.]*)*)`)
	sectionNumber = regexp.MustCompile(`[0-9]+(?:\.[0-9]+)?`)
	protocolTitle = `(?m)^###? %s\.? `
)

// citesWhatThereIs wants a script to begin with what it shows, and to cite sections that there
// are.
func citesWhatThereIs(t *testing.T, script, protocol string) {
	t.Helper()
	head, _, _ := strings.Cut(script, "\n\n")
	cites := scriptCites.FindAllStringSubmatch(strings.ReplaceAll(head, "\n# ", " "), -1)
	if !strings.HasPrefix(head, "# ") || len(cites) == 0 {
		t.Error("it does not begin with a comment that cites docs/protocol.md, section ...")
	}
	for _, cite := range cites {
		for _, section := range sectionNumber.FindAllString(cite[1], -1) {
			if !regexp.MustCompile(fmt.Sprintf(protocolTitle, regexp.QuoteMeta(section))).MatchString(protocol) {
				t.Errorf("docs/protocol.md has no section %s", section)
			}
		}
	}
}

// play runs a script, and returns it with what it prints in place of what it printed.
func play(t *testing.T, file, text string, packs bool) string {
	t.Helper()
	s := newScript(t, packs)
	var out strings.Builder
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		switch {
		case line == "" || line[0] == '#':
		case line == "----":
			out.WriteString("----\n" + s.out.String())
			s.out.Reset()
			for i+1 < len(lines) && lines[i+1] != "" { // what it printed when the file was written
				i++
			}
			continue
		default:
			s.at = fmt.Sprintf("%s:%d: %s", file, i+1, line)
			s.runs(line)
		}
		out.WriteString(lines[i] + "\n")
	}
	if s.out.Len() > 0 {
		t.Errorf("%s: what is printed last has no ---- above it:\n%s", file, s.out.String())
	}
	return out.String()
}

// command is one line of a script: a word, others that stand alone, and name=value.
type command struct {
	*script
	words []string
	named map[string]string
	used  map[string]bool
}

// runs runs one command.
func (s *script) runs(line string) {
	s.t.Helper()
	c := &command{script: s, named: map[string]string{}, used: map[string]bool{}}
	for _, field := range strings.Fields(line) {
		if name, value, ok := strings.Cut(field, "="); ok {
			c.named[name] = value
			continue
		}
		c.words = append(c.words, field)
	}
	run, ok := commands[c.words[0]]
	if !ok {
		s.t.Fatalf("%s: there is no such command", s.at)
	}
	if c.words[0] != "ask" { // which may be answered from the packed key
		s.unpack()
	}
	run(c)
	for name := range c.named {
		if !c.used[name] {
			s.t.Fatalf("%s: %s does not know %s=", s.at, c.words[0], name)
		}
	}
	if s.cools {
		s.pack()
	}
}

// word is a word that stands alone, by its place.
func (c *command) word(i int) string {
	c.t.Helper()
	if i >= len(c.words) {
		c.t.Fatalf("%s: a word is missing", c.at)
	}
	return c.words[i]
}

// has tells whether the command has the word, behind its first.
func (c *command) has(word string) bool {
	for _, w := range c.words[1:] {
		if w == word {
			return true
		}
	}
	return false
}

func (c *command) tokens(text string) tokens {
	c.t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		c.t.Fatalf("%s: %v", c.at, err)
	}
	return tokens(n)
}

func (c *command) duration(text string) time.Duration {
	c.t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		c.t.Fatalf("%s: %v", c.at, err)
	}
	return d
}

// number is the tokens that name= says, or else those that it is without.
func (c *command) number(name string, without tokens) tokens {
	c.t.Helper()
	if text, ok := c.value(name); ok {
		return c.tokens(text)
	}
	return without
}

// lasts is the duration that name= says, or else the one that it is without.
func (c *command) lasts(name string, without time.Duration) time.Duration {
	c.t.Helper()
	if text, ok := c.value(name); ok {
		return c.duration(text)
	}
	return without
}

func (c *command) value(name string) (string, bool) {
	text, ok := c.named[name]
	c.used[name] = true
	return text, ok
}

// commands are what may happen to a key. Instants are durations from the script's beginning.
var commands = map[string]func(*command){
	"rule":    (*command).rule,         // rule 100/minute sliding_window burst=N FIELD=VALUE...: the rule is this one from now on
	"at":      (*command).passes,       // at 12.5s: time passes, and what was to be done by then is done
	"ask":     (*command).asks,         // ask 3 [peek|refund]: a request comes
	"undo":    (*command).undoes,       // undo: what the last request was charged is taken back
	"share":   (*command).shares,       // share 5 [heir=F]: the node's share of drift is 5 from now on
	"checked": (*command).checked,      // checked: requests have waited for check_timeout
	"late":    (*command).late,         // late [alive]: requests have waited for store_deadline; alive: the ledger answers others
	"book":    (*command).books,        // book 4: on_store_failure has admitted 4
	"cached":  (*command).cached,       // cached 4: on_store_failure: cached decides on 4
	"unbook":  (*command).unbooks,      // unbook: what book or cached has charged last is taken back
	"leaves":  (*command).leaves,       // leaves [recalls] [reset]: the claim that is wanted is written
	"answer":  (*command).answered,     // answer granted=20 available=80 chance=50 ...: see (*command).grant; chance is in percent
	"lost":    (*command).lost,         // lost: no answer comes
	"recall":  (*command).isRecalled,   // recall: the ledger asks for what is not needed
	"sweep":   (*command).sweeps,       // sweep [full]: the shell looks after the key; full: its table is
	"tell":    (*command).tells,        // tell doubt=1s [lapsed=1s] [used-up]: it looks for what is to be told again
	"drop":    (*command).mayGo,        // drop [full]: it asks whether it may forget the key
	"clock":   (*command).hearsOfClock, // clock: another key has heard what time it is at the ledger
	"end":     (*command).ends,         // end: the node ends
	"counts":  (*command).counts,       // counts: what metrics have of the key
	"look":    (*command).isLookedAt,   // look: what people see of the lease
	"seat":    (*command).leavesSeat,   // seat: the node gives up its seat (mode approx)
	"pack":    (*command).packs,        // pack: the key is packed, and unpacked
}
