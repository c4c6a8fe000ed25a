package ledger

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

//go:embed settle.lua
var settleLua string

var settleScript = redis.NewScript(settleLua)

// Redis is a ledger in Redis (6.2 and later, Valkey), single, Sentinel or
// Cluster: one hash an account, settled by one Lua script, on Redis' own clock.
// Claims of one Settle share pipelined round trips. It is safe for concurrent
// use. Accounts expire by themselves.
type Redis struct {
	client redis.UniversalClient
	prefix string
	// Refused, if set, counts replies that were no answer. It is set before the first use.
	Refused *atomic.Uint64
	looks   redis.UniversalClient // what people ask goes here; client, unless LookThrough was called
	// at replaces Redis' clock, in simulations and tests.
	at func() ledgerTime
	// cutting is the time by which billing months are cut; see cuts.
	cutting cutting

	server

	naming sync.Once
	epochs [][]string // by part, of a Cluster; see epochNames
	mu     sync.Mutex
	said   map[string]string // guarded by mu: what each of the names was last seen to say
}

// server is what is known of who has the data, as far as draws depend on it.
type server struct {
	// undrawn is that it does not let this user draw, and unnamed that it was last seen not to say which run
	// of it this is.
	undrawn, unnamed atomic.Bool

	// dials counts connections that were made, and verified those after which it was looked who has the
	// data: another server may be at the end of a new one.
	dials, verified atomic.Int64
}

// NewRedis makes a ledger whose accounts' names start with prefix. The client
// stays the caller's; it should not retry by itself, and must heed contexts
// (redis.UniversalOptions.ContextTimeoutEnabled).
func NewRedis(client redis.UniversalClient, prefix string) *Redis {
	l := &Redis{client: client, looks: client, prefix: prefix, at: func() ledgerTime { return 0 }}
	if client != nil {
		client.AddHook(dialCounter{&l.dials})
	}
	return l
}

// dialCounter counts the connections that a client makes.
type dialCounter struct{ dials *atomic.Int64 }

// DialHook implements [redis.Hook].
func (d dialCounter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.dials.Add(1)
		return next(ctx, network, addr)
	}
}

