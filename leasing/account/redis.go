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

// Redis is a ledger in Redis (6.2 and later, Valkey): single, Sentinel or Cluster. An account is a hash, and expires by
// itself. It is safe for concurrent use. Messages of one Settle share a round trip to each server.
//
// Draws are plain increments in one MULTI, so that a connection that is cut leaves nothing half done. Where there is
// a Cluster, or a window may not have begun, a draw is a script.
type Redis struct {
	prefix  string
	cluster *redis.ClusterClient  // nil: one server
	people  redis.UniversalClient // for what people ask
	// alone tells whether no other node is alive: then an empty ledger has nothing to learn.
	alone func() bool
	// at is the time by which the ledger goes; 0 but in tests: Redis' own clock.
	at    func() ratelimit.LedgerTime
	heard atomic.Int64 // the latest time by its clock

	servers
}

// ErrClient says that a client is none that a ledger can be sure of.
var ErrClient = errors.New("the store needs a redis.Client or redis.ClusterClient without retries")

// ErrAnswer says that what answered is no ledger of this protocol.
var ErrAnswer = errors.New("the store's reply is invalid")

// NewRedis makes a ledger whose accounts' names start with prefix. It must be made before the client is used, for it
// sets what a new connection does first (OnConnect): it asks which run of a server is at its end, and takes that for
// its name. The client stays the caller's, must not retry by itself, and should heed contexts (ContextTimeoutEnabled).
// A redis.Ring, or a client in another's clothes, is refused with [ErrClient]: what it does with a transaction is not
// known. alone tells whether no other node is alive, when a ledger is empty that this process has not known before;
// nil says that others may be.
func NewRedis(client redis.UniversalClient, prefix string, alone func() bool) (*Redis, error) {
	l := &Redis{prefix: prefix, alone: alone, at: func() ratelimit.LedgerTime { return 0 }}
	switch c := client.(type) {
	case *redis.Client:
		if c.Options().MaxRetries > 0 {
			return nil, fmt.Errorf("%w: it retries %d times", ErrClient, c.Options().MaxRetries)
		}
		c.Options().OnConnect = named(c.Options().OnConnect)
		l.single(c)
	case *redis.ClusterClient:
		if c.Options().MaxRetries > 0 {
			return nil, fmt.Errorf("%w: it retries %d times", ErrClient, c.Options().MaxRetries)
		}
		c.Options().OnConnect = named(c.Options().OnConnect)
		l.cluster = c
	default:
		return nil, fmt.Errorf("%w, not a %T", ErrClient, client)
	}
	return l, nil
}

// GoBy has the ledger go by another clock than Redis' own: a simulation's. Accounts still expire by Redis' own.
func (l *Redis) GoBy(clock func() ratelimit.LedgerTime) { l.at = clock }

// NameOf is an account's name at a store. In a Cluster the accounts of a key are in one slot.
func NameOf(prefix, key string, w ratelimit.Window) string {
	return prefix + "{" + key + "}" + strconv.FormatInt(int64(w), 10)
}

func (l *Redis) nameOf(key string, w ratelimit.Window) string { return NameOf(l.prefix, key, w) }

// ParseName is NameOf, backwards.
func ParseName(prefix, s string) (key string, w ratelimit.Window, ok bool) {
	s, ours := strings.CutPrefix(s, prefix+"{")
	end := strings.LastIndexByte(s, '}')
	if !ours || end < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(s[end+1:], 10, 64)
	return s[:end], ratelimit.Window(n), err == nil
}

// Settle implements [Ledger]. With no claims it asks each server for its epoch. The epoch is that of all servers that
// have accounts of the claims' parts; where these are several, no time is told, for each has a clock of its own. An
// error of single messages is in their grants; the epoch is not known only if no server answered. It allocates.
func (l *Redis) Settle(
	ctx context.Context, claims []Claim, grants []Grant,
) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	trips, of, err := l.trips(ctx, claims, grants)
	if err != nil {
		for i := range grants {
			grants[i] = Grant{Err: err}
		}
		return ratelimit.Epoch{}, 0, err
	}
	errs := settleAll(ctx, trips)
	if !slices.Contains(errs, nil) {
		return ratelimit.Epoch{}, 0, errors.Join(errs...)
	}
	at := ratelimit.LedgerTime(0)
	if len(of) == 1 {
		at = trips[0].time
	}
	return epochOf(of, trips), at, nil
}

