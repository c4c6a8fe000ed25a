// Package holds makes and reads the text that a request carries from its answer to its end: its holds on each
// budget. A node writes it into the answer, and the gateway returns it when the response is done. Any node
// with the same key settles it: it books the cost less the hold, in the window in which the hold was charged.
//
// Guarantee: a hold credits at most the charge that a node of this fleet made for it, to the charged budget,
// and on one node once. A hold that is forged, cut, expired, of another budget or settled before credits
// nothing, and ends no process.
//
// Limits: a node keeps 500,000 to a million settled holds, and none from before its start, or before its clock was set
// back by a minute. An older hold counts as expired. A hold that is settled at two nodes, or at one before and after
// that, is credited twice. That requires answers of the service, whose readers could as well send refunds. A tag of
// four bytes binds a part of a hold to its budget: one of four billion guesses with an own hold matches another budget.
//
// A hold is a text of at most [MaxText] bytes, for all budgets of a request:
//
//	version (1)  instant (4)  nonce (6)  parts  MAC (12), as base64 for URLs
//	a part: tag of the budget (4)  amount (1 to 6, as a varint)
//
// The instant is in seconds, in the windows in which the budgets were charged, so that no window is written.
// Parts without room (more than six budgets with amounts below 2^28) are left out, and stay charged as held.
package holds
