package console

import (
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// What may be asked of a node.
const (
	// DefaultQuestions is how many explanations a second it gives, and twice as many
	// at once: each may cost the store two round trips.
	DefaultQuestions = 20
	questionsAtOnce  = 4
	// An address may guess the token once a second, and guessBurst times at once.
	guessRate  = 1
	guessBurst = 5
	guessers   = 1024 // addresses that are known; others share what one has
)

// throttle bounds what the store is asked for people, and how often a token is
// guessed. It is safe for concurrent use.
type throttle struct {
	questions *rate.Limiter
	slots     chan struct{}
	now       func() time.Time

	mu      sync.Mutex
	forgot  time.Time                // guarded by mu: when the table was last looked through
	guesses map[string]*rate.Limiter // guarded by mu, by address. Invariant: at most guessers, and one for all others
}

func newThrottle(questions int, now func() time.Time) *throttle {
	if questions == 0 {
		questions = DefaultQuestions
	}
	return &throttle{
		questions: rate.NewLimiter(rate.Limit(questions), 2*questions), slots: make(chan struct{}, questionsAtOnce),
		now:     now,
		guesses: map[string]*rate.Limiter{},
	}
}

// question tells whether one more may be asked; then done must be called.
func (t *throttle) question() (done func(), ok bool) {
	select {
	case t.slots <- struct{}{}:
	default:
		return nil, false
	}
	if !t.questions.AllowN(t.now(), 1) {
		<-t.slots
		return nil, false
	}
	return func() { <-t.slots }, true
}

// others is the address of all that are not known.
const others = ""

// guess looks at a token, unless its address was wrong too often: then it is not
// looked at, so that guessing faster finds nothing more.
func (t *throttle) guess(address string, right func() bool) (looked, ok bool) {
	now := t.now()
	from := prefixOf(address)
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.guesses[from]
	if l == nil && len(t.guesses) >= guessers {
		if t.forgetLocked(now); len(t.guesses) >= guessers {
			from = others
			l = t.guesses[from]
		}
	}
	if l != nil && l.TokensAt(now) < 1 {
		return false, false
	}
	if right() {
		return true, true
	}
	if l == nil {
		l = rate.NewLimiter(guessRate, guessBurst)
		t.guesses[from] = l
	}
	l.AllowN(now, 1)
	return true, false
}

// forgetLocked drops who has not guessed for a while. It looks once a second at
// most, for it looks through all.
func (t *throttle) forgetLocked(now time.Time) {
	if now.Sub(t.forgot) < time.Second {
		return
	}
	t.forgot = now
	for from, l := range t.guesses {
		if l.TokensAt(now) >= guessBurst {
			delete(t.guesses, from)
		}
	}
}

// prefixOf is whom an address belongs to: of IPv6, the network of 64 bits.
func prefixOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip := net.ParseIP(host)
	if ip == nil {
		return host
	}
	if ip.To4() == nil {
		return ip.Mask(net.CIDRMask(64, 128)).String()
	}
	return ip.String()
}

// tooMany refuses for a while.
func tooMany(w http.ResponseWriter, what string) {
	w.Header().Set("Retry-After", "1")
	refuse(w, http.StatusTooManyRequests, "%s: ask again in a second", what)
}
