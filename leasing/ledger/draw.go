package ledger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// How a till is kept in Redis: a string beside the account, to which a draw appends an entry for each
// unit. A draw writes first, and reads then what the account has charged: a script that granted
// something in between has found what was written, and counted it. For commands of one pipeline are
// executed in their order, and others may come between them (docs/protocol.md, section 4.17).

// An entry is the holder's name, with blanks up to 14 characters, how many tokens a unit is, and the
// claim's sequence number, as doubles of 8 bytes, little-endian; the number is negative where the claim
// knows of nothing that its holder has of the window. All are of one length, so that the string's says
// how many there are.
const (
	nameBytes  = 14
	entryBytes = nameBytes + 2*8
)

// entries are what a claim appends to draw so many units.
func entries(c *ratelimit.Claim, units, unit tokens) string {
	one := append(make([]byte, 0, entryBytes), HolderName(c.Holder)...)
	for len(one) < nameBytes {
		one = append(one, ' ')
	}
	seq := int64(c.Seq)
	if freshDraw(c) {
		seq = -seq
	}
	return strings.Repeat(string(appendNumbers(one, int64(unit), seq)), int(units))
}

// readTill reads what holders have appended; false where there is nothing. What is no entry is left out, as
// the script does.
func readTill(text string) (t till, ok bool) {
	for ; len(text) >= entryBytes; text = text[entryBytes:] {
		var numbers [2]int64
		holder, err := strconv.ParseUint(strings.TrimRight(text[1:nameBytes], " "), 36, 64)
		n, whole := unpacked(numbers[:0], text[nameBytes:entryBytes])
		if err != nil || !whole || text[0] != 'h' || n[0] < 1 {
			continue
		}
		c := ratelimit.Claim{Holder: ratelimit.Holder(holder), Seq: uint64(max(n[1], -n[1])), Fence: 1}
		if n[1] < 0 {
			c.Fence = 0
		}
		t.add(&c, 1, tokens(n[0]))
	}
	return t, len(t.drawn) > 0
}

// TillName is the name of a window's till, by its account's: it has the prefix in front, for users that
// may use keys with this prefix only. No account has braces in its name.
func TillName(account string, w ratelimit.Window) string {
	return account + "{" + strconv.FormatInt(int64(w), 10) + "}"
}

// tillKept is how much longer than its window a till is kept: clocks are read a moment apart, and may be set
// by a little.
const tillKept = 10 * time.Second

// draws tells whether claims may be draws. Not in a Cluster, where no command says what time it is
// at the server that has an account. Nor where a server does not say which run of it has the data: one
// with older data is found out there only by what claims tell, and a draw tells nothing.
func (l *Redis) draws() bool { return !l.undrawn.Load() && !l.unnamed.Load() && l.Partitions() == 1 }

// tills are the draws of one round trip, in the order of their claims.
type tills struct {
	at    ledgerTime // by the clock of a test, or 0
	clock *redis.TimeCmd
	sent  []sentDraw
	// forbidden says that the server does not let this user draw, and doubted that an answer cannot be true.
	forbidden, doubted bool
}

type sentDraw struct {
	units   tokens
	length  *redis.IntCmd
	expiry  *redis.BoolCmd
	account *redis.StringCmd
}

// send adds a draw of so many units to a pipeline, or a glance.
func (t *tills) send(ctx context.Context, pipe redis.Pipeliner, prefix string, c *ratelimit.Claim, units tokens) {
	account := prefix + c.Key
	if units == 0 { // a glance
		t.sent = append(t.sent, sentDraw{account: pipe.HGet(ctx, account, "a")})
		return
	}
	till := TillName(account, c.Draw)
	_, unit := tillOf(&c.Limit)
	d := sentDraw{units: units, length: pipe.Append(ctx, till, entries(c, units, unit))}
	// A test's time stands still, and Redis' goes on.
	if ends := c.Limit.WindowEnd(c.Draw).Add(tillKept); t.at != 0 {
		d.expiry = pipe.PExpire(ctx, till, max(0, ends.Sub(t.at))+time.Hour)
	} else {
		d.expiry = pipe.PExpireAt(ctx, till, time.UnixMicro(int64(ends)))
	}
	d.account = pipe.HGet(ctx, account, "a")
	t.sent = append(t.sent, d)
}

// tell has Redis say what time it is, behind the draws.
func (t *tills) tell(ctx context.Context, pipe redis.Pipeliner) {
	if len(t.sent) > 0 && t.at == 0 {
		t.clock = pipe.Time(ctx)
	}
}

