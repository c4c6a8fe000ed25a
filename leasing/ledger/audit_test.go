package ledger

import (
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
