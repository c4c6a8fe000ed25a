package account

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/ratelimit"
)

var exhaustMore = flag.Int("exhaust", 0, "so many more messages of each holder in the exhaustive search")

// scope is how small a world is that is searched whole: every order in which messages are sent, lost, late, doubled
// and overtaken, and requests come.
type scope struct {
	name     string
	holders  int
	limit    tokens
	messages int // that each holder sends at most
	charges  int // of one token, at any holder, without asking
	refunds  int
	doubles  int // messages that arrive twice
	evicts   int // times that the account is lost, alone
	crashes  int // of holders, whose tokens others take back; those claim, and never draw
}

const mostHolders = 3

// node is a holder, as small as one can be that keeps the protocol.
type node struct {
	taken, spent, booked tokens
	seq                  uint64
	number, asked        int // of its messages; of the one that it waits for
	doubt, ended         bool
}

// letter is a message or an answer under way.
type letter struct {
	holder, number int
	answer, again  bool
	claim          Claim
	grant          Grant
}

// world is one state.
type world struct {
	*scope
	account
	nodes                          [mostHolders]node
	net                            []letter
	charges, refunds, doubles, cut int
	taken, evicted                 tokens // admitted of what was in hand
	crashes                        int
	untold                         tokens // spent by ended holders, and granted again
	by                             string // the step to it
}

// key is the state, without what changes nothing: fences, which holder is which, and in which order things lie about.
func (w *world) key() uint64 {
	each := make([]string, w.holders)
	for i := range each {
		p := &w.nodes[i]
		b := packed(p.taken, p.spent, p.booked, tokens(p.seq), tokens(p.number), tokens(p.asked), one(p.doubt), one(p.ended))
		if r := w.records.find(ratelimit.Holder(i + 1)); r != nil {
			b += packed(r.taken, r.spent, tokens(r.seq), 99)
		}
		var letters []string
		for j := range w.net {
			l, c, g := &w.net[j], &w.net[j].claim, &w.net[j].grant
			if l.holder == i {
				letters = append(letters, packed(
					tokens(l.number), one(l.answer), one(l.again), tokens(c.Seq), c.Taken, c.Spent, c.Want,
					g.Granted, g.Total, g.Sum, one(g.Err != nil),
				))
			}
		}
		slices.Sort(letters)
		each[i] = b + strings.Join(letters, "") + "|"
	}
	slices.Sort(each)
	all := packed(w.sum, w.spent, w.taken, w.evicted, w.untold,
		tokens(w.charges), tokens(w.refunds), tokens(w.doubles), tokens(w.cut))
	return xxhash.Sum64String(all + strings.Join(each, ""))
}

// packed has a byte for each small number.
func packed(all ...tokens) string {
	b := make([]byte, len(all))
	for i, n := range all {
		b[i] = byte(n + 64)
	}
	return string(b)
}

func one(is bool) tokens {
	if is {
		return 1
	}
	return 0
}

// next calls f with every state that follows.
func (w *world) next(f func(*world)) {
	for i := range w.holders {
		w.nodeMoves(i, f)
	}
	for i := range w.net {
		l := w.net[i]
		// One that is lost is one that never arrives.
		f(w.with(fmt.Sprintf("%s arrives", l), func(c *world) {
			c.net = slices.Delete(c.net, i, i+1)
			c.deliver(l)
		}))
		if !l.answer && !l.again && w.doubles < w.scope.doubles {
			f(w.with(fmt.Sprintf("%s arrives, and will again", l), func(c *world) {
				c.doubles++
				c.net[i].again = true
				c.deliver(l)
			}))
		}
	}
	if int(w.evicted) < w.evicts {
		f(w.with("the account is lost", func(c *world) { c.account = account{}; c.evicted++ }))
	}
}

func (w *world) nodeMoves(i int, f func(*world)) {
	p := &w.nodes[i]
	if p.ended {
		if r := w.records.find(ratelimit.Holder(i + 1)); r != nil && r.inHand() > 0 {
			f(w.with(fmt.Sprintf("what %d had in hand is taken back", i), func(c *world) { c.takeBack(i) }))
		}
		return
	}
	if w.crashes < w.scope.crashes {
		f(w.with(fmt.Sprintf("%d ends", i), func(c *world) { c.nodes[i].ended = true; c.crashes++ }))
	}
	if p.taken > p.spent {
		f(w.with(fmt.Sprintf("%d spends", i), func(c *world) { c.nodes[i].spent++; c.taken++ }))
	}
	if w.charges < w.scope.charges {
		f(w.with(fmt.Sprintf("%d is charged", i), func(c *world) { c.nodes[i].spent++; c.charges++ }))
	}
	if w.refunds < w.scope.refunds {
		f(w.with(fmt.Sprintf("%d refunds", i), func(c *world) { c.nodes[i].spent--; c.nodes[i].taken--; c.refunds++ }))
	}
	if p.number >= w.messages {
		return
	}
	if w.scope.crashes == 0 && p.asked == 0 && !p.doubt && p.taken == p.booked && p.taken >= p.spent {
		for n := tokens(1); n <= 2; n++ {
			f(w.with(fmt.Sprintf("%d draws %d", i, n), func(c *world) { c.send(i, Claim{Want: n}) }))
		}
	}
	for back := range min(max(p.taken-p.spent, 0), 1) + 1 {
		f(w.with(fmt.Sprintf("%d claims, and gives back %d", i, back), func(c *world) {
			c.nodes[i].taken -= back
			c.send(i, Claim{Need: 1, Want: 2})
		}))
	}
}

