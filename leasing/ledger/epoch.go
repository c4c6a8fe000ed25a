package ledger

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

	"github.com/sluice-gate/sluice/ratelimit"
)

// A Redis that lost its data has accounts that look new: a node that asks for one
// would be granted the whole limit, whatever others had spent before. The keys
// named here are kept with the accounts and are lost with them. Each pipeline of
// claims reads the one of its part last: when it is still the one that the node
// knew, nothing was lost before any of these claims (docs/protocol.md, sections 4.9
// and 6.4).

//go:embed epoch.lua
var epochLua string

var epochScript = redis.NewScript(epochLua)

// epochName is what the key is called, behind the prefix. A Cluster has two for
// each part, in the first and in the last of its slots: when two shards have the
// part's slots, each has one of them.
const epochName = "sluice:epoch"

// epochNames finds the names for a part of the ledger.
func (l *Redis) epochNames(part int) []string {
	n := l.Partitions()
	if n == 1 {
		return []string{l.prefix + epochName}
	}
	l.naming.Do(func() { l.epochs = clusterEpochs(l.prefix, n) })
	return l.epochs[part]
}

// clusterEpochs finds, by trying numbers, a name in the first and one in the last
// slot of each part. It takes some milliseconds.
func clusterEpochs(prefix string, parts int) [][]string {
	// Nobody can choose a name for a slot but by trying: of 16,384 slots two for each part are wanted,
	// and each try hits one of all.
	wanted := map[uint16][2]int{}
	for p := range parts {
		first, last := (p*slots+parts-1)/parts, ((p+1)*slots+parts-1)/parts-1
		wanted[uint16(first)], wanted[uint16(last)] = [2]int{p, 0}, [2]int{p, 1}
	}
	names := make([][]string, parts)
	for p := range names {
		names[p] = make([]string, 2)
	}
	for i := 0; len(wanted) > 0; i++ {
		name := prefix + epochName + ":" + strconv.Itoa(i)
		if at, ok := wanted[Slot(name)]; ok {
			names[at[0]][at[1]] = name
			delete(wanted, Slot(name))
		}
	}
	return names
}

// near are those of a part's names that are kept where claims go: a shard that is
// down is not waited for by claims on another. All, for no claims.
func (l *Redis) near(ctx context.Context, names []string, claims []ratelimit.Claim) []string {
	cluster, ok := l.client.(*redis.ClusterClient)
	if !ok || len(claims) == 0 {
		return names
	}
	master := func(key string) string {
		client, err := cluster.MasterForKey(ctx, key)
		// A slot that nobody has now is asked about by its claims, whose error says so.
		if err != nil {
			return ""
		}
		return client.Options().Addr
	}
	asked := map[string]bool{}
	for i := range claims {
		asked[master(l.prefix+claims[i].Key)] = true
	}
	var near []string
	for _, name := range names {
		if asked[master(name)] {
			near = append(near, name)
		}
	}
	return near
}

