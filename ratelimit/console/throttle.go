package console

import (
	"hash/maphash"
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
	guessRate   = 1
	guessBurst  = 5
	guessPlaces = 1 << 13 // of a row
)

// throttle bounds what the store is asked for people, and how often a token is
// guessed. It is safe for concurrent use.
type throttle struct {
	questions *rate.Limiter
	slots     chan struct{}
	now       func() time.Time

	seeds [2]maphash.Seed
	mu    sync.Mutex
	// guesses are guarded by mu. An address has a place in each row, which others may share by chance, and
	// has guessed too often if both places have: so its places are its own but for chance, while far fewer than
	// guessPlaces guess.
	guesses [2][]guesses
}

// guesses are those of the addresses of one place: how many are left, and when that was reckoned.
type guesses struct {
	left float64
	at   time.Time // zero: all are left
}

func newThrottle(questions int, now func() time.Time) *throttle {
	if questions == 0 {
		questions = DefaultQuestions
	}
	t := &throttle{
		questions: rate.NewLimiter(rate.Limit(questions), 2*questions), slots: make(chan struct{}, questionsAtOnce),
		now: now,
	}
	for i := range t.guesses {
		t.seeds[i], t.guesses[i] = maphash.MakeSeed(), make([]guesses, guessPlaces)
	}
	return t
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

// guess looks at a token, unless its address was wrong too often: then it is not
// looked at, so that guessing faster finds nothing more.
func (t *throttle) guess(address string, right func() bool) (looked, ok bool) {
	now, from := t.now(), prefixOf(address)
	t.mu.Lock()
	defer t.mu.Unlock()
	var places [2]*guesses
	most := 0.0
	for i := range places {
		g := &t.guesses[i][maphash.String(t.seeds[i], from)%guessPlaces]
		if g.at.IsZero() {
			g.left = guessBurst
		}
		g.left, g.at = min(guessBurst, g.left+guessRate*now.Sub(g.at).Seconds()), now
		most, places[i] = max(most, g.left), g
	}
	if most < 1 {
		return false, false
	}
	if right() {
		return true, true
	}
	for _, g := range places {
		g.left = max(0, g.left-1)
	}
	return true, false
}

// prefixOf is whom an address belongs to: of IPv6, the network of 48 bits, for that is what a site is given.
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
		return ip.Mask(net.CIDRMask(48, 128)).String()
	}
	return ip.String()
}

// tooMany refuses for a while.
func tooMany(w http.ResponseWriter, what string) {
	w.Header().Set("Retry-After", "1")
	refuse(w, http.StatusTooManyRequests, "%s: ask again in a second", what)
}