// Ask asks all servers that have accounts of a part for its epoch, and between which times their clocks are. It is an
// error if one of them does not answer. It blocks until ctx is done at most.
func (l *Redis) Ask(ctx context.Context, part int) (e ratelimit.Epoch, from, to ratelimit.LedgerTime, err error) {
	_, parts, err := l.known(ctx)
	if err != nil {
		return e, 0, 0, err
	}
	of := parts[part]
	if len(of) == 0 {
		l.stale.Store(true)
		return e, 0, 0, errMoved
	}
	trips := make([]*trip, len(of))
	for i, s := range of {
		trips[i] = &trip{Redis: l, server: s}
	}
	if err := errors.Join(settleAll(ctx, trips)...); err != nil {
		return e, 0, 0, err
	}
	from, to = trips[0].time, trips[0].time
	for _, t := range trips {
		from, to = min(from, t.time), max(to, t.time)
	}
	return epochOf(of, trips), from, to, nil
}

// settleAll makes all trips at the same time.
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

// trips sorts claims by the server that has their accounts. Those without one have an error in their grants. Without
// claims there is a trip to each server. There is at least one, if there is no error. of is the servers of all parts
// that the claims are of.
func (l *Redis) trips(
	ctx context.Context, claims []Claim, grants []Grant,
) (trips []*trip, of []*server, err error) {
	all, parts, err := l.known(ctx)
	if err != nil {
		return nil, nil, err
	}
	add := func(s *server) *trip {
		for _, t := range trips {
			if t.server == s {
				return t
			}
		}
		trips = append(trips, &trip{Redis: l, server: s, claims: claims, grants: grants, eval: evalSha})
		return trips[len(trips)-1]
	}
	if len(claims) == 0 {
		of = all
		for _, s := range all {
			add(s)
		}
	}
	for i := range claims {
		part := parts[l.Partition(claims[i].Key)]
		for _, s := range part {
			if !slices.Contains(of, s) {
				of = append(of, s)
			}
		}
		s := all[0]
		err := check(&claims[i])
		if err == nil && l.cluster != nil {
			s, err = l.serverOf(ctx, part, l.nameOf(claims[i].Key, 0))
		}
		if err != nil {
			grants[i] = Grant{Err: err}
			continue
		}
		t := add(s)
		t.left = append(t.left, i)
	}
	if len(of) == 0 { // of the slots of its part
		return nil, nil, errMoved
	}
	if len(trips) == 0 { // nothing of it can be sent
		add(of[0])
	}
	return trips, of, nil
}

// trip is messages on their way to one server.
type trip struct {
	*Redis
	server *server
	claims []Claim
	grants []Grant
	left   []int // those that are not settled
	eval   evalFunc
	epoch  ratelimit.Epoch // right after; the zero one is not known
	time   ratelimit.LedgerTime
}

type evalFunc func(context.Context, *redis.Script, redis.Scripter, []string, ...any) *redis.Cmd

func evalSha(ctx context.Context, s *redis.Script, c redis.Scripter, keys []string, args ...any) *redis.Cmd {
	return s.EvalSha(ctx, c, keys, args...)
}

func evalText(ctx context.Context, s *redis.Script, c redis.Scripter, keys []string, args ...any) *redis.Cmd {
	return s.Eval(ctx, c, keys, args...)
}

// settle makes one round trip, and another for what met a server that had forgotten the scripts: none of that was
// settled. If the epoch is not known afterwards, no grant counts.
func (t *trip) settle(ctx context.Context) error {
	all := t.left
	err := t.send(ctx)
	if err == nil && len(t.left) > 0 {
		t.eval = evalText
		err = t.send(ctx)
	}
	for _, i := range t.left {
		t.grants[i] = Grant{Err: fmt.Errorf("%w: the script disappears repeatedly", ErrAnswer)}
	}
	if err != nil {
		for _, i := range all {
			t.grants[i] = Grant{Err: err}
		}
	}
	return err
}

// send makes one round trip: the draws, the claims, and behind them the epoch, in which none of them can have been
// settled before the data was lost without that being seen.
func (t *trip) send(ctx context.Context) error {
	pipe := t.server.client.Pipeline()
	d, answers := t.draws(ctx, pipe), make([]*redis.Cmd, len(t.left))
	for j, i := range t.left {
		if c := &t.claims[i]; !d.has(i) {
			answers[j] = t.eval(ctx, scriptOf(c), pipe, t.names(c), t.arguments(c)...)
		}
	}
	tail := t.server.ask(ctx, pipe)
	_, failed := pipe.Exec(ctx) // each command has its own error; those without an answer have this one
	d.read(t, failed)
	var again []int
	for j, i := range t.left {
		if a := answers[j]; a == nil {
			continue
		} else if redis.HasErrorPrefix(a.Err(), "NOSCRIPT") {
			again = append(again, i)
		} else {
			t.grants[i] = readGrant(&t.claims[i], a, failed)
		}
	}
	t.doubt()
	t.left = again
	return t.look(ctx, tail, failed)
}

