package leasing

import (
	"testing"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// timedRedis is a ledger whose clock stands still and is moved by the test.
type timedRedis struct {
	*ledger.Redis
	now ledgerTime
}

func newTimedRedis(t testing.TB, s *redistest.Server) *timedRedis {
	client := s.Client()
	t.Cleanup(func() { client.Close() })
	m := &timedRedis{Redis: ledger.NewRedis(client, "t:"), now: ledgertest.Epoch}
	m.GoBy(func() ledgerTime { return m.now })
	return m
}

var (
	perMinute100 = ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100}
	sliding100   = ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 100}
	bucket100    = ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 60, Burst: 100} // one a second
)
