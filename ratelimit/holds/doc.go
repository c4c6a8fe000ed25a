// Package holds makes and reads what a request carries from its answer to its end: how much of which budgets it
// holds. A node writes it into the answer, the gateway brings it back when the response is done, and any node that
// has the same key settles: it books the cost less what was held, in the window in which that was charged.
//
// Guarantee: a hold credits at most what a node of this fleet has charged for it, to the budget that was charged, and
// on one node once. What is forged, cut, expired, of another budget or settled before credits nothing, and ends no
// process.
//
// Limits: a node remembers 500,000 to a million settled holds, and none from before its start. A hold that is older
// than what it remembers counts as expired. A hold that is settled at two nodes, or at one before and after its
// restart, is credited twice: who can do that has read answers of the service, and could as well send it refunds. A
// tag of four bytes binds a part of a hold to its budget: of four billion tries with a hold of one's own, one is of
// another's.
//
// A hold is a text of at most [MaxText] bytes, for all budgets of a request:
//
//	version (1)  instant (4)  nonce (6)  parts  MAC (12), as base64 for URLs
//	a part: tag of the budget (4)  amount (1 to 6, as a varint)
//
// The instant is in seconds, in the windows in which the budgets were charged, so that no window is written. What does
// not fit (more than six budgets with amounts below 2^28) is left out, and stays charged as held.
package holds
