package account

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Redis is a ledger in Redis (6.2 and later, Valkey): single, Sentinel or Cluster. An account is a hash with an
// expiry. It is safe for concurrent use. Messages of one Settle share a round trip to each server.
//
// Draws are plain increments in one MULTI, so that a broken connection leaves nothing half done. In a Cluster, or if
// a window may be over, a draw is a script.
type Redis struct {
	prefix  string
	cluster *redis.ClusterClient  // nil: one server
	people  redis.UniversalClient // for views of users
	// at replaces the clock of Redis in tests; 0: no replacement.
	at func() ratelimit.LedgerTime
	// latest is the latest time by its clock. It decides whether a draw may be a plain increment.
	latest atomic.Int64

	servers
}

// ErrClient means that a client is not suitable for a ledger.
var ErrClient = errors.New("the store needs a redis.Client or redis.ClusterClient with ContextTimeoutEnabled: true " +
	"and MaxRetries: -1: otherwise a decision waits longer than its rule's StoreDeadline")

// ErrAnswer means that an answer has not the form of this protocol.
var ErrAnswer = errors.New("the store's reply is invalid")

// NewRedis makes a ledger whose accounts' names start with prefix. It adds to the client's OnConnect, so the client
// must be new, and nothing else may use it for transactions: they end a connection's watch. The caller keeps the
// client, which must not retry by itself, and must respect contexts (ContextTimeoutEnabled). A redis.Ring, or a wrapped
// client, is refused with [ErrClient], because its handling of transactions is unknown. The two requirements are about
// time: a call that ignores its context, or repeats itself, outlasts the store_deadline. A repeated draw would also
// count twice.
func NewRedis(client redis.UniversalClient, prefix string) (*Redis, error) {
	l := &Redis{prefix: prefix, at: func() ratelimit.LedgerTime { return 0 }}
	var timeouts bool
	var retries int
	var connected *func(context.Context, *redis.Conn) error
	switch c := client.(type) {
	case *redis.Client:
		o := c.Options()
		timeouts = o.ContextTimeoutEnabled
		retries = o.MaxRetries
		connected = &o.OnConnect
		l.single(c)
	case *redis.ClusterClient:
		o := c.Options()
		timeouts = o.ContextTimeoutEnabled
		retries = o.MaxRetries
		connected = &o.OnConnect
		l.cluster, l.tags = c, slotTags(prefix)
	default:
		return nil, fmt.Errorf("%w; it is a %T", ErrClient, client)
	}
	if !timeouts || retries > 0 {
		return nil, fmt.Errorf("%w; it has ContextTimeoutEnabled: %v and MaxRetries: %d", ErrClient, timeouts, retries)
	}
	*connected = l.introduced(*connected)
	return l, nil
}

// GoBy makes the ledger use another clock than Redis' own: a simulation's. Accounts still expire by Redis' own.
func (l *Redis) GoBy(clock func() ratelimit.LedgerTime) { l.at = clock }

// NameOf is an account's name at a store. In a Cluster the accounts of a key are in one slot. For example
// "{minute|edge|api_key=abc}29000000": the braces are the hash tag of a Cluster, which alone decides on the slot.
func NameOf(prefix, key string, w ratelimit.Window) string {
	return prefix + "{" + key + "}" + strconv.FormatInt(int64(w), 10)
}

func (l *Redis) nameOf(key string, w ratelimit.Window) string { return NameOf(l.prefix, key, w) }

// ParseName is the reverse of NameOf. A raw key (FleetOptions.RawNames) may have a brace, and a window has none, so the
// last brace ends the key.
func ParseName(prefix, s string) (key string, w ratelimit.Window, ok bool) {
	s, ours := strings.CutPrefix(s, prefix+"{")
	end := strings.LastIndexByte(s, '}')
	if !ours || end < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(s[end+1:], 10, 64)
	return s[:end], ratelimit.Window(n), err == nil
}

