package rlqs

import "sync/atomic"

// Stats count the work of a node since its start. The first three are the present state instead. The zero value
// is ready. All fields may be read at any time.
type Stats struct {
	Streams  atomic.Int64 // open now
	Buckets  atomic.Int64 // that they have subscribed to
	Unproven atomic.Int64 // tokens charged, and not known to be spent nor in a lease that is in use

	Reports     atomic.Uint64 // of single buckets
	Allowed     atomic.Uint64 // requests, as reported
	Denied      atomic.Uint64
	Messages    atomic.Uint64 // answers sent
	Assignments atomic.Uint64 // leases sent
	Abandoned   atomic.Uint64 // buckets that Envoys must drop
	Granted     atomic.Uint64 // tokens
	Credited    atomic.Uint64 // tokens given back, because no Envoy can spend them any more
	Forgone     atomic.Uint64 // tokens of buckets that were not spent, and are not given back
	LostReports atomic.Uint64 // by estimate
	Excess      atomic.Uint64 // tokens that Envoys let pass and cannot have had
	Carried     atomic.Uint64 // tokens charged to a second window, because their leases may last into it
	Uncovered   atomic.Uint64 // tokens that were charged beyond the limit, because Envoys may have spent them
	Refused     atomic.Uint64 // streams and buckets beyond the bounds
	Stuck       atomic.Uint64 // streams cut because they did not read their answers
	Unserved    atomic.Uint64 // reports of buckets whose rules RLQS cannot serve
}