// ProcessHook implements [redis.Hook].
func (dialCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (dialCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// LoadScripts has a server know the ledger's scripts, so that no claim must bring them.
func LoadScripts(ctx context.Context, server redis.Scripter) error {
	return errors.Join(settleScript.Load(ctx, server).Err(), epochScript.Load(ctx, server).Err())
}

// LookThrough has what people ask ([Fleet.Look]) go through a client of its own,
// so that it never takes a connection that a claim waits for. It must be called
// before the ledger is used.
func (l *Redis) LookThrough(client redis.UniversalClient) { l.looks = client }

// GoBy has the ledger go by another clock than Redis' own: a simulation's.
func (l *Redis) GoBy(clock func() ratelimit.LedgerTime) { l.at = clock }

// slots is how many hash slots a Redis Cluster has; a shard owns ranges of them.
const slots = 16384

// Partitions implements [Partitioned]: a Cluster's slots in 16 ranges, each of
// which fails by itself; one for all otherwise.
func (l *Redis) Partitions() int {
	// Shards own ranges of slots, too, so that one dead shard concerns few of the 16 parts. A Redis
	// that is no Cluster fails as a whole.
	if _, ok := l.client.(*redis.ClusterClient); ok {
		return 16
	}
	return 1
}

// Partition implements [Partitioned].
func (l *Redis) Partition(key string) int {
	n := l.Partitions()
	if n == 1 {
		return 0
	}
	return int(Slot(l.prefix+key)) * n / slots
}

// Slot is the hash slot of a key without {} (KeyName escapes them): CRC-16 as
// in XMODEM, from the Redis Cluster specification.
func Slot(key string) uint16 {
	crc := uint16(0)
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % slots
}

// Settle implements [ratelimit.Ledger]. A script that Redis has forgotten (a
// flush, a failover) is sent again, and so are claims that told a Redis whose clock is
// months off which windows there are about another time.
func (l *Redis) Settle(ctx context.Context, claims []ratelimit.Claim, grants []ratelimit.Grant) {
	if len(claims) > 0 {
		l.settle(ctx, claims, grants, func(redis.Pipeliner) {})
	}
}

// settle sends claims, and behind them in the same pipeline what else there is.
func (l *Redis) settle(
	ctx context.Context, claims []ratelimit.Claim, grants []ratelimit.Grant, behind func(redis.Pipeliner),
) {
	t := &trip{Redis: l, claims: claims, grants: grants, eval: settleScript.EvalSha, draws: l.draws()}
	t.left = make([]int, len(claims))
	for i := range claims {
		t.left[i] = i
	}
	// The script may have been forgotten, and when it is sent with its text, its first answer may be that
	// its windows are elsewhere. Draws that were none come to it a trip later.
	most := 3
	plain := func(c ratelimit.Claim) bool { return unitsOf(&c) > 0 || mayGlance(&c) }
	if t.draws && slices.ContainsFunc(claims, plain) {
		most++
	}
	for range most {
		if t.send(ctx, behind); len(t.left) == 0 {
			return
		}
	}
	for _, i := range t.left {
		grants[i] = ratelimit.Grant{Seq: claims[i].Seq, Err: fmt.Errorf("%w: %w", ErrLedgerAnswer, errUnsettled)}
	}
}

// errUnsettled says that a claim was sent several times and never settled, which no Redis does.
var errUnsettled = errors.New("the script is forgotten again and again, or its windows are elsewhere each time")

// trip is claims on their way to Redis, which may take several round trips.
type trip struct {
	*Redis
	claims []ratelimit.Claim
	grants []ratelimit.Grant
	left   []int // those that are not settled
	eval   evalFunc
	draws  bool // those that may be draws are tried as such,
	tried  bool // or were
}

type evalFunc func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd

// send makes one round trip, and keeps those that are to be sent again. No answer for which that is
// so has booked anything, so that a claim can be sent again under its number.
func (t *trip) send(ctx context.Context, behind func(redis.Pipeliner)) {
	pipe := t.client.Pipeline()
	answers, drawn := make([]*redis.Cmd, len(t.left)), tills{}
	for j, i := range t.left {
		c := &t.claims[i]
		n := unitsOf(c)
		if t.draws && (n > 0 || mayGlance(c)) {
			if len(drawn.sent) == 0 {
				drawn.at = t.at()
			}
			drawn.send(ctx, pipe, t.prefix, c, n)
			continue
		}
		// The audit's stream is a second key of the script, for Redis wants all keys to be named.
		names := append(make([]string, 0, 2), t.prefix+c.Key)
		if c.Audit != "" {
			names = append(names, AuditStream(names[0]))
		}
		answers[j] = t.eval(ctx, pipe, names, t.arguments(c, t.tried && n > 0)...)
	}
	drawn.tell(ctx, pipe)
	behind(pipe)
	// An error may be that of a single command. Only commands without an answer take it over: the
	// others were settled.
	_, err := pipe.Exec(ctx)
	var again []int
	for j, i := range t.left {
		c, a := &t.claims[i], answers[j]
		if a == nil {
			g, ok := drawn.next(c)
			if !ok {
				again = append(again, i)
			}
			t.grants[i] = g
			continue
		}
		if err != nil && a.Err() == nil && a.Val() == nil {
			a.SetErr(err)
		}
		// A script that Redis has forgotten goes with its text then.
		if redis.HasErrorPrefix(a.Err(), "NOSCRIPT") || t.cutting.elsewhere(c, a) {
			again = append(again, i)
			t.eval = settleScript.Eval
			continue
		}
		t.grants[i] = readGrant(c, a)
	}
	if drawn.forbidden {
		t.undrawn.Store(true)
	}
	if drawn.doubted && t.Refused != nil {
		t.Refused.Add(1)
	}
	t.left, t.draws, t.tried = again, false, t.tried || t.draws
}

func (l *Redis) arguments(c *ratelimit.Claim, tried bool) []any {
	flags := 0
	for i, set := range [...]bool{
		c.Reclaim == ratelimit.ReclaimEager, c.Direct, c.Refilled, c.Ahead, c.Tally, c.Final,
		c.Reset, c.Last, c.Stretch, c.Recall,
		// Whether others may have drawn; and whether this holder did, and took nothing: a till that is shut may
		// have grown by that.
		l.Partitions() == 1, tried,
	} {
		if set {
			flags |= 1 << i
		}
	}
	period := c.Limit.Period().Microseconds()
	// Months differ in length. The script cuts them by the calendar, or by the ends that come
	// behind the claim.
	if c.Limit.Unit.OfCalendar() {
		period = 0
	}
	claim := [...]int64{
		int64(c.Seq), int64(c.Fence), int64(c.Window), int64(flags),
		int64(c.Granted), int64(c.Spent), int64(c.Returned), int64(c.Waiting), int64(c.Want), c.TTL.Microseconds(),
		int64(c.Limit.Algorithm), int64(c.Limit.Requests), int64(c.Limit.Burst), period, int64(l.at()),
		int64(c.Learning), int64(c.Before),
	}
	// Packed, for Redis reads one long argument faster than 17 short ones.
	packed := appendNumbers(make([]byte, 0, 8*len(claim)), claim[:]...)
	// Redis knows no time zones: the ends of billing months go with the claim (docs/protocol.md,
	// section 6.1).
	if c.Limit.Calendar != 0 {
		packed = l.cutting.append(packed, c.Limit.Calendar, l.at())
	}
	arguments := []any{HolderName(c.Holder), packed}
	if c.Audit != "" {
		arguments = append(arguments, c.Audit, int64(c.AuditBound), AuditEvents, AuditKept.Milliseconds())
	}
	return arguments
}

// appendNumbers packs numbers as doubles, little-endian.
func appendNumbers(packed []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(float64(n)))
	}
	return packed
}

