package rlqs

import "sync/atomic"

// Stats count the work of a node since its start. The first three are the present state instead. The zero value
// is ready. All fields may be read at any time.
type Stats struct {
	// open now
	Streams atomic.Int64 `metric:"sluice_rlqs_streams"`
	// that they have subscribed to
	Buckets atomic.Int64 `metric:"sluice_rlqs_buckets"`
	// tokens charged, and not known to be spent nor in a lease that is in use
	Unproven atomic.Int64 `metric:"sluice_rlqs_unproven_tokens"`

	// of single buckets
	Reports atomic.Uint64 `metric:"sluice_rlqs_reports_total"`
	// requests, as reported
	Allowed atomic.Uint64 `metric:"sluice_rlqs_requests_total,decision=allowed"`
	Denied  atomic.Uint64 `metric:"sluice_rlqs_requests_total,decision=denied"`
	// answers sent
	Messages atomic.Uint64 `metric:"sluice_rlqs_messages_total"`
	// leases sent
	Assignments atomic.Uint64 `metric:"sluice_rlqs_assignments_total"`
	// buckets that Envoys must drop
	Abandoned atomic.Uint64 `metric:"sluice_rlqs_abandoned_total"`
	// tokens
	Granted atomic.Uint64 `metric:"sluice_rlqs_tokens_total,kind=granted"`
	// tokens given back, because no Envoy can spend them any more
	Credited atomic.Uint64 `metric:"sluice_rlqs_tokens_total,kind=credited"`
	// tokens of buckets that were not spent, and are not given back
	Forgone atomic.Uint64 `metric:"sluice_rlqs_tokens_total,kind=forgone"`
	// by estimate
	LostReports atomic.Uint64 `metric:"sluice_rlqs_reports_lost_total"`
	// tokens that Envoys let pass and cannot have had
	Excess atomic.Uint64 `metric:"sluice_rlqs_tokens_total,kind=excess"`
	// tokens charged to a second window, because their leases may last into it
	Carried atomic.Uint64 `metric:"sluice_rlqs_tokens_total,kind=carried"`
	// tokens that were charged beyond the limit, because Envoys may have spent them
	Uncovered atomic.Uint64 `metric:"sluice_rlqs_tokens_total,kind=uncovered"`
	// streams and buckets beyond the bounds
	Refused atomic.Uint64 `metric:"sluice_rlqs_refused_total,reason=bound"`
	// streams cut because they did not read their answers
	Stuck atomic.Uint64 `metric:"sluice_rlqs_refused_total,reason=stuck"`
	// reports of buckets whose rules RLQS cannot serve
	Unserved atomic.Uint64 `metric:"sluice_rlqs_refused_total,reason=rule"`
}
