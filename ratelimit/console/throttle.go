package console

import (
	"hash/maphash"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of requests to a node.
const (
	// questionRate is the number of explanations a second, and half of the burst: each may cost the store two
	// round trips.
	questionRate    = 20
	questionsAtOnce = 4
	// An address may try a token once a second, and guessBurst times at once.
	guessRate   = 1
	guessBurst  = 5
	guessPlaces = 1 << 13 // of a row
)

// throttle bounds the load on the store by users, and the attempts to guess a token. It is safe for concurrent use.
// Memory is fixed: two rows of places for addresses, and no entry for each address.
type throttle struct {
	questions *rate.Limiter
	slots     chan struct{}
	now       func() time.Time

	seeds [2]maphash.Seed
	mu    sync.Mutex
	// guesses are guarded by mu. An address has a place in each row, and is blocked if both places are used up.
	// Others share a place by chance, which is rare with far fewer addresses than guessPlaces.
	guesses [2][]guesses
}

// guesses are the used attempts of the addresses of one place, at a time.
type guesses struct {
	used float64
	at   time.Time
}

func newThrottle(now func() time.Time) *throttle {
	t := &throttle{
		questions: rate.NewLimiter(questionRate, 2*questionRate), slots: make(chan struct{}, questionsAtOnce),
		now: now,
	}
	for i := range t.guesses {
		t.seeds[i], t.guesses[i] = maphash.MakeSeed(), make([]guesses, guessPlaces)
	}
	return t
}

// question reports whether one more may run. Then the caller must call done.
func (t *throttle) question() (done func(), ok bool) {
	select {
	case t.slots <- struct{}{}:
	default:
		return nil, false
	}
	// The slot goes back, since no explanation runs.
	if !t.questions.AllowN(t.now(), 1) {
		<-t.slots
		return nil, false
	}
	return func() { <-t.slots }, true
}

// guess compares a token, unless its address was wrong too often. Then it does not compare, so that faster guesses
// find nothing.
func (t *throttle) guess(address string, right func() bool) (looked, ok bool) {
	now, from := t.now(), prefixOf(address)
	t.mu.Lock()
	defer t.mu.Unlock()
	// Used attempts of a place fall by guessRate a second. An address counts with the lower of its two places, so one
	// crowded place does not block it.
	var places [2]*guesses
	least := float64(guessBurst)
	for i := range places {
		g := &t.guesses[i][maphash.String(t.seeds[i], from)%guessPlaces]
		g.used = max(0, g.used-guessRate*now.Sub(g.at).Seconds())
		g.at = now
		least, places[i] = min(least, g.used), g
	}
	if least > guessBurst-1 {
		return false, false
	}
	if right() {
		return true, true
	}
	for _, g := range places {
		g.used = min(guessBurst, g.used+1)
	}
	return true, false
}

// prefixOf is the site of an address: for IPv6, its network of 48 bits. A site usually has a /48, and could otherwise
// try from any of its addresses.
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