// Settle implements [Ledger]. Without claims it reads the epoch of each server. The epoch combines those of all servers
// of the claims' parts. If there are several, no time is returned, because each has its own clock. The error of a
// single message is in its grant. The epoch is unknown only if no server answered. It allocates. Its steps: sort the
// claims by server; make a trip to each at the same time; in a Cluster, follow slots that move; combine the epochs of
// the parts.
func (l *Redis) Settle(
	ctx context.Context, claims []Claim, grants []Grant,
) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	x, err := l.known(ctx)
	if err != nil {
		for i := range grants {
			grants[i] = Grant{Err: err}
		}
		return ratelimit.Epoch{}, 0, err
	}
	parts := x.allParts()
	if len(claims) > 0 {
		// allParts made the slice for this call alone.
		parts = parts[:0]
		for i := range claims {
			if part := l.Partition(claims[i].Key); !slices.Contains(parts, part) {
				parts = append(parts, part)
			}
		}
	}
	trips := l.trips(x, claims, grants)
	errs := settleAll(ctx, trips)
	if l.cluster != nil {
		errs = append(errs, l.follow(ctx, claims, grants)...)
		x = l.current.Load()
	}
	if !slices.Contains(errs, nil) {
		return ratelimit.Epoch{}, 0, errors.Join(errs...)
	}
	// The time of a part with several servers would not bound the clock of the one that settles the next claim.
	at := ratelimit.LedgerTime(0)
	if of := x.parts[parts[0]]; len(parts) == 1 && len(of) == 1 && of[0] == trips[0].server {
		at = trips[0].time
	}
	return l.epochOf(x, parts), at, nil
}

// Ask reads the epoch of all servers of a part, and bounds their clocks. It is an error if one of them does not answer.
// It blocks at most until ctx is done. So the caller's bounds of the part's clock hold for claims at any of its
// servers.
func (l *Redis) Ask(ctx context.Context, part int) (e ratelimit.Epoch, from, to ratelimit.LedgerTime, err error) {
	x, err := l.known(ctx)
	if err != nil {
		return e, 0, 0, err
	}
	of := x.parts[part]
	if len(of) == 0 {
		l.stale.Store(true)
		return e, 0, 0, ErrMoved
	}
	trips := make([]*trip, len(of))
	for i, s := range of {
		trips[i] = &trip{Redis: l, server: s}
	}
	errs := settleAll(ctx, trips)
	if !slices.Contains(errs, nil) {
		return e, 0, 0, errors.Join(errs...)
	}
	from, to = lastTime, 0
	for i, t := range trips {
		switch {
		case errs[i] == nil:
			from, to = min(from, t.time), max(to, t.time)
		case !errors.Is(errs[i], ErrMoved): // a server without slots of the part
			return e, 0, 0, errs[i]
		}
	}
	return l.epochOf(x, []int{part}), from, to, nil
}

// settleAll makes all trips at the same time. The first one runs in this goroutine: with a single server, as is usual,
// none is started.
func settleAll(ctx context.Context, trips []*trip) []error {
	errs := make([]error, len(trips))
	var wg sync.WaitGroup
	for i, t := range trips[1:] {
		wg.Go(func() { errs[i+1] = t.settle(ctx) })
	}
	errs[0] = trips[0].settle(ctx)
	wg.Wait()
	return errs
}

// trips sorts claims by the server of their accounts. Claims without a server have an error in their grants. Without
// messages to send there is a trip to each server. Without a Cluster, all claims go to the only server.
func (l *Redis) trips(x *layout, claims []Claim, grants []Grant) (trips []*trip) {
	to := map[*server]*trip{}
	add := func(s *server) *trip {
		if to[s] == nil {
			to[s] = &trip{Redis: l, server: s, claims: claims, grants: grants, eval: evalSha}
			trips = append(trips, to[s])
		}
		return to[s]
	}
	for i := range claims {
		s := x.all[0]
		err := check(&claims[i])
		if err == nil && l.cluster != nil {
			s = x.slots[slotOfName(l.nameOf(claims[i].Key, 0))].Load()
			if s == nil {
				err = ErrMoved
			}
		}
		if err != nil {
			grants[i] = Grant{Err: err}
			continue
		}
		t := add(s)
		t.left = append(t.left, i)
	}
	if len(trips) == 0 {
		for _, s := range x.all {
			add(s)
		}
	}
	return trips
}

