package console

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// Explanations are so many a second, and few at once; each slot is used again.
func TestQuestionsAreThrottled(t *testing.T) {
	now := time.Unix(1000, 0)
	th := newThrottle(func() time.Time { return now })
	asked := 0
	for range 100 {
		if done, ok := th.question(); ok {
			asked++
			done()
		}
	}
	if asked != 2*questionRate {
		t.Errorf("%d at once, want %d", asked, 2*questionRate)
	}
	now = now.Add(time.Second)
	var open []func()
	for range 10 {
		if done, ok := th.question(); ok {
			open = append(open, done)
		}
	}
	if len(open) != questionsAtOnce {
		t.Errorf("%d are under way, want %d", len(open), questionsAtOnce)
	}
	open[0]()
	if _, ok := th.question(); !ok {
		t.Error("a slot that is free again is not used")
	}
	n, answered, refused := newOverridable(t), 0, 0
	for range 100 {
		switch w := n.do("GET", "/explain?domain=edge&entry=api_key=alice", ""); {
		case w.Code == http.StatusOK:
			answered++
		case w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != "":
			refused++
		}
	}
	if answered < questionRate || refused == 0 || answered+refused != 100 {
		t.Errorf("of 100 questions at once %d are answered, and %d refused for a moment", answered, refused)
	}
}

// Wrong tokens are compared five times at once and once a second, by address. The right one is
// never delayed, and attackers lock no others out.
func TestGuessesAreThrottled(t *testing.T) {
	now := time.Unix(1000, 0)
	th := newThrottle(func() time.Time { return now })
	wrong, right := func() bool { return false }, func() bool { return true }
	looks := func(from string, n int) (looked int) {
		for range n {
			if l, ok := th.guess(from, wrong); ok {
				t.Fatal("a wrong token was right")
			} else if l {
				looked++
			}
		}
		return looked
	}
	for range 100 {
		if l, ok := th.guess("10.0.0.1:1", right); !l || !ok {
			t.Fatal("the right token was refused")
		}
	}
	if n := looks("10.0.0.1:1", 100); n != guessBurst {
		t.Errorf("%d were looked at, want %d", n, guessBurst)
	}
	if l, ok := th.guess("10.0.0.1:2", right); l || ok {
		t.Error("after those, the token was looked at, from another port of the address")
	}
	if l, _ := th.guess("10.0.0.2:1", right); !l {
		t.Error("another address was held to it")
	}
	if n := looks("[2001:db8::1]:1", 3) + looks("[2001:db8::2]:1", 7); n != guessBurst {
		t.Errorf("of one network %d were looked at", n)
	}
	now = now.Add(2 * time.Second)
	if n := looks("10.0.0.1:3", 10); n != 2 {
		t.Errorf("two seconds later %d were looked at", n)
	}
	// However many guess, hardly an address that does not has both of its places taken.
	for i := range 1024 {
		looks(fmt.Sprintf("10.1.%d.%d:1", i/250, i%250), 2*guessBurst)
	}
	locked := 0
	for i := range 1000 {
		if l, ok := th.guess(fmt.Sprintf("10.2.%d.%d:1", i/250, i%250), right); !l || !ok {
			locked++
		}
	}
	if locked > 60 { // 14 are to be expected
		t.Errorf("1024 addresses that guess lock %d of 1000 others out", locked)
	}
	now = now.Add(time.Minute)
	if n := looks("10.1.0.1:1", 10); n != guessBurst {
		t.Errorf("a minute later: %d", n)
	}
}
