package ratelimit

import "time"

// StoreDeadline is the longest a decision waits for the store where its rule says
// nothing else ([Coordination.StoreDeadline]): less than Envoy's own default of 20 ms.
const StoreDeadline = 15 * time.Millisecond

// The pace of leases, from which bounds follow. Packages leasing and declare go by these.
const (
	// LeaseHorizon is the time that a lease should last that is sized by demand. Bounds assume that it is renewed at
	// half: a busy key costs a node at most a claim a second.
	LeaseHorizon = 2 * time.Second
	// ClaimBackOff is the least time between two claims of a key by one node, while no tokens are left and
	// some may come back.
	ClaimBackOff = 50 * time.Millisecond
	// LossPart is the divisor of a limit that gives what all nodes admit after a loss of data, until totals are stated.
	LossPart = 20
	// PlentyAbove is the divisor of the limit that gives the rest above which a late answer does not refuse:
	// on_store_failure decides.
	PlentyAbove = 2
	// PlentyPart is the divisor of the limit that gives the largest lease while there is plenty: while an eighth of
	// a fixed window's limit is free.
	PlentyPart = 20
	// RecallsPerSecond is the largest number of claims a second by recalls at one node. Each second, one
	// gives tokens back that others wait for. While this node waits itself, it claims each 2 ms for 10 ms.
	RecallsPerSecond = 7
)