// doubt has the server looked at if an answer says that it may not be the one that it was.
func (t *trip) doubt() {
	for _, i := range t.left {
		if isDoubtful(t.grants[i].Err) {
			t.server.doubted.Store(true)
			t.stale.Store(t.cluster != nil)
		}
	}
}

func isDoubtful(err error) bool {
	for _, prefix := range []string{"READONLY", "LOADING", "MOVED", "ASK", "CLUSTERDOWN"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

func (t *trip) names(c *Claim) []string {
	names := []string{t.nameOf(c.Key, c.Window)}
	if looksBack(&c.Limit) {
		names = append(names, t.nameOf(c.Key, c.Window-1))
	}
	if c.Limit.Overridable() {
		names = append(names, overrideOf(t.prefix, c.Key))
	}
	if c.Audit != "" {
		names = append(names, RecordName(t.prefix, c.Key))
	}
	return names
}

// draws are those of a trip that are plain increments, in one transaction.
type draws struct {
	sent []int // claims, in order
	pre  int   // replies of the transaction before those of its first draw
	// overridden is how many have overrides: their records are the last reply.
	overridden int
	exec       *redis.Cmd
}

// draws sends what may be a plain draw: on one server, of a window that certainly has begun.
func (t *trip) draws(ctx context.Context, pipe redis.Pipeliner) *draws {
	d := &draws{}
	if t.cluster != nil {
		return d
	}
	heard, records := instant(t.heard.Load()), []any{"mget"}
	for _, i := range t.left {
		c := &t.claims[i]
		s := spanOf(&c.Limit, c.Window)
		if c.Kind != Draws || heard < s.begins || !s.kept(heard) {
			continue
		}
		if d.sent == nil {
			pipe.Do(ctx, "multi")
			// The time before the draws: of the window before they see at least what was spent by then.
			pipe.Do(ctx, "time")
			d.pre = 1
		}
		d.sent = append(d.sent, i)
		if t.draw(ctx, pipe, c, &s); c.Limit.Overridable() {
			records = append(records, overrideOf(t.prefix, c.Key))
		}
	}
	if d.overridden = len(records) - 1; d.overridden > 0 {
		pipe.Do(ctx, records...)
	}
	if d.sent != nil {
		d.exec = pipe.Do(ctx, "exec")
	}
	return d
}

func (t *trip) draw(ctx context.Context, pipe redis.Pipeliner, c *Claim, s *span) {
	name := t.nameOf(c.Key, c.Window)
	pipe.Do(ctx, "hincrby", name, "sum", int64(c.Want))
	pipe.Do(ctx, "hincrby", name, "h:"+hexOf(c.Holder), int64(c.Want))
	pipe.Do(ctx, "pexpireat", name, roundUp(int64(s.over), 1000))
	if c.Limit.Algorithm == ratelimit.SlidingWindow {
		pipe.Do(ctx, "hget", t.nameOf(c.Key, c.Window-1), "sum")
	}
}

func (d *draws) has(i int) bool {
	for _, j := range d.sent {
		if i == j {
			return true
		}
	}
	return false
}

// LoadScripts has a server know the ledger's scripts, so that no claim must bring them.
func LoadScripts(ctx context.Context, server redis.Scripter) error {
	return errors.Join(claimScript.Load(ctx, server).Err(), bucketScript.Load(ctx, server).Err(),
		epochScript.Load(ctx, server).Err())
}

// HolderName is what a holder is called in Redis.
func HolderName(h ratelimit.Holder) string { return hexOf(h) }

func hexOf(h ratelimit.Holder) string { return strconv.FormatUint(uint64(h), 16) }

// namesOfANode is how many bits of a holder's name a node may count by, from NewHolder on: when it has forgotten an
// account, it comes back under another name.
const namesOfANode = 28

// NewHolder returns a node's first holder, which no other process has, nor had.
func NewHolder() ratelimit.Holder {
	return ratelimit.Holder((rand.Uint64() | 1<<63) >> namesOfANode << namesOfANode)
}