// trip is the messages of a round trip to one server.
type trip struct {
	*Redis
	server *server
	claims []Claim
	grants []Grant
	left   []int // unsettled ones
	// eval is EVALSHA at first, and EVAL, which sends the text, if the server lacks the script.
	eval evalFunc
	// time is that of the server, read at the beginning of the trip.
	time   ratelimit.LedgerTime
	asking bool // the slots are moving to the server
	// stranger means that the server has no slots, and so no epoch: messages about its first slot, while that moves
	// there, count by the epoch of the slot's server.
	stranger bool
}

// An evalFunc runs a script by its digest or by its text.
type evalFunc func(context.Context, *redis.Script, redis.Scripter, []string, ...any) *redis.Cmd

func evalSha(ctx context.Context, s *redis.Script, c redis.Scripter, keys []string, args ...any) *redis.Cmd {
	return s.EvalSha(ctx, c, keys, args...)
}

func evalText(ctx context.Context, s *redis.Script, c redis.Scripter, keys []string, args ...any) *redis.Cmd {
	return s.Eval(ctx, c, keys, args...)
}

// settle makes one round trip, and another for messages that the server did not settle: it has no scripts, or its epoch
// was written. If the epoch is then unknown, no grant counts. The second try sends the texts of scripts. Draws whose
// transaction fails again have errRepeated.
func (t *trip) settle(ctx context.Context) error {
	all := t.left
	if t.cluster == nil { // plain draws are settled last, and so are those by a script
		slices.SortStableFunc(all, func(i, j int) int { return drawsLast(&t.claims[i], &t.claims[j]) })
	}
	// Only messages in t.left are sent again, so none counts twice: NOSCRIPT, and a transaction that failed, settle
	// nothing.
	err := t.send(ctx)
	if err == nil && len(t.left) > 0 {
		t.eval = evalText
		err = t.send(ctx)
	}
	for _, i := range t.left {
		t.grants[i] = Grant{Err: errRepeated}
	}
	if err != nil {
		for _, i := range all {
			if !errors.Is(t.grants[i].Err, ErrMoved) { // it may have been settled
				t.grants[i] = Grant{Err: err}
			}
		}
	}
	return err
}

// drawsLast orders claims before draws. So the order at the server does not depend on the kind of a draw: plain ones
// are in the transaction, after all scripts.
func drawsLast(a, b *Claim) int {
	switch {
	case a.Draws() == b.Draws():
		return 0
	case b.Draws():
		return -1
	}
	return 1
}

// send makes one round trip: the time, the claims, and the tail. The epoch, which is read last, shows a loss of data
// after any of them. The time is before the draws: they see at least the usage of the previous window until then. The
// pipeline is TIME, an EVALSHA for each claim, MULTI, the draws, GET of the epoch, EXEC, WATCH, CLIENT GETNAME.
func (t *trip) send(ctx context.Context) error {
	pipe := t.server.client.Pipeline()
	at := pipe.Time(ctx)
	answers, drawn := make([]*redis.Cmd, len(t.left)), t.drawn()
	for j, i := range t.left {
		if slices.Contains(drawn, i) {
			continue
		}
		if t.asking {
			pipe.Do(ctx, "asking")
		}
		c := &t.claims[i]
		answers[j] = t.eval(ctx, scriptOf(c), pipe, t.names(c), t.arguments(c)...)
	}
	var a *tail
	if !t.stranger {
		a = t.tail(ctx, pipe, drawn)
	}
	_, failed := pipe.Exec(ctx) // each command has its own error; the error of those without an answer is this one
	// TIME is the first command. Without its reply no other one counts, though the messages may have been settled.
	if err := t.readTime(at); err != nil {
		t.server.failures.Add(1)
		t.doubts.Add(1)
		t.stale.Store(true)
		return err
	}
	t.server.failures.Store(0)
	var again []int
	for j, i := range t.left {
		switch a := answers[j]; {
		case a == nil:
		case redis.HasErrorPrefix(a.Err(), "NOSCRIPT"):
			again = append(again, i)
		// It was not settled. follow sends it to the other server.
		case isMoved(a.Err()):
			t.grants[i] = Grant{Err: fmt.Errorf("%w: %w", ErrMoved, a.Err())}
		default:
			t.grants[i] = readGrant(&t.claims[i], a, failed)
		}
	}
	t.left = again
	if a == nil {
		return nil
	}
	of, epoch, err := a.replies()
	if errors.Is(err, errReplaced) { // draws were not settled
		t.doubts.Add(1)
		t.left = append(t.left, drawn...)
		return t.look(ctx, a, "", nil)
	}
	if err != nil {
		err = errors.Join(err, failed)
	}
	t.readDraws(drawn, of, err)
	return t.look(ctx, a, epoch, err)
}