// takeBack takes back what an ended holder has in hand, by its record: it may have spent more of it since its last
// claim.
func (w *world) takeBack(i int) {
	all := (&kept{account: w.account}).look(epochAt, &ratelimit.Limit{Requests: w.limit}).Holders
	holder := ratelimit.Holder(i + 1)
	at := slices.IndexFunc(all, func(h ratelimit.HolderLook) bool { return h.Holder == holder })
	w.untold += max(0, w.nodes[i].spent-all[at].Spent)
	all[at].Holder = holder.Lapsing()
	c := Closes(Claim{Limit: ratelimit.Limit{Requests: w.limit}}, all[at:at+1], []ratelimit.Holder{NodeOf(holder)})[0]
	c.Holder = holder
	w.claim(epochAt, &c, 0, func(ratelimit.Holder) {})
}

// with is the state after a change.
func (w *world) with(by string, change func(*world)) *world {
	c := *w
	c.records, c.net, c.by = slices.Clone(w.records), slices.Clone(w.net), by
	change(&c)
	return &c
}

func (w *world) send(i int, c Claim) {
	p := &w.nodes[i]
	// The answer of an earlier message does not count.
	w.net = slices.DeleteFunc(w.net, func(l letter) bool { return l.holder == i && l.answer })
	p.doubt = p.doubt || p.asked > 0
	p.number++
	p.asked = p.number
	c.Holder, c.Limit.Requests = ratelimit.Holder(i+1), w.limit
	if c.Need > 0 {
		p.seq++
		c.Seq, c.Taken, c.Spent = p.seq, p.taken, p.spent
	}
	w.net = append(w.net, letter{holder: i, number: p.number, claim: c})
}

func (w *world) deliver(l letter) {
	if l.answer {
		w.nodes[l.holder].hear(&l, w)
		return
	}
	l.answer = true
	if l.claim.Draws() {
		l.grant = w.draw(epochAt, &l.claim, 0)
	} else {
		l.grant = w.claim(epochAt, &l.claim, 0, func(ratelimit.Holder) {})
	}
	l.grant = Grant{Granted: l.grant.Granted, Total: l.grant.Total, Sum: l.grant.Sum, Err: l.grant.Err}
	if l.number == w.nodes[l.holder].asked {
		w.net = append(w.net, l)
	}
}

// hear applies the answer at the node.
func (p *node) hear(l *letter, w *world) {
	if l.number != p.asked {
		return
	}
	p.asked = 0
	g := &l.grant
	switch over := max(0, g.Sum-w.limit); {
	case g.Err != nil:
		p.doubt = true
		return
	case l.claim.Draws() && g.Total != p.booked+l.claim.Want:
		p.doubt = true
		return
	case l.claim.Draws():
		p.taken += g.Owned(l.claim.Want, &l.claim.Limit)
	default:
		cut := g.Cut(&l.claim)
		p.taken += g.Granted + cut + max(0, max(0, l.claim.Spent-l.claim.Taken)-over)
		p.spent += cut
		w.cut += int(cut)
		p.doubt = false
	}
	p.booked = g.Total
}

// broken reports which invariant does not hold.
func (w *world) broken() error {
	inHand := tokens(0)
	for i := range w.holders {
		if p := &w.nodes[i]; !p.ended {
			inHand += max(0, p.taken-p.spent)
		}
	}
	// What was refunded may be spent once more, and an account that was lost may grant its limit again.
	if all, most := w.taken+inHand, w.limit*(1+w.evicted)+tokens(w.refunds)+w.untold; all > most {
		return fmt.Errorf("%d were spent or are in hand, of %d", all, most)
	}
	k := kept{account: w.account}
	return k.invariants(&ratelimit.Limit{Requests: w.limit})
}

func (l letter) String() string {
	what := "claim"
	if l.claim.Draws() {
		what = "draw"
	}
	if l.answer {
		what = fmt.Sprintf("answer (%d of %d) to the %s", l.grant.Granted, l.grant.Sum, what)
	}
	return fmt.Sprintf("%d's %s number %d", l.holder, what, l.number)
}

// visit visits a state, and every one that follows, and returns the way to one that is broken. It keeps their
// hashes: of 100 million, two are equal by chance once in 4,000 searches.
func (w *world) visit(seen map[uint64]bool) (err error) {
	k := w.key()
	if seen[k] {
		return nil
	}
	seen[k] = true
	if err = w.broken(); err == nil {
		w.next(func(c *world) {
			if err == nil {
				err = c.visit(seen)
			}
		})
	}
	if err != nil {
		return fmt.Errorf("%s\n%w", w.by, err)
	}
	return nil
}

// Small worlds are searched whole, each in a second or two.
func TestExhaustive(t *testing.T) {
	for _, s := range []*scope{
		{name: "two holders", holders: 2, limit: 2, messages: 2, doubles: 1},
		{name: "three holders", holders: 3, limit: 1, messages: 1, doubles: 1},
		{name: "costs", holders: 2, limit: 1, messages: 2, charges: 1},
		{name: "refunds", holders: 2, limit: 1, messages: 2, refunds: 1},
		{name: "a holder that ends", holders: 2, limit: 2, messages: 2, doubles: 1, crashes: 1},
		{name: "an account that is lost", holders: 2, limit: 1, messages: 2, evicts: 1},
	} {
		s.messages += *exhaustMore
		began, seen := time.Now(), map[uint64]bool{}
		if err := (&world{scope: s}).visit(seen); err != nil || len(seen) < 1000 {
			t.Errorf("%s: %d states, %v", s.name, len(seen), err)
		}
		t.Logf("%s: %d states in %v", s.name, len(seen), time.Since(began).Round(time.Millisecond))
	}
}
