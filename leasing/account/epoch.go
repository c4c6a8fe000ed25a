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

// A server that lost its data has accounts that look new. So each server stores an epoch, which names the server's
// run and its replication, and which each round trip reads after its messages, with the replication of the connection's
// server. If the epoch differs from the node's, the grants do not count, and all holders restate their totals. If it
// names another server, as on a promoted replica, a new epoch begins.

//go:embed epoch.lua
var epochLua string

var epochScript = redis.NewScript(epochLua)

// EpochName is the name of an epoch's key, after the prefix.
const EpochName = "sluice:life"

// unknown is the run or the replication of a server that does not report it.
const unknown = "-"

// tail is the commands after the messages of a trip: one reads the epoch and records of overrides, because each
// command costs Redis more than another name. The other reads the replication of this connection's server: it changes
// with each start, and each time that the server was a replica.
type tail struct {
	values *redis.SliceCmd
	info   *redis.StringCmd
}

func (t *trip) ask(ctx context.Context, pipe redis.Pipeliner, records []string) *tail {
	names := append([]string{(*t.server.names.Load())[0]}, records...)
	return &tail{pipe.MGet(ctx, names...), pipe.Info(ctx, "replication")}
}

// value is that of the epoch at 0, then of the records. It is empty if there is none.
func (a *tail) value(i int) string {
	if all := a.values.Val(); i < len(all) {
		text, _ := all[i].(string)
		return text
	}
	return ""
}

// replication is the id of the replication of a master.
func (a *tail) replication() (string, error) {
	text, err := a.info.Result()
	if redis.HasErrorPrefix(err, "NOPERM") {
		return unknown, nil
	}
	replid := unknown
	for line := range strings.Lines(text) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "master_replid:"); ok {
			replid = id
		}
		if strings.HasPrefix(line, "role:slave") {
			return "", errReplica
		}
	}
	return replid, err
}

// look applies the answers to the tail: the messages were settled in the epoch that is known of the server then. It is
// an error if that is unknown: errAway if the server has given its slots away.
func (t *trip) look(ctx context.Context, a *tail, failed error) error {
	replid, err := a.replication()
	values, err2 := a.values.Result()
	switch {
	case isMoved(err2): // the slot of the epoch: the server may have others
		t.stale.Store(true)
		if errors.Is(err, errReplica) { // a master without slots becomes a replica
			return errAway
		}
		err2 = nil
	case err2 == nil && len(values) == 0:
		err2 = ErrAnswer
	}
	if err := errors.Join(err, err2); err != nil {
		t.stale.Store(true)
		return fmt.Errorf("redis: the epoch is unknown: %w", errors.Join(err, failed))
	}
	known, written := t.server.life.Load(), t.server.kept.Load() == t.server.names.Load()
	is, ok := parseLife(a.value(0))
	unchanged := ok && written && known != nil && is.ID == known.ID && is.run == known.run && same(replid, is.replid)
	if unchanged && is.Learning <= t.time.Add(Learn) {
		t.server.life.CompareAndSwap(known, &is)
		return nil
	}
	is, err = t.lookAfter(ctx, t.server, 0)
	if err == nil && !same(replid, is.replid) {
		err = fmt.Errorf("redis: %w", errElsewhere)
	}
	return err
}

var (
	errReplica   = errors.New("READONLY the server is a replica")
	errElsewhere = errors.New("the client's connections lead to different servers")
)

// same tells whether two servers may be the same.
func same(a, b string) bool { return a == b || a == unknown || b == unknown }

// life is an epoch in the form of its key.
type life struct {
	ratelimit.Epoch
	run, replid string
}

func parseLife(s string) (life, bool) {
	e, server, ok := parseEpoch(s)
	run, replid, two := strings.Cut(server, " ")
	return life{e, run, replid}, ok && two && !strings.Contains(replid, " ")
}

func (is *life) String() string {
	return fmt.Sprintf("%x %d %d %s %s", is.ID, is.Began, is.Learning, is.run, is.replid)
}

// Flags of epoch.lua.
const (
	restating = 1
	beginning = 2
	joining   = 4
)

// lookAfter runs the script, which reads the server's run, and begins an epoch if there is none or it is another
// server's.
func (l *Redis) lookAfter(ctx context.Context, s *server, flags int) (life, error) {
	known, text := s.life.Load(), ""
	switch {
	case known != nil: // a missing epoch was lost
		text = known.String()
	case !s.first:
		flags |= joining
	case l.alone != nil && l.alone():
		flags |= beginning
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	current := s.names.Load()
	names, kept := s.allNames(*current)
	arguments := []any{
		strconv.FormatUint(binary.LittleEndian.Uint64(id[:])|1, 16), Learn.Microseconds(), int64(l.at()), flags, text,
		kept,
	}
	keys := names
	if l.cluster != nil { // a script has no keys in several slots, but reads them
		for _, name := range names {
			arguments = append(arguments, name)
		}
		keys = nil
	}
	answer, err := epochScript.Run(ctx, s.client, keys, arguments...).Text()
	if err != nil {
		l.stale.Store(true)
		if isMoved(err) {
			err = errAway
		}
		return life{}, fmt.Errorf("redis: %w", err)
	}
	is, ok := parseLife(answer)
	if !ok {
		return life{}, fmt.Errorf("%w: %.60q", ErrAnswer, answer)
	}
	s.kept.Store(current)
	l.read(s, &is)
	return is, nil
}

// read notes the epoch of a server. A server that is new to the Cluster may have begun its epoch after a loss.
func (l *Redis) read(s *server, is *life) {
	was := s.life.Swap(is)
	if was != nil && was.ID != is.ID || was == nil && !s.first && is.Learning > is.Began {
		l.lost(s)
	}
}

// epochOf is the epoch of parts: it changes with each loss that this process notices at one of their servers, and not
// when slots move. It learns while one of their servers does.
func (l *Redis) epochOf(x *layout, parts []int) (e ratelimit.Epoch) {
	e.ID = 1
	for _, part := range parts {
		e.ID += l.losses[part].Load()
		for _, s := range x.parts[part] {
			if is := s.life.Load(); is != nil {
				e.Began, e.Learning = max(e.Began, is.Began), max(e.Learning, is.Learning)
			}
		}
	}
	e.ID *= 0x9e3779b97f4a7c15 // odd, so that no bit of an id is lost
	return e
}

// Verify reads the epoch of each server. It costs a script for each, and blocks at most until ctx is done.
func (l *Redis) Verify(ctx context.Context) (ratelimit.Epoch, error) { return l.each(ctx, 0) }

// Prolong prolongs the learning after a loss, if it still lasts. Nodes with unstated totals call it, because until
// they are stated, their tokens look free. It blocks at most until ctx is done.
func (l *Redis) Prolong(ctx context.Context) (ratelimit.Epoch, error) { return l.each(ctx, restating) }

// verifiers is the number of servers that each reads at the same time: one that hangs must not delay the others.
const verifiers = 16

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
	e = ratelimit.Epoch{ID: id, Began: instant(began), Learning: instant(ends)}
	return e, fields[3], id != 0 && errors.Join(err1, err2, err3) == nil
}
