package account

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A server that lost its data has accounts that look new. So each server stores an epoch, which names the server's run
// and its replication, and which each round trip reads after its messages. If the epoch differs from the node's, the
// grants do not count, and all holders restate their totals. If it names another server, as on a promoted replica, a
// new epoch begins.
//
// The data of a server can also be replaced while it runs: by a master of older data, whose replica it is for a moment.
// So each connection watches the epoch, and the transaction of a trip fails if its data was replaced since the last
// one.

//go:embed epoch.lua
var epochLua string

var epochScript = redis.NewScript(epochLua)

// EpochName is the name of an epoch's key, after the prefix.
const EpochName = "sluice:life"

// unknown is the run or the replication of a server that does not report it.
const unknown = "-"

// runPrefix begins the name of a connection. The run of its server follows: it stays the same during the connection.
const runPrefix = "sluice-"

// introduced makes new connections watch the epoch, and take the run of their server as their name, after the client's
// own OnConnect. If a server differs from its last known epoch, the next trips look at all servers: its data may have
// been replaced while no connection watched it. The name comes last. So a connection with a name has a watch that began
// before its server's run was read.
func (l *Redis) introduced(next func(context.Context, *redis.Conn) error) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, cn *redis.Conn) error {
		if next != nil {
			if err := next(ctx, cn); err != nil {
				return err
			}
		}
		// Without a name, each trip looks at the server.
		if err := l.watches(ctx, cn); err != nil {
			return broken(err)
		}
		pipe := cn.Pipeline()
		server, replication := pipe.Info(ctx, "server"), pipe.Info(ctx, "replication")
		if _, err := pipe.Exec(ctx); broken(err) != nil { // without the permission, the server is unknown
			return err
		}
		run, replid := fieldOf(server, "run_id"), fieldOf(replication, "master_replid")
		// The next trip then runs the script before its answers count.
		if !l.knows(run, replid) {
			l.doubts.Add(1)
		}
		return broken(cn.ClientSetName(ctx, runPrefix+run).Err())
	}
}

// broken is an error after which a connection must not be used, because an answer may come late. A server's refusal is
// none.
func broken(err error) error {
	if _, refused := errors.AsType[redis.Error](err); refused || errors.Is(err, errAway) {
		return nil
	}
	return err
}

// fieldOf is a field of the INFO of a server. A line is "run_id:4f1c...". An ACL may forbid INFO: then each field is
// unknown.
func fieldOf(info *redis.StringCmd, name string) string {
	for line := range strings.Lines(info.Val()) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return unknown
}

// watches makes a connection watch a name of its server's epoch: in a Cluster that of its highest slot, which the
// server of a layout has too. It is errAway if the server has no slots. A watch of a missing epoch sees nothing. A key
// that changes after WATCH fails the next EXEC of the connection. A full synchronization from another master, and
// FLUSHALL, count as such changes.
func (l *Redis) watches(ctx context.Context, cn *redis.Conn) error {
	name := l.prefix + EpochName
	if l.cluster != nil {
		id, err := cn.Do(ctx, "cluster", "myid").Text()
		if err != nil {
			return err
		}
		slots, err := cn.ClusterSlots(ctx).Result() //nolint:staticcheck // CLUSTER SHARDS is not in Redis 6.2
		if err != nil {
			return err
		}
		highest := -1
		for _, of := range slots {
			if len(of.Nodes) > 0 && of.Nodes[0].ID == id {
				highest = max(highest, of.End)
			}
		}
		if highest < 0 {
			return errAway
		}
		name = l.epochKey(l.tags[min(highest, len(l.tags)-1)])
	}
	if err := cn.Do(ctx, "watch", name).Err(); err != nil {
		return err
	}
	n, err := cn.Exists(ctx, name).Result()
	// A replacement of the data does not touch a key that is missing before and afterwards, so the next trip looks.
	if n == 0 {
		l.doubts.Add(1)
	}
	return err
}

// knows reports whether a server is as it was when this process read its epoch. A server that this process has not read
// yet is in no doubt: its first trip looks in any case.
func (l *Redis) knows(run, replid string) bool {
	x := l.current.Load()
	if x == nil {
		return true // the first trips look at all servers
	}
	unread := false
	for _, s := range x.all {
		switch is := s.life.Load(); {
		case is == nil:
			unread = true
		case is.run == run:
			return same(replid, is.replid)
		}
	}
	return unread
}

// tail is the last commands of a trip. A transaction has the draws, and reads the epoch. The connection then watches
// the epoch until the next trip.
type tail struct {
	queued, exec *redis.Cmd
	name         *redis.StringCmd // of the connection
}

