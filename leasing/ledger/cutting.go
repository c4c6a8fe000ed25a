package ledger

import (
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Redis knows no time zones. A claim of a rule with billing months therefore brings
// the ends of the windows around the time that Redis' clock shows, as far as this node
// knows; the script cuts windows by them and by its own clock, and answers a claim whose
// windows are about another time with that time, having booked nothing (docs/protocol.md,
// section 6.1). Then they are sent again, about the right time.
//
// Guarantee: of nodes with the same time zone data, all cut a billing month at the same
// instant of Redis' clock, however their own clocks are set. Where the data differ, an
// account turns to a window at the earliest of its cuts, and never back: no window's
// limit is granted twice.

// cutting is the time that billing months are cut about. The zero cutting goes by this
// machine's clock. It is safe for concurrent use.
type cutting struct {
	ahead atomic.Int64 // by so many microseconds is Redis' clock ahead, when it was last found to be months off
}

func (k *cutting) now() ledgerTime {
	return ledgerTime(time.Now().UnixMicro() + k.ahead.Load())
}

// append packs the ends of a calendar's windows about at, or now if it is 0.
func (k *cutting) append(packed []byte, calendar ratelimit.Calendar, at ledgerTime) []byte {
	if at == 0 {
		at = k.now()
	}
	cuts := calendar.Cuts(at)
	packed = appendNumbers(packed, int64(cuts.First))
	for _, end := range cuts.Ends {
		packed = appendNumbers(packed, int64(end))
	}
	return packed
}

// elsewhere tells whether a claim was not settled because its windows were about another
// time than Redis' clock shows, and takes that clock in.
func (k *cutting) elsewhere(c *ratelimit.Claim, answer *redis.Cmd) bool {
	if c.Limit.Calendar == 0 {
		return false
	}
	text, err := answer.Text()
	if err != nil {
		return false
	}
	// The answer is the script's own, and checked as any: a false time would have this node send ends
	// of windows about it until another answer says better.
	var packed [3]int64
	values, whole := unpacked(packed[:0], text)
	if !whole || len(values) != 3 || values[0] != elsewhereAnswer || values[1] < 0 || values[1] > MostFence ||
		uint64(values[2]) != c.Seq {
		return false
	}
	k.ahead.Store(values[1] - time.Now().UnixMicro())
	return true
}

// elsewhereAnswer begins the answer to a claim whose windows are about another time.
const elsewhereAnswer = 2
