package approx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
)

// keeperScript is a keeper that a script drives: it applies, and the script answers.
type keeperScript struct {
	testing.TB
	*Keeper
	now  ratelimit.Instant
	rule *ratelimit.Rule
	plan Plan
	told []Tenancy
}

func newKeeperScript(t testing.TB) *keeperScript {
	s := &keeperScript{TB: t, now: ratelimit.Instant(time.Hour)}
	s.Keeper = NewKeeper(nil, 7, func() ratelimit.Instant { return s.now })
	s.OnChange = func(t Tenancy, _ error) { s.told = append(s.told, t) }
	s.rule = dividedBy("p", 2)
	s.plan = NewPlan([]*ratelimit.Rule{s.rule})
	return s
}

// dividedBy is a rule that lets so many nodes drift by 100 tokens.
func dividedBy(path string, nodes int) *ratelimit.Rule {
	r := approxRule(10_000, nodes, 10_000)
	r.Path = path
	return r
}

func (s *keeperScript) passes(d time.Duration) { s.now = s.now.Add(d) }

// applies is what is due, if anything is.
func (s *keeperScript) applies() (a Application, due bool) {
	s.Helper()
	a, due = s.Due(s.now, s.plan)
	if due && (a.Holder != 7 || a.valid() != nil) {
		s.Errorf("it applies with %+v", a)
	}
	return a, due
}

// applied is an application as scripts say it.
func applied(a Application, due bool) string {
	text := "waits"
	if due {
		text = fmt.Sprintf("of %d seats, has seat %d with fence %d", a.Seats, a.Now.Seat, a.Now.Fence)
	}
	if a.Leave {
		text += ", leaves" + map[bool]string{true: " clean"}[a.Clean]
	}
	return text
}

// args are what follows the first word of a line: names with values, and alone.
type args map[string]string

func (a args) has(name string) bool { _, ok := a[name]; return ok }

func (a args) duration(name string) time.Duration { return duration(cmp.Or(a[name], "0s")) }

// duration is one of a script.
func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
}

func (a args) number(name string) int {
	n, err := strconv.Atoi(cmp.Or(a[name], "0"))
	if err != nil {
		panic(err)
	}
	return n
}

// tenancy is what a line answers.
func (a args) tenancy() Tenancy {
	if a.has("none") {
		return Tenancy{Seat: -1}
	}
	t := Tenancy{Seat: a.number("seat"), Fence: ratelimit.Fence(a.number("fence")), Agreed: !a.has("disagreed")}
	if a.has("not_before") {
		t.NotBefore = epoch.Add(a.duration("not_before"))
	}
	return t
}

// do plays a line of a script, and returns what it shows.
func (s *keeperScript) do(line string) string {
	s.Helper()
	words, a := strings.Fields(line), args{}
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		a[name] = value
	}
	switch words[0] {
	case "pass":
		s.passes(duration(words[1]))
	case "rules":
		var all []*ratelimit.Rule
		for path := range a {
			all = append(all, dividedBy(path, a.number(path)))
		}
		s.plan = NewPlan(all)
		if a.has("p") {
			s.rule = dividedBy("p", a.number("p"))
		}
	case "ledger":
		known := ratelimit.EpochKnown{ID: uint64(a.number("id")), Asked: s.now.Add(a.duration("asked")), Young: a.has("learning")}
		s.Epoch = func() ratelimit.EpochKnown { return known }
	case "gets":
		apply, due := s.applies()
		sent := s.now
		if s.passes(a.duration("after")); !due {
			return "it does not apply"
		}
		s.Answer(sent, apply, s.plan, a.tenancy(), nil)
	case "answer":
		s.Answer(s.now, Application{epoch: s.epoch().ID}, s.plan, a.tenancy(), nil)
	case "fails":
		apply, due := s.applies()
		s.Answer(s.now, apply, s.plan, Tenancy{}, errors.New("gone"))
		return "fails: " + applied(apply, due)
	case "due":
		return "due: " + applied(s.applies())
	case "leave":
		left, ok := s.Resign(a.has("clean"))
		if ok && (left.Holder != 7 || left.valid() != nil) {
			s.Errorf("it leaves with %+v", left)
		}
		return "leave: " + applied(left, ok)
	case "share":
		rule := s.rule
		if a["of"] == "q" {
			rule = dividedBy("q", 5)
		}
		return fmt.Sprint("share: ", s.Share(s.now, rule, epoch.Add(a.duration("begins"))))
	case "seat":
		seat, wanted := s.Seat()
		return fmt.Sprintf("seat: %d, wanted %v", seat, wanted)
	case "told":
		seats := []int{}
		for _, t := range s.told {
			seats = append(seats, t.Seat)
		}
		return fmt.Sprint("told: ", seats)
	default:
		s.Fatalf("%s?", line)
	}
	return ""
}

