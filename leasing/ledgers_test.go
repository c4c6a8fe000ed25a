package leasing

import (
	"testing"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest"
)

// timedRedis is a ledger whose clock stands still and is moved by the test.
type timedRedis struct {
	*Redis
	now ledgerTime
}

func newTimedRedis(t testing.TB, s *redistest.Server) *timedRedis {
	client := s.Client()
	t.Cleanup(func() { client.Close() })
	m := &timedRedis{Redis: NewRedis(client, "t:"), now: ledgertest.Epoch}
	m.GoBy(func() ledgerTime { return m.now })
	return m
}