// HolderName is how Redis names a holder: short, for each account has it.
func HolderName(h ratelimit.Holder) string { return "h" + strconv.FormatUint(uint64(h), 36) }

// NewHolder returns a holder that no other process is, nor was, for NewFleet.
func NewHolder() ratelimit.Holder {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	// NewFleet doubles it, for a node has two names.
	return ratelimit.Holder(binary.LittleEndian.Uint64(b[:]) >> 1)
}

// ErrLedgerAnswer says that what answered is no ledger of this protocol.
var ErrLedgerAnswer = errors.New("the ledger's answer makes no sense")

// readGrant reads what the script returned. What it says is not checked here, but by
// who takes it (CheckGrant).
func readGrant(c *ratelimit.Claim, answer *redis.Cmd) ratelimit.Grant {
	g := ratelimit.Grant{Seq: c.Seq, TTL: c.TTL}
	text, err := answer.Text()
	if err != nil && answer.Err() != nil {
		g.Err = fmt.Errorf("redis: %w", err)
		return g
	}
	var packed [answerFields]int64
	values, whole := unpacked(packed[:0], text)
	// What answers may be a proxy or another program's data. Nothing of an answer is believed that
	// has not the form of one (docs/protocol.md, section 4.16).
	if err != nil || !whole || len(values) != answerFields && len(values) != 2 {
		g.Err = fmt.Errorf("%w: %w", &GrantError{
			Kind: ratelimit.RejectedForm, What: "number of fields",
			Said: int64(len(values)), Least: 2, Most: answerFields,
		}, saying(answer))
		return g
	}
	form := int64(0)
	if len(values) == 2 {
		form = 1
	}
	if values[0] != form {
		wrong := &GrantError{ratelimit.RejectedForm, "first field", values[0], form, form}
		g.Err = fmt.Errorf("%w: %w", wrong, saying(answer))
		return g
	}
	// A proxy that mixes up replies would have this key take another's tokens.
	if g.Seq = uint64(values[len(values)-1]); g.Seq != c.Seq {
		g.Err = &GrantError{ratelimit.RejectedSequence, "sequence number", int64(g.Seq), int64(c.Seq), int64(c.Seq)}
		return g
	}
	// The short form says that the claim was overtaken, and booked nothing.
	if len(values) == 2 {
		g.Err = ratelimit.ErrStaleClaim
		return g
	}
	g.Granted, g.Fence, g.Window = tokens(values[1]), ratelimit.Fence(values[2]), window(values[3])
	g.Void, g.Carried = values[4] == 1, values[15] == 1
	g.Available, g.Outstanding = tokens(values[5]), tokens(values[6])
	g.ResetAfter, g.RetryAfter = microseconds(values[7]), microseconds(values[8])
	g.Holders, g.OverAdmitted, g.Relearning = int(values[9]), tokens(values[10]), values[11] == 1
	g.At, g.Stranded, g.Over, g.Missing = ledgerTime(values[12]), tokens(values[13]), tokens(values[14]),
		values[16] == 1
	g.TTL, g.Plenty, g.Shut = microseconds(values[17]), values[18]&1 != 0, values[18]&2 != 0
	g.Recalling, g.Recalled = values[19] == 1, int(values[20])
	return g
}

// unpacked reads numbers that were packed as doubles, little-endian. It reports
// whether they all were whole numbers that a double holds exactly, and no more than
// values has room for.
func unpacked(values []int64, packed string) ([]int64, bool) {
	if len(packed)%8 != 0 || len(packed)/8 > cap(values) {
		return values, false
	}
	for i := 0; i < len(packed); i += 8 {
		n := math.Float64frombits(binary.LittleEndian.Uint64([]byte(packed[i : i+8])))
		if n != math.Trunc(n) || math.Abs(n) > 1<<53 { // a NaN is not itself
			return values, false
		}
		values = append(values, int64(n))
	}
	return values, true
}

// answerFields is how many numbers the script answers a claim with.
const answerFields = 22

// saying is what an answer says, in a few words.
func saying(answer *redis.Cmd) error {
	return errors.New(shortened(answer.Val())) //nolint:err113 // its text is the store's
}

func microseconds(us int64) time.Duration {
	// A duration is in nanoseconds: what a false answer says may not overflow into a negative one.
	const most = int64(1<<63-1) / 1000
	if us > most {
		return 1<<63 - 1
	}
	if us < -most {
		return -1 << 63
	}
	return time.Duration(us) * time.Microsecond
}

// shortened is the beginning of what an answer says. A long one is not written out
// for that.
func shortened(v any) string {
	if all, ok := v.([]any); ok && len(all) > 20 {
		v = all[:20]
	}
	s := fmt.Sprintf("%.80v", v)
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