// The scripts of testdata/keeper say what a keeper applies for, and what it spends.
func TestKeeperScripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/keeper", func(t *testing.T, d *datadriven.TestData) (said string) {
		s := newKeeperScript(t)
		for line := range strings.Lines(d.Input) {
			if shown := s.do(line); shown != "" {
				said += shown + "\n"
			}
		}
		return said
	})
}

// scriptedSeats answers applications as the test says.
type scriptedSeats struct {
	asked  []Application
	t      Tenancy
	err    error
	longer bool // a request would wait for more than a second
}

func (s *scriptedSeats) Sit(ctx context.Context, a Application) (Tenancy, error) {
	if end, bounded := ctx.Deadline(); !bounded || time.Until(end) > time.Second {
		s.longer = true
	}
	s.asked = append(s.asked, a)
	return s.t, s.err
}

// While rules need seats, one is kept; when they need none any more, it is given
// up, as one of which not all is confirmed, once. A keeper that never needed one
// says nothing.
func TestKeeperKeepsWhatRulesNeed(t *testing.T) {
	ledger := &scriptedSeats{t: Tenancy{Seat: 1, Fence: 5, Agreed: true}}
	s := newKeeperScript(t)
	s.seats = ledger
	nothing := NewPlan(nil)
	s.keep(context.Background(), nothing)
	if len(ledger.asked) != 0 {
		t.Fatalf("no rule needs a seat, and it asks %+v", ledger.asked)
	}
	if _, wanted := s.Seat(); wanted {
		t.Error("no rule needs a seat, and one is wanted")
	}
	if s.Leave(context.Background(), true); len(ledger.asked) != 0 || len(s.told) != 0 {
		t.Fatalf("it has no seat, and gives up %+v, and tells of %+v", ledger.asked, s.told)
	}
	s.keep(context.Background(), s.plan)
	s.keep(context.Background(), s.plan)
	if len(ledger.asked) != 1 {
		t.Fatalf("it has a seat since a moment ago, and has asked %+v", ledger.asked)
	}
	if seat, wanted := s.Seat(); seat != 1 || !wanted {
		t.Errorf("seat %d, wanted %v", seat, wanted)
	}
	s.keep(context.Background(), nothing)
	s.keep(context.Background(), nothing)
	if len(ledger.asked) != 2 || !ledger.asked[1].Leave || ledger.asked[1].Clean {
		t.Fatalf("no rule needs the seat any more, and it has asked %+v", ledger.asked)
	}
	if _, wanted := s.Seat(); wanted {
		t.Error("no rule needs a seat any more, and one is wanted")
	}
	if ledger.longer {
		t.Error("it would wait for more than a second")
	}
}

// An operator gets each change: a seat, none, and seats without an answer.
func TestKeeperTellsOfChanges(t *testing.T) {
	ledger := &scriptedSeats{err: errors.New("gone")}
	s := newKeeperScript(t)
	s.seats = ledger
	var told []string
	s.OnChange = func(t Tenancy, err error) { told = append(told, fmt.Sprint(t.Seat, " ", err)) }
	s.keep(context.Background(), s.plan)
	ledger.t, ledger.err = none, nil
	s.keep(context.Background(), s.plan)
	s.passes(SeatTTL)
	ledger.t = Tenancy{Seat: 0, Fence: 5, Agreed: true}
	s.keep(context.Background(), s.plan)
	s.passes(SeatTTL / 2)
	s.keep(context.Background(), s.plan) // renewed: no change
	s.passes(SeatTTL / 2)
	ledger.err = errors.New("gone again")
	s.keep(context.Background(), s.plan)
	ledger.t.Fence, ledger.err = 6, nil
	s.keep(context.Background(), s.plan)
	s.keep(context.Background(), NewPlan(nil))
	if got, want := strings.Join(told, "; "), "-1 gone; 0 <nil>; -1 gone again; 0 <nil>; -1 <nil>"; got != want {
		t.Errorf("told of %s\nwant    %s", got, want)
	}
}