// tail sends draws, and the rest of the tail. EXEC ends the watch, so WATCH follows at once.
func (t *trip) tail(ctx context.Context, pipe redis.Pipeliner, drawn []int) *tail {
	epoch := (*t.server.names.Load())[0]
	pipe.Do(ctx, "multi")
	for _, i := range drawn {
		t.draw(ctx, pipe, &t.claims[i])
	}
	a := &tail{queued: pipe.Do(ctx, "get", epoch), exec: pipe.Do(ctx, "exec")}
	pipe.Do(ctx, "watch", epoch)
	a.name = pipe.ClientGetName(ctx)
	return a
}

// replies are those of the transaction: of the draws, and the epoch; "": there is none.
func (a *tail) replies() (of []any, epoch string, err error) {
	all, ok := a.exec.Val().([]any)
	switch err := a.exec.Err(); {
	case errors.Is(err, redis.Nil):
		return nil, "", errReplaced
	case err != nil:
		return nil, "", errors.Join(err, a.queued.Err())
	case !ok || len(all) == 0:
		return nil, "", ErrAnswer
	}
	of = all[:len(all)-1]
	switch last := all[len(all)-1].(type) {
	case nil:
		return of, "", nil
	case string:
		return of, last, nil
	case error:
		return nil, "", last
	default:
		return nil, "", ErrAnswer
	}
}

// run is the run of the connection's server, if the connection watches its epoch. Without a name, the server has
// refused a command of introduced, by an ACL or without slots, and each trip looks.
func (a *tail) run() (run string, watches bool) {
	run, watches = strings.CutPrefix(a.name.Val(), runPrefix)
	if !watches {
		return unknown, false
	}
	return run, true
}

// look applies the answers to the tail: the messages were settled in the epoch that is known of the server then. It is
// an error if that is unknown: errAway if the server has given its slots away. The usual case costs no command of its
// own. It needs all of these: the epoch is the known one, the script has written it under all names, and the connection
// leads to its server. Also, no doubt came since the last look.
func (t *trip) look(ctx context.Context, a *tail, epoch string, err error) error {
	if isMoved(a.queued.Err()) { // the slot of the epoch: the server may have others
		t.stale.Store(true)
		err = nil
	}
	if err != nil { // a transaction that was discarded has ended the watch, whatever it saw
		t.doubts.Add(1)
		t.stale.Store(true)
		return fmt.Errorf("redis: the epoch is unknown: %w", err)
	}
	known, kept := t.server.life.Load(), t.server.kept.Load()
	written := kept != nil && kept.of == t.server.names.Load()
	is, ok := parseLife(epoch)
	run, watches := a.run()
	certain := written && watches && t.server.looked.Load() == t.doubts.Load()
	if ok && certain && known != nil && is.server() == known.server() && is.ID == known.ID && same(run, is.run) {
		// The end of the youth may have changed. If another trip has read a newer life meanwhile, that stays.
		t.server.life.CompareAndSwap(known, &is)
		return nil
	}
	is, err = t.lookAfter(ctx, t.server, 0)
	if err == nil && !same(run, is.run) {
		err = fmt.Errorf("redis: %w", errElsewhere)
	}
	return err
}

var (
	errElsewhere = errors.New("the client's connections lead to different servers")
	errReplaced  = errors.New("the data of the server, or its epoch, was replaced")
	errRepeated  = errors.New("redis: the scripts, or the epoch, of the server change repeatedly")
)

// same reports whether two servers may be the same.
func same(a, b string) bool { return a == b || a == unknown || b == unknown }

// life is an epoch in the form of its key. For example "9f3c1a 1764500000000000 0 4f1c... 8b0e...": id, began, ends,
// run, replid.
type life struct {
	ratelimit.Epoch
	run, replid string
}

func parseLife(s string) (life, bool) {
	e, server, ok := parseEpoch(s)
	run, replid, two := strings.Cut(server, " ")
	return life{e, run, replid}, ok && two && !strings.Contains(replid, " ")
}

// server is the server of a life.
func (is *life) server() string { return is.run + " " + is.replid }

func (is *life) String() string {
	return fmt.Sprintf("%x %d %d %s %s", is.ID, is.Began, is.Ends, is.run, is.replid)
}

// Flags of epoch.lua.
const (
	unstated = 1
	joining  = 2
	instead  = 4
)

