package account

import "context"

// Prolonger is a ledger that can lose its data. Whoever has totals to tell of after a loss prolongs the learning, if it
// still goes on: until then, what looks unspent may be spent. It blocks at most until ctx is done.
type Prolonger interface {
	Prolong(ctx context.Context) error
}
