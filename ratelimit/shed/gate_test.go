package shed

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/sluice-gate/sluice/ratelimit"
)

const (
	patience = 20 * time.Millisecond
	start    = ratelimit.Instant(time.Hour)
)

// A gate lets in and refuses calls of two connections, a and b, as testdata/gate.txt has it. Their callers wait for 20 ms.
func TestGate(t *testing.T) {
	if before := NewGate(patience).Before(nil); before.Refusal.Code() != codes.Unavailable {
		t.Errorf("calls over gRPC are refused with %v", before.Refusal)
	}
	datadriven.RunTest(t, "testdata/gate.txt", func(t *testing.T, in *datadriven.TestData) string {
		gate, now, inside := NewGate(patience), start, map[string]int{}
		duration := func(text string) time.Duration {
			d, err := time.ParseDuration(text)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		leave := func(who string, n int) {
			inside[who] -= n
			gate.Leave(now, inside[who], n)
		}
		serve := func(who string, n int, each time.Duration) { // one after the other
			for range n {
				now = now.Add(each)
				leave(who, 1)
			}
		}
		arrive := func(who string, n int, patience time.Duration) (begun int) { // at once
			for range n {
				if gate.Arrive(now, inside[who], patience) {
					begun++
					inside[who]++
				}
			}
			return begun
		}
		var out strings.Builder
		last := ""
		var play func(words []string)
		play = func(words []string) {
			t.Helper()
			var n int
			cmd, who := words[0], "a"
			if at := len(words) - 1; words[at] == "b" {
				who, words = "b", words[:at]
			}
			if len(words) > 1 {
				if _, err := fmt.Sscan(words[1], &n); words[1] == "all" || err != nil {
					n = inside[who]
				}
			}
			switch cmd {
			case "times": // N times what is said, with ; between two
				for range n {
					for what := range strings.SplitSeq(strings.Join(words[2:], " "), "; ") {
						play(strings.Fields(what))
					}
				}
			case "arrive": // N of callers that wait for so long
				wait := patience
				if len(words) > 2 {
					wait = duration(words[2])
				}
				said := fmt.Sprintf("%s has %d more inside", who, arrive(who, n, wait))
				if said != last { // in a line, the same again is not said
					fmt.Fprintln(&out, said)
				}
				last = said
			case "enter", "exit": // without a transport
				if cmd == "exit" {
					gate.EndNow()
				} else if err := gate.EnterNow(now); err != nil && last == "" {
					last = fmt.Sprintf("refused, as over gRPC: %t\n", errors.Is(err, Err))
					out.WriteString(last)
				}
			case "begin": // waits for a decision
				for range n {
					gate.Begin()
				}
			case "leave":
				leave(who, n)
			case "serve":
				serve(who, n, duration(words[2]))
			case "pass":
				now = now.Add(duration(words[1]))
			case "measure": // what a call takes
				for range 60 {
					arrive(who, 100, patience)
					serve(who, gate.Stats().Waiting, duration(words[1]))
				}
			case "stats":
				s := gate.Stats()
				fmt.Fprintf(&out, "%d inside of %d connections, %d in flight; shed for overload %d, for a deadline %d\n",
					s.Waiting, gate.callers, s.InFlight, s.Shed[Overload], s.Shed[Deadline])
			default:
				t.Fatalf("what is %q?", cmd)
			}
		}
		for line := range strings.SplitSeq(in.Input, "\n") {
			last = ""
			play(strings.Fields(line))
		}
		return out.String()
	})
}

// Twice what can be answered, for a second. After 100 ms no call is inside for longer than a
// quarter of its patience, and those that serve are never without work. A burst is let in when it has ended.
func TestStandingQueueIsShort(t *testing.T) {
	const each = 20 * time.Microsecond
	gate, now, own := NewGate(patience), start, 0
	arrive := func(n int) (begun int) {
		for range n {
			if gate.Arrive(now, own, patience) {
				begun++
				own++
			}
		}
		return begun
	}
	serve := func(n int) {
		for range n {
			now = now.Add(each)
			own--
			gate.Leave(now, own, 1)
		}
	}
	for range 1000 { // milliseconds
		arrive(100)
		if s := gate.Stats(); now.Sub(start) > 2*standing {
			if wait := time.Duration(s.Waiting) * each; wait > patience/standingShare+time.Millisecond || s.Waiting < 50 {
				t.Fatalf("after %v calls wait for %v", now.Sub(start), wait)
			}
		}
		serve(50)
	}
	serve(gate.Stats().Waiting)
	now = now.Add(stale / 2)
	if room := int(patience/burstShare/each) * 9 / 10; arrive(room) != room {
		t.Errorf("after the overload %d of a burst of %d were let in", gate.Stats().Waiting, room)
	}
}

func TestGateDoesNotAllocate(t *testing.T) {
	gate := NewGate(patience)
	if n := testing.AllocsPerRun(1000, func() {
		gate.Arrive(start, 0, patience)
		gate.Begin()
		gate.End()
		gate.Leave(start, 0, 1)
	}); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