// readTime reads the time of a trip.
func (t *trip) readTime(at *redis.TimeCmd) error {
	is, err := at.Result()
	if err != nil {
		return fmt.Errorf("redis: the time is unknown: %w", err)
	}
	t.time = t.at()
	if t.time == 0 {
		t.time = ratelimit.LedgerTime(is.UnixMicro())
	}
	if t.time <= 0 || t.time >= lastTime {
		return fmt.Errorf("%w: the time is %v", ErrAnswer, is)
	}
	t.latest.Store(int64(t.time))
	return nil
}

// names are the keys of a claim's script: Redis requires all of them as arguments. Both have the same hash tag, so they
// are in one slot.
func (t *trip) names(c *Claim) []string {
	names := []string{t.nameOf(c.Key, c.account())}
	if looksBack(&c.Limit) {
		names = append(names, t.nameOf(c.Key, c.Window-1))
	}
	return names
}

// drawn are the plain draws of a trip: on one server, for a window that the ledger certainly has. One that looks back
// must have begun: before that, nothing is free.
func (t *trip) drawn() (sent []int) {
	if t.cluster != nil {
		return nil
	}
	latest := instant(t.latest.Load())
	for _, i := range t.left {
		c := &t.claims[i]
		s := spanOf(&c.Limit, c.Window)
		if c.Draws() && s.kept(latest) {
			sent = append(sent, i)
		}
	}
	return sent
}

func (t *trip) draw(ctx context.Context, pipe redis.Pipeliner, c *Claim) {
	// Each draw sets the expiry again, because plain increments do not show whether they made the account.
	s, name := spanOf(&c.Limit, c.Window), t.nameOf(c.Key, c.Window)
	pipe.Do(ctx, "hincrby", name, "sum", int64(c.Want))
	pipe.Do(ctx, "hincrby", name, "h:"+HolderName(c.Holder), int64(c.Want))
	pipe.Do(ctx, "pexpireat", name, roundUp(int64(s.over), 1000))
	if c.Limit.Algorithm == ratelimit.SlidingWindow {
		pipe.Do(ctx, "hget", t.nameOf(c.Key, c.Window-1), "sum")
	}
}

// LoadScripts loads the ledger's scripts into a server, so that no claim must send them. Without it, the first claim
// after a restart of a server costs a second round trip.
func LoadScripts(ctx context.Context, server redis.Scripter) error {
	return errors.Join(claimScript.Load(ctx, server).Err(), bucketScript.Load(ctx, server).Err(),
		epochScript.Load(ctx, server).Err())
}

// HolderName is a holder's name in Redis. It has 16 digits, because the top bit of a name is set: its first nine are
// the node's (nodeDigits).
func HolderName(h ratelimit.Holder) string { return strconv.FormatUint(uint64(h), 16) }

// namesOfANode is the number of low bits of a holder's name that a node counts by, from NewHolder on: after it has
// dropped an account, it returns under another name.
const namesOfANode = 28

// NewHolder returns a node's first holder name, which no other process has, nor had. It has 35 random bits: two of 250
// nodes have the same name with a probability of one in a million.
func NewHolder() ratelimit.Holder {
	return ratelimit.Holder((rand.Uint64() | 1<<63) >> namesOfANode << namesOfANode)
}

// NodeOf is the common part of all names of a holder's node: the node's first name.
func NodeOf(h ratelimit.Holder) ratelimit.Holder { return h >> namesOfANode << namesOfANode }
