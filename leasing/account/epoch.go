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
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A server that lost its data has accounts that look new. So each server has an epoch beside its data, which names the
// server's run and its replication, and is read behind the messages of each round trip. Where it is another than a node
// knew, what it was granted does not count, and all holders state their totals. Where it names another server than the
// one at the connection's end, as a replica does that was promoted, a new epoch begins.

//go:embed epoch.lua
var epochLua string

var epochScript = redis.NewScript(epochLua)

// epochName is what an epoch's key is called, behind the prefix.
const epochName = "sluice:life"

// A connection is named after the run of the server at its end, which does not change as long as it lasts.
const connPrefix = "sluice-"

// unknown is what an epoch, and a connection's name, has of a server that does not say who it is.
const unknown = "-"

// named has a new connection called after the server's run, behind what it does already.
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
		_ = cn.ClientSetName(ctx, connPrefix+run).Err() // a user that may not is looked at each time
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

// tail is what is asked behind the messages of a trip.
type tail struct {
	time  *redis.TimeCmd
	epoch *redis.StringCmd
	name  *redis.StringCmd
}

func (s *server) ask(ctx context.Context, pipe redis.Pipeliner) *tail {
	return &tail{pipe.Time(ctx), pipe.Get(ctx, s.name), pipe.ClientGetName(ctx)}
}

// look takes in what was asked behind the messages: which epoch they were settled in, or in an older one. It is an
// error if that is not known.
func (t *trip) look(ctx context.Context, a *tail, failed error) error {
	value, err := a.epoch.Result()
	name, err2 := a.name.Result()
	at, err3 := a.time.Result()
	if errors.Is(err, redis.Nil) {
		value, err = "", nil
	}
	if errors.Is(err2, redis.Nil) || redis.HasErrorPrefix(err2, "NOPERM") {
		name, err2 = "", nil
	}
	if err := errors.Join(err, err2, err3); err != nil {
		if isDoubtful(err) || isDoubtful(failed) {
			t.server.doubted.Store(true)
			t.stale.Store(true)
		}
		return fmt.Errorf("redis: the epoch is unknown: %w", err)
	}
	now := t.at()
	if now == 0 {
		if now = ratelimit.LedgerTime(at.UnixMicro()); now <= 0 || now >= lastTime {
			return fmt.Errorf("%w: the time is %v", ErrAnswer, at)
		}
	}
	t.time = now
	t.heard.Store(int64(now))
	run, isNamed := strings.CutPrefix(name, connPrefix)
	life, ok := parseLife(value)
	if ok && isNamed && same(run, life.run) && life.Learning <= now.Add(Learn) && !t.server.doubted.Load() {
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

// same tells whether two runs may be one.
func same(a, b string) bool { return a == b || a == unknown || b == unknown || a == "" }

// life is an epoch as it is written.
type life struct {
	ratelimit.Epoch
	run string
}

func parseLife(s string) (life, bool) {
	fields := strings.Fields(s)
	if len(fields) != 5 {
		return life{}, false
	}
	id, err1 := strconv.ParseUint(fields[0], 16, 64)
	began, err2 := strconv.ParseInt(fields[1], 10, 64)
	ends, err3 := strconv.ParseInt(fields[2], 10, 64)
	e := ratelimit.Epoch{ID: id, Began: instant(began), Learning: instant(ends)}
	return life{e, fields[3]}, errors.Join(err1, err2, err3) == nil && id != 0
}

// Flags of epoch.lua.
const (
	telling   = 1
	beginning = 2
)

// lookAfter has the script look who the server is, and begin an epoch where it has none or is another.
func (l *Redis) lookAfter(ctx context.Context, s *server, flags int) (life, error) {
	// An epoch that this process has known before was lost.
	if s.first && s.epoch.Load() == nil && l.alone != nil && l.alone() {
		flags |= beginning
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	answer, err := epochScript.Run(ctx, s.client, []string{s.name},
		strconv.FormatUint(binary.LittleEndian.Uint64(id[:])|1, 16), Learn.Microseconds(), int64(l.at()),
		flags).StringSlice()
	if err != nil {
		l.stale.Store(l.cluster != nil)
		return life{}, fmt.Errorf("redis: %w", err)
	}
	if len(answer) == 2 {
		if is, ok := parseLife(answer[0]); ok {
			s.doubted.Store(false)
			s.epoch.Store(&is.Epoch)
			return is, nil
		}
	}
	return life{}, fmt.Errorf("%w: %.60q", ErrAnswer, fmt.Sprint(answer))
}

// epochOf joins those of servers: it is another when one of them is, and learns as long as one does. Of servers that
// were asked by trips it is what those were told: what others have heard since says nothing of these messages.
func epochOf(all []*server, trips []*trip) ratelimit.Epoch {
	var e ratelimit.Epoch
	for _, s := range all {
		is := s.known()
		for _, t := range trips {
			if t.server == s && t.epoch.ID != 0 {
				is = t.epoch
			}
		}
		e.ID += is.ID * 0x9e3779b97f4a7c15 // odd: each id counts wholly
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

// Verify looks which run each server is of, and whether it was a replica in between, which no message shows where the
// connections stayed. It is for each heartbeat, costs a script for each server, and blocks until ctx is done at most.
func (l *Redis) Verify(ctx context.Context) (ratelimit.Epoch, error) { return l.each(ctx, 0) }

// Prolong has the learning after a loss go on, if it still does: who has totals to tell calls it. Until then, what
// looks unspent may be spent. It blocks until ctx is done at most.
func (l *Redis) Prolong(ctx context.Context) error {
	_, err := l.each(ctx, telling)
	return err
}

// verifiers is at how many servers each looks at the same time: one that hangs must not take the time of the others.
const verifiers = 16

func (l *Redis) each(ctx context.Context, flags int) (ratelimit.Epoch, error) {
	all, _, err := l.known(ctx)
	errs := make([]error, len(all))
	turn := make(chan struct{}, verifiers)
	var wg sync.WaitGroup
	for i, s := range all {
		turn <- struct{}{}
		wg.Go(func() {
			_, errs[i] = l.lookAfter(ctx, s, flags)
			<-turn
		})
	}
	wg.Wait()
	return epochOf(all, nil), errors.Join(err, errors.Join(errs...))
}

var _ Ledger = (*Redis)(nil)
