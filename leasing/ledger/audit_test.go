package ledger

import (
	"slices"
	"testing"
)

// A stream lies in its account's slot, whatever the prefix.
func TestAuditStreams(t *testing.T) {
	for _, prefix := range []string{"", "p:", "{tag}", "a{tag}b", "half{"} {
		account := prefix + "minute|edge|k=v"
		stream := AuditStream(account)
		if got := AuditedAccount(stream); got != account {
			t.Errorf("%s is the stream of %s, read as of %s", stream, account, got)
		}
		if hashed(stream) != hashed(account) {
			t.Errorf("%s is hashed by %q, and %s by %q", stream, hashed(stream), account, hashed(account))
		}
	}
}

// hashed is what Redis Cluster hashes of a key (its specification, "Hash tags").
func hashed(key string) string {
	for i := range len(key) {
		if key[i] == '{' {
			for j := i + 1; j < len(key); j++ {
				if key[j] == '}' {
					if j > i+1 {
						return key[i+1 : j]
					}
					return key
				}
			}
			return key
		}
	}
	return key
}

// A ledger's clock that is set back within a window: what was booked later has an earlier
// time, and is what counts. (Seed 2559 of TestRedisAnswersAsMemoryDoes.)
func TestAuditAfterTheClockWentBack(t *testing.T) {
	event := func(kind string, at, fence, granted, spent int64) AuditEvent {
		return AuditEvent{
			Kind: kind, Rule: "r", Key: "k", Holder: "h1", Window: 7, Claimed: 7, Ends: 1000,
			Limit: 10, At: at, Fence: fence, Granted: granted, Spent: spent,
		}
	}
	events := []AuditEvent{
		event("grant", 200, 20, 3, 0), event("report", 210, 21, 3, 3), event("grant", 100, 22, 9, 3),
		event("expiry", 150, 22, 9, 3), event("final", 120, 0, 9, 8), event("grant", 200, 20, 3, 0),
	}
	for range 2 {
		if w := ReplayAudit(events); len(w) != 1 || w[0].Admitted != 9 {
			t.Errorf("%+v were admitted, want 9", w[0])
		}
		slices.Reverse(events)
	}
}
