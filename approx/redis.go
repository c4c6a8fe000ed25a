package approx

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

//go:embed seats.lua
var seatsLua string

var seatsScript = redis.NewScript(seatsLua)

// Redis grants seats in Redis, on its clock: one small hash for a fleet, named
// prefix + "sluice:seats". It is safe for concurrent use.
type Redis struct {
	client redis.UniversalClient
	name   string
	// at replaces Redis' clock, in tests.
	at func() ratelimit.LedgerTime
}

// NewRedis makes seats for the fleet that shares prefix. The client stays the
// caller's.
func NewRedis(client redis.UniversalClient, prefix string) *Redis {
	return &Redis{client: client, name: prefix + "sluice:seats", at: func() ratelimit.LedgerTime { return 0 }}
}

// Sit implements [Seats].
func (r *Redis) Sit(ctx context.Context, a Application) (Tenancy, error) {
	if err := a.valid(); err != nil {
		return none, err
	}
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	values, err := seatsScript.Run(ctx, r.client, []string{r.name},
		"h"+strconv.FormatUint(uint64(a.Holder), 36), a.Seats, a.TTL.Microseconds(), a.Now.Seat, int64(a.Now.Fence),
		int64(a.Now.Taint),
		flag(a.Leave), flag(a.Clean), int64(r.at()), strconv.FormatUint(a.Plan, 36), int64(a.Now.Since)).Int64Slice()
	if err != nil {
		return none, fmt.Errorf("redis: %w", err)
	}
	if len(values) != 5 || values[0] < -1 || values[0] >= int64(a.Seats) {
		return none, fmt.Errorf("redis: the answer about seats makes no sense: %d numbers that begin with %v",
			len(values), values[:min(5, len(values))])
	}
	if values[0] < 0 {
		return none, nil
	}
	return Tenancy{
		Seat: int(values[0]), Fence: ratelimit.Fence(values[1]), Taint: ratelimit.LedgerTime(values[2]), TTL: a.TTL,
		Agreed: values[3] == 1, Since: ratelimit.LedgerTime(values[4]),
	}, nil
}
