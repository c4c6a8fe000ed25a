package approx

import (
	"context"
	"sync"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Memory grants seats in this process: for tests and the simulator. It is safe
// for concurrent use and never waits.
type Memory struct {
	clock func() ratelimit.LedgerTime
	mu    sync.Mutex
	seats map[int]*seat   // guarded by mu
	last  ratelimit.Fence // guarded by mu
}

// NewMemory makes seats on the ledger's clock.
func NewMemory(clock func() ratelimit.LedgerTime) *Memory {
	return &Memory{clock: clock, seats: map[int]*seat{}}
}

// Sit implements [Seats].
func (m *Memory) Sit(_ context.Context, a Application) (Tenancy, error) {
	if err := a.valid(); err != nil {
		return none, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return sit(m.clock(), m.seats, &m.last, &a), nil
}

// Forget loses all data, like FLUSHALL.
func (m *Memory) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seats, m.last = map[int]*seat{}, 0
}
