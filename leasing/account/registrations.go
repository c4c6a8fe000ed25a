package account

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Registrations tell which nodes have ended without giving back what they had in hand. They are safe for concurrent
// use, and block at most until ctx is done.
//
// Guarantee: a registration that is over was not renewed for [ratelimit.RegisteredFor], by the store's clock, unless
// the store lost the last renewals. One that the store lost as a whole is not over.
type Registrations interface {
	// Register makes or renews the registration of a node.
	Register(ctx context.Context, node ratelimit.Holder) error
	// Over returns those of the nodes whose registrations are over.
	Over(ctx context.Context, nodes []ratelimit.Holder) ([]ratelimit.Holder, error)
}

const (
	registration = "sluice:alive" // the name of registrations, after the prefix
	// overFor is the time for which a registration that is over is kept, so that what its node had in hand can be
	// reclaimed.
	overFor = 32 * 24 * time.Hour
)

// Register implements [Registrations]: a sorted set of nodes, by the end of their registrations in microseconds. In a
// Cluster the set is at one server, by whose clock they end, whatever servers have the accounts: no step needs both at
// once.
func (l *Redis) Register(ctx context.Context, node ratelimit.Holder) error {
	key := l.prefix + registration
	is, err := TimeIn(TimeOf(ctx, l.universal(), key))
	if err != nil {
		return err
	}
	now := cmp.Or(l.at(), is)
	pipe := l.universal().Pipeline()
	ends := float64(now.Add(ratelimit.RegisteredFor))
	pipe.ZAddGT(ctx, key, redis.Z{Score: ends, Member: HolderName(node)}) // an earlier message may be late
	pipe.ZRemRangeByScore(ctx, key, "-inf", strconv.FormatInt(int64(now.Add(-overFor)), 10))
	// The set of a fleet that has ended is deleted in the end.
	pipe.PExpire(ctx, key, overFor)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

// Over implements [Registrations]. A node without a registration is not over: its score is read as 0.
func (l *Redis) Over(ctx context.Context, nodes []ratelimit.Holder) (over []ratelimit.Holder, err error) {
	names := make([]string, len(nodes))
	for i, node := range nodes {
		names[i] = HolderName(node)
	}
	pipe, key := l.universal().Pipeline(), l.prefix+registration
	at, ends := TimeOf(ctx, pipe, key), pipe.ZMScore(ctx, key, names...)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	is, err := TimeIn(at)
	if err != nil {
		return nil, err
	}
	if len(ends.Val()) != len(nodes) {
		return nil, fmt.Errorf("%w: %d of %d registrations", ErrAnswer, len(ends.Val()), len(nodes))
	}
	now := float64(cmp.Or(l.at(), is))
	for i, end := range ends.Val() {
		if end > 0 && end <= now {
			over = append(over, nodes[i])
		}
	}
	return over, nil
}

// TimeOf asks the server of a key for its time. TIME alone has no key: any server of a Cluster would answer it, and
// their clocks differ.
func TimeOf(ctx context.Context, client redis.Scripter, key string) *redis.Cmd {
	return client.Eval(ctx, "return redis.call('TIME')", []string{key})
}

// TimeIn reads the answer to [TimeOf]: seconds, and microseconds of the next.
func TimeIn(answer *redis.Cmd) (ratelimit.LedgerTime, error) {
	texts, err := answer.StringSlice()
	if err != nil {
		return 0, fmt.Errorf("redis: %w", err)
	}
	if len(texts) != 2 {
		return 0, fmt.Errorf("%w: %q as a time", ErrAnswer, texts)
	}
	seconds, errSeconds := strconv.ParseInt(texts[0], 10, 64)
	micros, errMicros := strconv.ParseInt(texts[1], 10, 64)
	if err := errors.Join(errSeconds, errMicros); err != nil {
		return 0, fmt.Errorf("%w: %q as a time: %w", ErrAnswer, texts, err)
	}
	return ratelimit.LedgerTime(time.Unix(seconds, 0).UnixMicro() + micros), nil
}

func (l *CAS) registrationOf(node ratelimit.Holder) StoreKey {
	return StoreKey{Name: l.prefix + registration + ":" + HolderName(node)}
}

// Register implements [Registrations]: a record for each node.
func (l *CAS) Register(ctx context.Context, node ratelimit.Holder) error {
	_, err := l.edit(ctx, []StoreKey{l.registrationOf(node)}, func(now instant, _ int, _ *Record) *Change {
		// The node writes its own record alone, so the version is never in the way of another's change.
		ends := now.Add(ratelimit.RegisteredFor)
		return &Change{Data: strconv.AppendInt(nil, int64(ends), 10), Until: ends.Add(overFor)}
	})
	return err
}

// Over implements [Registrations]. A missing record has no number, and is not over.
func (l *CAS) Over(ctx context.Context, nodes []ratelimit.Holder) (over []ratelimit.Holder, err error) {
	keys := make([]StoreKey, len(nodes))
	for i, node := range nodes {
		keys[i] = l.registrationOf(node)
	}
	s, err := l.read(ctx, keys)
	if err != nil {
		return nil, err
	}
	for i, r := range s.Records {
		end, err := strconv.ParseInt(string(r.Data), 10, 64)
		if err == nil && instant(end) <= s.Now {
			over = append(over, nodes[i])
		}
	}
	return over, nil
}

// Closes are claims that take back what ended nodes have in hand of an account: their totals become what they have told
// of their usage. If a holder claims meanwhile, its claim counts, and this one is overtaken. holders were read before
// over.
func Closes(c Claim, holders []ratelimit.HolderLook, over []ratelimit.Holder) (closes []Claim) {
	ended := map[ratelimit.Holder]bool{}
	for _, node := range over {
		ended[node] = true
	}
	for _, h := range holders {
		if h.Holder.Lapses() && h.Outstanding > 0 && ended[NodeOf(h.Holder)] {
			c.Holder = h.Holder
			c.Seq = h.Seq + 1
			c.Taken = h.Spent
			c.Spent = h.Spent
			closes = append(closes, c)
		}
	}
	return closes
}

// Lapsing are the other nodes with tokens in hand of an account that lapse when they end. They are first names
// (NodeOf), under which nodes register.
func Lapsing(holders []ratelimit.HolderLook, own ratelimit.Holder) (nodes []ratelimit.Holder) {
	for _, h := range holders {
		node := NodeOf(h.Holder)
		if h.Holder.Lapses() && h.Outstanding > 0 && node != own && !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
