package ledgertest

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The ledgers that are no store's do what those on stores do: in memory, and in Redis.
func TestLedgers(t *testing.T) {
	now := func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) }
	for name, start := range map[string]func(*testing.T) func(*testing.T) account.Ledger{
		"memory": func(*testing.T) func(*testing.T) account.Ledger {
			m := account.NewMemoryStore(now)
			return func(*testing.T) account.Ledger { return Node(m) }
		},
		"redis": func(t *testing.T) func(*testing.T) account.Ledger {
			client := redistest.Start(t).Client()
			t.Cleanup(func() { client.Close() })
			return func(t *testing.T) account.Ledger {
				l, err := account.NewRedis(client, "t:")
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			Ledger(t, start(t))
		})
	}
}