// next is the answer to the next of the draws, which is that of c. It is false where the script is
// to settle the claim.
func (t *tills) next(c *ratelimit.Claim) (ratelimit.Grant, bool) {
	d := t.sent[0]
	t.sent = t.sent[1:]
	account, err := d.account.Result()
	if errors.Is(err, redis.Nil) { // there is none
		err = nil
	}
	now := t.at
	if t.clock != nil {
		var clock time.Time
		if clock, err = t.clock.Val(), errors.Join(err, t.clock.Err()); err == nil {
			now = ledgerTime(clock.UnixMicro())
		}
	}
	var length, expiry error
	if d.units > 0 {
		length, expiry = d.length.Err(), d.expiry.Err()
	}
	if err = errors.Join(length, expiry, err); err != nil {
		var said redis.Error
		if errors.As(err, &said) { // what Redis itself says: the script finds out how that is
			t.forbidden = t.forbidden || forbids(length, expiry) || t.clock != nil && forbids(t.clock.Err())
			return ratelimit.Grant{}, false
		}
		return ratelimit.Grant{Seq: c.Seq, Err: fmt.Errorf("redis: %w", err)}, true
	}
	if d.units == 0 {
		if !usedUpIn(account, now, c) {
			return ratelimit.Grant{}, false
		}
		return glanced(c, now), true
	}
	all := d.length.Val()
	charged, open := openIn(account, c.Draw, now, &c.Limit)
	if !open || all%entryBytes != 0 || !drawnInTime(c, now) {
		return ratelimit.Grant{}, false
	}
	units := tokens(all / entryBytes)
	t.doubted = t.doubted || !hasOwn(c, d.units, units, charged)
	return drawn(c, now, d.units, units, charged)
}

// usedUpIn tells, by field "a" of the account, whether nothing is to be had of the window of a glance, as
// (*Account).glance does.
func usedUpIn(account string, now ledgerTime, c *ratelimit.Claim) bool {
	var numbers [accountFields]int64
	if account == "" {
		return false
	}
	n, ok := packedNumbers(account, &numbers)
	return ok && n >= 26 && window(numbers[2]) == c.Draw && window(numbers[25]) >= c.Draw && drawnInTime(c, now) &&
		now >= max(ledgerTime(numbers[0]), ledgerTime(numbers[8]), ledgerTime(numbers[15])+1) &&
		tokens(numbers[3]+numbers[18]) >= c.Limit.Capacity() && numbers[20] == 0
}

// forbids tells whether one of the errors says that the server, or a proxy before it, never runs a command for this
// user. What passes, such as a script that keeps the server busy or a replica that is asked, does not.
func forbids(errs ...error) bool {
	return slices.ContainsFunc(errs, func(err error) bool {
		// The prefix "ERR" is left out there.
		return redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "unknown command") ||
			redis.HasErrorPrefix(err, "unsupported command")
	})
}

// openIn tells whether a window's till is open, and what is charged of the window, by field "a" of the
// account, as (*Account).open does.
func openIn(account string, w window, now ledgerTime, l *ratelimit.Limit) (charged tokens, open bool) {
	if account == "" {
		return 0, true
	}
	var numbers [accountFields]int64
	// Without sums the account was last settled by a release before: the script makes them.
	if n, ok := packedNumbers(account, &numbers); !ok || n < 26 {
		return 0, false
	}
	switch at := window(numbers[2]); at {
	case w:
		charged = tokens(numbers[3] + numbers[18]) // of holders that are not recorded, and of records
	case w - 1:
		charged = tokens(numbers[26]) // of records of the next window
		if l.Crowded(int(min(numbers[28], mostHolders))) {
			return 0, false
		}
	default:
		if at > w {
			return 0, false
		}
	}
	return charged, window(numbers[25]) < w && now >= ledgerTime(numbers[8]) && now > ledgerTime(numbers[15])
}

// packedNumbers reads an array of whole numbers as Redis' cmsgpack writes it (MessagePack,
// github.com/msgpack/msgpack/blob/master/spec.md), and says how many there are.
func packedNumbers(b string, numbers *[accountFields]int64) (n int, ok bool) {
	if len(b) < 3 || b[0] != 0xdc { // of fewer than 16 numbers, which have another form, nobody needs any
		return 0, false
	}
	n, b = int(b[1])<<8|int(b[2]), b[3:]
	if n > len(numbers) {
		return n, false
	}
	for i := range n {
		if len(b) == 0 {
			return n, false
		}
		kind := b[0]
		b = b[1:]
		size, known := packedSizes[kind]
		switch {
		case kind <= 0x7f || kind >= 0xe0:
			numbers[i] = int64(int8(kind))
			continue
		case !known || len(b) < size:
			return n, false
		}
		var wide [8]byte
		copy(wide[8-size:], b[:size])
		bits := binary.BigEndian.Uint64(wide[:])
		b = b[size:]
		switch {
		case kind == 0xcb:
			numbers[i] = int64(math.Float64frombits(bits))
		case kind >= 0xd0: // of two's complement, in so many bytes
			numbers[i] = int64(bits<<(64-8*size)) >> (64 - 8*size)
		default:
			numbers[i] = int64(bits)
		}
	}
	return n, true
}

// packedSizes are the bytes behind each kind of number.
var packedSizes = map[byte]int{
	0xcb: 8, 0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8, 0xd0: 1, 0xd1: 2, 0xd2: 4, 0xd3: 8,
}
