package account

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The scripts. Both begin with a common part.
var (
	//go:embed common.lua
	commonLua string
	//go:embed claim.lua
	claimLua string
	//go:embed bucket.lua
	bucketLua string

	// Redis names a script by the digest of its text. So releases with other scripts do not disturb each other.
	claimScript  = redis.NewScript(commonLua + claimLua)
	bucketScript = redis.NewScript(commonLua + bucketLua)
)

func scriptOf(c *Claim) *redis.Script {
	if c.bucket() {
		return bucketScript
	}
	return claimScript
}

// claimFields is the number of numbers in a script's arguments.
const claimFields = 16

// numbersOf are the numbers of a claim, in the order of the first line of common.lua, without the time. The scripts
// have no calendar and no algorithm: they read the span of the window and the rate of the bucket here. All of them fit
// into doubles, because check and clamped bound them, and min does it for the others.
func numbersOf(c *Claim) [claimFields]int64 {
	s, limit := spanOf(&c.Limit, c.Window), c.Limit.Capacity()
	slot, lease := int64(0), int64(0)
	slides := int64(0)
	if looksBack(&c.Limit) {
		slides = 1
	}
	if c.bucket() {
		limit = burstOf(&c.Limit)
		slot = BucketSlot(&c.Limit).Microseconds()
		lease = int64(c.Window)
	}
	return [...]int64{
		int64(c.Seq), int64(clamped(c.Taken)), int64(clamped(c.Spent)),
		int64(min(c.Need, mostSum)), int64(min(c.Want, mostSum)), int64(max(1, min(c.Unit, mostSum))),
		lease, slot, int64(limit),
		int64(s.begins), int64(min(s.ends, lastTime)), int64(min(s.over, lastTime)),
		int64(c.Limit.Requests), int64(c.Limit.Period() / time.Second), slides, 0,
	}
}

// arguments are the holder's name, and the numbers of a claim, packed as doubles. Redis reads one long argument faster
// than many short ones. The last number is the time in tests, and else 0: the script reads Redis' clock.
func (l *Redis) arguments(c *Claim) []any {
	all := numbersOf(c)
	all[claimFields-1] = int64(l.at())
	packed := make([]byte, 0, 8*len(all))
	for _, n := range all {
		packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(float64(n)))
	}
	return []any{HolderName(c.Holder), packed}
}

// The first number of a script's answer.
const (
	wasSettled   = 0
	wasOvertaken = 1
	wasOver      = 2
)

// answerFields is the number of numbers in a script's answer.
const answerFields = 9

var errShape = errors.New("the number of integers is not that of a grant")

// readGrant reads a script's answer. Any other form is an error, and grants nothing. The reply is nine doubles in one
// string, in the order of the fields in grantOf.
func readGrant(c *Claim, a *redis.Cmd, failed error) Grant {
	text, err := a.Text()
	if a.Err() != nil || a.Val() == nil {
		return Grant{Err: fmt.Errorf("redis: %w", errors.Join(a.Err(), failed))}
	}
	var n [answerFields]int64
	// If a proxy mixes up replies, this account would take another's tokens: the number is that of the claim.
	if err != nil || !unpacked(text, n[:]) || n[1] != int64(c.Seq) {
		return garbage(errShape, a.Val())
	}
	if g := grantOf(&n); g.Err != nil || n[0] == wasSettled && plausible(c, &g) {
		return g
	}
	return garbage(errShape, a.Val())
}

func grantOf(n *[answerFields]int64) Grant {
	switch n[0] {
	// An answer without a settlement has only zeros after the Seq.
	case wasOvertaken:
		return Grant{Err: ErrOvertaken}
	case wasOver:
		return Grant{Err: ErrOver}
	}
	return Grant{
		Granted: tokens(n[2]), Total: tokens(n[3]), Sum: tokens(n[4]), InHand: tokens(n[5]),
		Fence: ratelimit.Fence(n[6]), At: instant(n[7]), Recalling: n[8] == 1,
	}
}