// lookAfter runs the script, which reads the server's run, and begins an epoch if there is none or it is another
// server's. The doubts are read before the script runs. So a doubt that comes meanwhile causes another look.
func (l *Redis) lookAfter(ctx context.Context, s *server, flags int) (life, error) {
	known, text, doubts := s.life.Load(), "", l.doubts.Load()
	switch {
	case known != nil:
		text = known.String()
	case !s.first:
		flags |= joining
	}
	// instead is reset only after an answer, so that the look after a failed one repeats it.
	lost := s.instead.Load()
	if lost {
		flags |= instead
	}
	var id [8]byte
	// Several nodes may begin an epoch at once: the script runs alone, so the first one's id counts.
	_, _ = rand.Read(id[:]) // never fails
	current := s.names.Load()
	names, kept := s.allNames(*current)
	arguments := []any{
		strconv.FormatUint(binary.LittleEndian.Uint64(id[:])|1, 16), ratelimit.YoungFor.Microseconds(), int64(l.at()),
		flags, text, kept,
	}
	keys := names
	if l.cluster != nil { // a script has no keys in several slots, but reads them
		for _, name := range names {
			arguments = append(arguments, name)
		}
		keys = nil
	}
	answer, err := epochScript.Run(ctx, s.client, keys, arguments...).StringSlice()
	if err != nil {
		l.stale.Store(true)
		// A master without slots becomes a replica.
		if isMoved(err) || l.cluster != nil && redis.HasErrorPrefix(err, "READONLY") {
			err = errAway
		}
		return life{}, fmt.Errorf("redis: %w", err)
	}
	if len(answer) == 0 {
		return life{}, fmt.Errorf("%w: it is empty", ErrAnswer)
	}
	is, ok := parseLife(answer[0])
	if !ok {
		return life{}, fmt.Errorf("%w: %.60q", ErrAnswer, answer[0])
	}
	if lost {
		s.instead.Store(false)
	}
	s.kept.Store(&keptNames{of: current, all: answer[1:]})
	s.looked.Store(doubts)
	l.read(s, &is)
	return is, nil
}

// read notes the epoch of a server. A server that is new to the Cluster may have begun its epoch after a loss. A first
// life of a server of the start is no loss: this process has no totals yet.
func (l *Redis) read(s *server, is *life) {
	was := s.life.Swap(is)
	if was != nil && was.ID != is.ID || was == nil && !s.first && is.Ends > 0 {
		l.lost(s)
	}
}

// epochOf is the epoch of parts: it changes with each loss that this process notices at one of their servers, and not
// when slots move. It is young while that of one of their servers is. It is a number of this process: a sum of losses,
// which two processes need not have in common. Nodes never compare epochs with each other.
func (l *Redis) epochOf(x *layout, parts []int) (e ratelimit.Epoch) {
	e.ID = 1
	for _, part := range parts {
		e.ID += l.losses[part].Load()
		for _, s := range x.parts[part] {
			if is := s.life.Load(); is != nil {
				e.Began, e.Ends = max(e.Began, is.Began), max(e.Ends, is.Ends)
			}
		}
	}
	// 2^64 divided by the golden ratio spreads small sums over all bits, so that combined ids of parts do not cancel
	// out.
	e.ID *= 0x9e3779b97f4a7c15 // odd, so that no bit of an id is lost
	return e
}

// Verify reads the epoch of each server. It costs a script for each, and blocks at most until ctx is done.
func (l *Redis) Verify(ctx context.Context) (ratelimit.Epoch, error) { return l.each(ctx, 0) }

// Prolong prolongs a young epoch. Nodes with unstated totals call it, because until they are stated, their tokens look
// free. It blocks at most until ctx is done.
func (l *Redis) Prolong(ctx context.Context) (ratelimit.Epoch, error) { return l.each(ctx, unstated) }

// verifiers is the number of servers that each reads at the same time: one that hangs must not delay the others.
const verifiers = 16

// each looks at all servers at the same time. It waits for all of them, also after an error.
func (l *Redis) each(ctx context.Context, flags int) (ratelimit.Epoch, error) {
	x, err := l.known(ctx)
	if err != nil {
		return ratelimit.Epoch{}, err
	}
	errs := make([]error, len(x.all))
	var looks errgroup.Group
	looks.SetLimit(verifiers)
	for i, s := range x.all {
		looks.Go(func() error {
			_, errs[i] = l.lookAfter(ctx, s, flags)
			return errs[i]
		})
	}
	_ = looks.Wait() // all errors count
	return l.epochOf(x, x.allParts()), errors.Join(errs...)
}

var _ Ledger = (*Redis)(nil)

func parseEpoch(s string) (e ratelimit.Epoch, life string, ok bool) {
	fields := strings.SplitN(s, " ", 4)
	if len(fields) != 4 {
		return e, "", false
	}
	id, err1 := strconv.ParseUint(fields[0], 16, 64)
	began, err2 := strconv.ParseInt(fields[1], 10, 64)
	ends, err3 := strconv.ParseInt(fields[2], 10, 64)
	e = ratelimit.Epoch{ID: id, Began: instant(began), Ends: instant(ends)}
	return e, fields[3], id != 0 && errors.Join(err1, err2, err3) == nil
}
