package approx

import (
	"context"
	"sync"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Memory grants seats in a record in this process, for tests and the simulator. It is safe for concurrent use.
type Memory struct {
	clock   func() ratelimit.LedgerTime
	mu      sync.Mutex
	data    []byte // guarded by mu, like version
	version uint64
}

// NewMemory makes seats on the ledger's clock.
func NewMemory(clock func() ratelimit.LedgerTime) *Memory { return &Memory{clock: clock} }

// Sit implements [Seats]. Its lock makes the record's load and save one step, so no try fails.
func (m *Memory) Sit(ctx context.Context, a Application) (Tenancy, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return NewStored(m).Sit(ctx, a)
}

// Load implements [Cell], under the lock of Sit.
func (m *Memory) Load(context.Context) ([]byte, uint64, ratelimit.LedgerTime, error) {
	return m.data, m.version, m.clock(), nil
}

// Save implements [Cell], like Load.
func (m *Memory) Save(_ context.Context, version uint64, data []byte) (bool, error) {
	if version != m.version {
		return false, nil
	}
	m.data, m.version = data, version+1
	return true, nil
}

// Forget loses all data, like FLUSHALL.
func (m *Memory) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data, m.version = nil, 0
}