// plausible reports whether an answer is possible for a claim. It guards against a proxy, a script of another release,
// or a damaged record: a grant that was never made admits too much without another sign.
func plausible(c *Claim, g *Grant) bool {
	// A draw is granted nothing: its sender computes the part that it owns.
	most := max(0, c.Need, c.Want)
	if c.Draws() {
		most = 0
	}
	if g.Granted < 0 || g.Granted > most || g.At <= 0 || g.Fence < 0 {
		return false
	}
	// The total is the stated one plus the grant, and the part of a refund that was cut: then the window has no other
	// charge. Of a bucket it is the lease.
	total := max(c.Taken, c.Spent)
	// At the bounds, the ledger counts less than the message states, and the total says nothing.
	small := -MostBooked < min(c.Taken, c.Spent) && total < MostBooked && g.Sum < mostSum-MostBooked
	if c.bucket() {
		return g.Total >= 0 && g.Total <= max(0, c.Taken)+g.Granted
	}
	cut := g.Total - g.Granted - total
	least := g.Granted + max(0, c.Taken-c.Spent)
	alone := g.Sum == least || looksBack(&c.Limit) && g.Sum > least
	return c.Draws() || !small || cut == 0 || cut > 0 && alone
}

func garbage(err error, v any) Grant {
	return Grant{Err: fmt.Errorf("%w: %w: %.60q", ErrAnswer, err, fmt.Sprint(v))}
}

// unpacked reads doubles, which must be whole numbers that a double holds exactly.
func unpacked(packed string, all []int64) bool {
	if len(packed) != 8*len(all) {
		return false
	}
	for i := range all {
		n := math.Float64frombits(binary.LittleEndian.Uint64([]byte(packed[8*i : 8*i+8])))
		if n != math.Trunc(n) || math.Abs(n) > 1<<53 { // a NaN differs from itself
			return false
		}
		all[i] = int64(n)
	}
	return true
}

// readDraws reads the replies of a transaction: for each draw the sum, the holder's total, and whether there was an
// account to expire. For a sliding window, it also reads the previous sum. Replies are in the order of the draws, three
// or four for each (repliesOf). If the transaction failed as a whole, the draws may have been counted, and each has an
// error: its key claims next.
func (t *trip) readDraws(drawn []int, replies []any, err error) {
	replied := 0
	for _, i := range drawn {
		replied += repliesOf(&t.claims[i])
	}
	if err == nil && len(replies) != replied {
		err = fmt.Errorf("%w: %.60q", ErrAnswer, fmt.Sprint(replies))
	}
	for _, i := range drawn {
		c := &t.claims[i]
		if err != nil {
			t.grants[i] = Grant{Err: fmt.Errorf("redis: the draws' transaction: %w", err)}
			continue
		}
		n := repliesOf(c)
		t.grants[i] = readDraw(c, replies[:n], t.time)
		replies = replies[n:]
	}
}

// repliesOf is the number of commands of a draw: two increments, the expiry, and the previous sum of a sliding window.
func repliesOf(c *Claim) int {
	if c.Limit.Algorithm == ratelimit.SlidingWindow {
		return 4
	}
	return 3
}

// readDraw reads the replies to one draw. The expiry's reply must be 1: the account exists. The time of the trip
// decides whether the account's span was current, because plain increments check nothing. A draw outside of it is
// ErrOver: the tokens are in an account that expires, and no node counts on them.
func readDraw(c *Claim, replies []any, at instant) Grant {
	sum, ok1 := replies[0].(int64)
	total, ok2 := replies[1].(int64)
	there, ok3 := replies[2].(int64)
	was, ok4 := int64(0), true
	if len(replies) == 4 && replies[3] != nil {
		was, ok4 = readInteger(replies[3])
	}
	if !ok1 || !ok2 || !ok3 || !ok4 || there != 1 || !exact(sum) || !exact(total) || !exact(was) {
		if err, failed := replies[0].(error); failed {
			return Grant{Err: fmt.Errorf("redis: a draw: %w", err)}
		}
		return garbage(errShape, replies)
	}
	s := spanOf(&c.Limit, c.Window)
	if !s.kept(at) {
		return Grant{Err: ErrOver}
	}
	return Grant{Total: tokens(total), Sum: tokens(sum) + s.before(at, &c.Limit, tokens(was)), InHand: -1, At: at}
}

// exact reports whether a double holds the number.
func exact(n int64) bool { return -1<<53 <= n && n <= 1<<53 }

// readInteger reads a value that Redis replies as text.
func readInteger(v any) (int64, bool) {
	s, ok := v.(string)
	n, err := strconv.ParseInt(s, 10, 64)
	return n, ok && err == nil
}