// SettleEpoch implements [ratelimit.Epochal].
func (l *Redis) SettleEpoch(
	ctx context.Context, q ratelimit.EpochQuery, claims []ratelimit.Claim, grants []ratelimit.Grant,
) (ratelimit.Epoch, ledgerTime, error) {
	all := l.epochNames(q.Part)
	names := l.near(ctx, all, claims)
	flags := 0
	if q.Verify {
		flags |= 1
	}
	if q.Telling {
		flags |= 2
	}
	// With nothing to claim, what the script says of the epoch is all that is to be learnt.
	if len(claims) == 0 && flags > 0 {
		at, failed := l.lookAfter(ctx, names, flags)
		return l.inEpoch(all, at, failed)
	}
	if flags > 0 {
		// When it cannot, the claims are settled all the same; that the epoch is
		// not known then shows below.
		_, _ = l.lookAfter(ctx, names, flags)
	}
	// The epoch is read behind the claims, and not before: a loss between the two would be taken for
	// one that the claims knew of.
	verified := l.verified.Load()
	reads := make([]*redis.StringCmd, len(names))
	var clock *redis.TimeCmd
	l.settle(ctx, claims, grants, func(pipe redis.Pipeliner) {
		for i, name := range names {
			reads[i] = pipe.Get(ctx, name)
		}
		if len(claims) == 0 && l.Partitions() == 1 && l.at() == 0 { // else the grants say it
			clock = pipe.Time(ctx)
		}
	})
	// Of several times the latest: an account may wait in a window that its clock has left.
	at := l.at()
	if clock != nil && clock.Err() == nil {
		at = max(at, ledgerTime(clock.Val().UnixMicro()))
	}
	for i := range grants {
		if grants[i].Err == nil {
			at = max(at, grants[i].At)
		}
	}
	var failed error
	for i, r := range reads {
		value, err := r.Result()
		if errors.Is(err, redis.Nil) { // it is lost: begin one, which nobody who claimed above knew of
			_, err = l.lookAfter(ctx, names[i:i+1], flags)
		} else if err == nil {
			l.keep(names[i], value)
		}
		failed = errors.Join(failed, err)
	}
	// A new connection may be one to another server, with older data that says of itself what the lost one
	// did. A node that had nothing under way when the server changed hears of that in no other way. What counts
	// is what was verified before: these claims may have come to the other server before it was looked at.
	if dials := l.dials.Load(); dials != verified && failed == nil {
		_, err := l.lookAfter(ctx, names, flags|1)
		failed = errors.Join(failed, err)
		if err == nil {
			l.verified.Store(dials)
		}
	}
	// An end of the learning that is further away than a learning lasts is one from before the clock was
	// set back: the script has it end in time.
	if e, known := l.readEpoch(all); known && at > 0 && e.Learning > at.Add(RelearnTime) {
		_, err := l.lookAfter(ctx, names, flags)
		failed = errors.Join(failed, err)
	}
	return l.inEpoch(all, at, failed)
}

// inEpoch is what SettleEpoch returns: an error only when nothing answered, and no
// epoch when what is known of it is not all, or not of now.
func (l *Redis) inEpoch(names []string, at ledgerTime, failed error) (ratelimit.Epoch, ledgerTime, error) {
	if failed != nil && at == 0 {
		return ratelimit.Epoch{}, 0, fmt.Errorf("redis: %w", failed)
	}
	e, known := l.readEpoch(names)
	if failed != nil || !known {
		return ratelimit.Epoch{}, at, nil //nolint:nilerr // the claims were settled, in an epoch that is not known
	}
	return e, at, nil
}

// noRun is what an epoch has of a server that does not say which run of it this is.
const noRun = "-"

// keep remembers what a name was last seen to say.
func (l *Redis) keep(name, value string) {
	l.unnamed.Store(strings.HasSuffix(value, " "+noRun))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said == nil {
		l.said = map[string]string{}
	}
	l.said[name] = value
}

// lookAfter has the script look after the names.
func (l *Redis) lookAfter(ctx context.Context, names []string, flags int) (at ledgerTime, failed error) {
	for _, name := range names {
		// The script takes this number if there is no epoch, or if another server has the data now. 0
		// would mean that none is known.
		var id [8]byte
		_, _ = rand.Read(id[:]) // never fails
		answer, err := epochScript.Run(ctx, l.client, []string{name},
			strconv.FormatUint(binary.LittleEndian.Uint64(id[:])|1, 16), RelearnTime.Microseconds(), int64(l.at()),
			flags).StringSlice()
		if err == nil && len(answer) != 2 {
			err = fmt.Errorf("%w: %d parts about the epoch, want 2", ErrLedgerAnswer, len(answer))
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		l.keep(name, answer[0])
		t, err := strconv.ParseInt(answer[1], 10, 64)
		failed = errors.Join(failed, err)
		at = max(at, ledgerTime(t))
	}
	return at, failed
}

// readEpoch joins what the names of a part were last seen to say: it is another
// epoch when one of them is, and young as long as one is. It is false where one says what is no epoch, or nothing.
func (l *Redis) readEpoch(names []string) (e ratelimit.Epoch, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		fields := strings.Fields(l.said[name])
		if len(fields) != 4 {
			return ratelimit.Epoch{}, false
		}
		id, err1 := strconv.ParseUint(fields[0], 16, 64)
		began, err2 := strconv.ParseInt(fields[1], 10, 64)
		learning, err3 := strconv.ParseInt(fields[2], 10, 64)
		if errors.Join(err1, err2, err3) != nil {
			return ratelimit.Epoch{}, false
		}
		// One number for all names of the part: it changes when that of any name does.
		e.ID = 31*e.ID + id
		e.Began, e.Learning = max(e.Began, ledgerTime(began)), max(e.Learning, ledgerTime(learning))
	}
	return e, true
}
