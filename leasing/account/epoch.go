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
// run and its replication, and which each round trip reads after its messages. If it differs from the node's, the
// grants do not count, and all holders restate their totals. If it names another server than that of the connection,
// as on a promoted replica, a new epoch begins.

//go:embed epoch.lua
var epochLua string

var epochScript = redis.NewScript(epochLua)

// EpochName is the name of an epoch's key, after the prefix.
const EpochName = "sluice:life"

// A connection is named after the run of its server, which stays the same during the connection.
const connPrefix = "sluice-"

// unknown is the run of a server that does not report it, in an epoch and in a connection's name.
const unknown = "-"

// named makes a new connection take the server's run as its name, after its existing OnConnect.
func named(next func(context.Context, *redis.Conn) error) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, cn *redis.Conn) error {
		if next != nil {
			if err := next(ctx, cn); err != nil {
				return err
			}
		}
		run := unknown
		if info, err := cn.Info(ctx, "server").Result(); err == nil {
			run = runOf(info)
		}
		_ = cn.ClientSetName(ctx, connPrefix+run).Err() // without the permission, each trip looks at the server
		return nil
	}
}

func runOf(info string) string {
	for line := range strings.Lines(info) {
		if run, ok := strings.CutPrefix(strings.TrimSpace(line), "run_id:"); ok {
			return run
		}
	}
	return unknown
}

// tail is the commands after the messages of a trip: one reads the epoch and records of overrides, because each
// command costs Redis more than another name.
type tail struct {
	values *redis.SliceCmd
	name   *redis.StringCmd
}

func (s *server) ask(ctx context.Context, pipe redis.Pipeliner, records []string) *tail {
	return &tail{pipe.MGet(ctx, append([]string{s.name}, records...)...), pipe.ClientGetName(ctx)}
}

// value is that of the epoch at 0, then of the records. It is empty if there is none.
func (a *tail) value(i int) string {
	if all := a.values.Val(); i < len(all) {
		text, _ := all[i].(string)
		return text
	}
	return ""
}

// look applies the answers to the tail: the epoch of the messages, or an older one. It is an error if that is
// unknown.
func (t *trip) look(ctx context.Context, a *tail, failed error) error {
	all, err := a.values.Result()
	name, err2 := a.name.Result()
	if err == nil && len(all) == 0 {
		err = ErrAnswer
	}
	if errors.Is(err2, redis.Nil) || redis.HasErrorPrefix(err2, "NOPERM") {
		name, err2 = "", nil
	}
	if err := errors.Join(err, err2); err != nil {
		t.doubt(err, failed)
		return fmt.Errorf("redis: the epoch is unknown: %w", err)
	}
	run, isNamed := strings.CutPrefix(name, connPrefix)
	life, ok := parseLife(a.value(0))
	if ok && isNamed && same(run, life.run) && life.Learning <= t.time.Add(Learn) && !t.server.suspect.Load() {
		t.server.epoch.Store(&life.Epoch)
		t.epoch = life.Epoch
		return nil
	}
	life, err = t.lookAfter(ctx, t.server, 0)
	if err == nil && !same(run, life.run) {
		err = fmt.Errorf("redis: %w", errElsewhere)
	}
	t.epoch = life.Epoch
	return err
}

var errElsewhere = errors.New("the client's connections lead to different servers")

// same tells whether two runs may be the same.
func same(a, b string) bool { return a == b || a == unknown || b == unknown || a == "" }

// life is an epoch in the form of its key.
type life struct {
	ratelimit.Epoch
	run string
}

func parseLife(s string) (life, bool) {
	e, server, ok := parseEpoch(s)
	run, replid, two := strings.Cut(server, " ")
	return life{e, run}, ok && two && !strings.Contains(replid, " ")
}

// Flags of epoch.lua.
const (
	restating = 1
	beginning = 2
)

// lookAfter runs the script, which reads the server's run, and begins an epoch if there is none or it is another
// server's.
func (l *Redis) lookAfter(ctx context.Context, s *server, flags int) (life, error) {
	// An epoch that this process has read before was lost.
	if s.first && s.epoch.Load() == nil && l.alone != nil && l.alone() {
		flags |= beginning
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	answer, err := epochScript.Run(ctx, s.client, []string{s.name},
		strconv.FormatUint(binary.LittleEndian.Uint64(id[:])|1, 16), Learn.Microseconds(), int64(l.at()),
		flags).StringSlice()
	if err != nil {
		l.stale.Store(true)
		return life{}, fmt.Errorf("redis: %w", err)
	}
	if len(answer) == 2 {
		if is, ok := parseLife(answer[0]); ok {
			s.suspect.Store(false)
			s.epoch.Store(&is.Epoch)
			return is, nil
		}
	}
	return life{}, fmt.Errorf("%w: %.60q", ErrAnswer, fmt.Sprint(answer))
}

// epochOf combines the epochs of servers: it changes with each of them, and learns while one does. For servers of
// trips it uses the trips' own answers: later answers to others do not apply to these messages.
func epochOf(all []*server, trips []*trip) ratelimit.Epoch {
	var e ratelimit.Epoch
	for _, s := range all {
		is := s.known()
		for _, t := range trips {
			if t.server == s && t.epoch.ID != 0 {
				is = t.epoch
			}
		}
		e.ID += is.ID * 0x9e3779b97f4a7c15 // odd, so that no bit of an id is lost
		e.Began, e.Learning = max(e.Began, is.Began), max(e.Learning, is.Learning)
	}
	return e
}

func (s *server) known() ratelimit.Epoch {
	if e := s.epoch.Load(); e != nil {
		return *e
	}
	return ratelimit.Epoch{}
}

// Verify reads each server's run, and whether it was a replica in between, which messages do not show on an old
// connection. Call it at each heartbeat. It costs a script for each server, and blocks at most until ctx is done.
func (l *Redis) Verify(ctx context.Context) (ratelimit.Epoch, error) { return l.each(ctx, 0) }

// Prolong prolongs the learning after a loss, if it still lasts. Nodes with unstated totals call it, because until
// they are stated, their tokens look free. It blocks at most until ctx is done.
func (l *Redis) Prolong(ctx context.Context) (ratelimit.Epoch, error) { return l.each(ctx, restating) }

// verifiers is the number of servers that each reads at the same time: one that hangs must not delay the others.
const verifiers = 16

func (l *Redis) each(ctx context.Context, flags int) (ratelimit.Epoch, error) {
	all, _, err := l.known(ctx)
	errs := make([]error, len(all))
	var looks errgroup.Group
	looks.SetLimit(verifiers)
	for i, s := range all {
		looks.Go(func() error {
			_, errs[i] = l.lookAfter(ctx, s, flags)
			return errs[i]
		})
	}
	_ = looks.Wait() // all errors count
	return epochOf(all, nil), errors.Join(err, errors.Join(errs...))
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
