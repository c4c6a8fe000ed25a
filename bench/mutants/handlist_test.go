// Package mutants tests the tests: its bugs by hand are planted one at a time, and the tests of the core must find each.
//
// `make mutants` runs this hunt, and go-gremlins, which plants small faults in a package. Its survivors are in
// equivalent.txt where no test can find them. docs/explain/proof.md says how to handle another one.
package mutants

import "github.com/sluice-gate/sluice/bench/plant"

// byHand is a bug that a person has thought of.
type byHand plant.Bug

// Files of the lists below.
const (
	accounts = "leasing/account/account.go"
	spans    = "leasing/account/span.go"
	buckets  = "leasing/account/bucket.go"
	keeps    = "leasing/account/kept.go"
	part     = "leasing/internal/lease/part.go"
	clock    = "leasing/internal/lease/ledgerclock.go"
	seats    = "approx/seats.go"
	keeper   = "approx/keeper.go"
	mover    = "routing/handover.go"
	inbox    = "routing/inbox.go"
	fetches  = "routing/fetch.go"
	present  = "routing/presence.go"
	owns     = "routing/storeless.go"
	requests = "routing/request.go"
	owed     = "routing/arrears.go"
	undoes   = "routing/undo.go"
	serves   = "routing/serve.go"
)

// allByHand are important bugs that are easy to miss: wrong ideas, rather than slips. Those that histories must find
// are in bench/sim.
var allByHand = []byHand{
	// The ledger's side of a key.
	{"what is left of a part of a unit is spent", accounts, "used -= used % max(1, c.Unit)", "used -= 0"},
	{"the window before is rounded down", spans, "return (n + d - 1) / d", "return n / d"},
	{"a number that is none is read", "leasing/account/wire.go", "if n != math.Trunc(n) || math.Abs(n) > 1<<53", "if math.Abs(n) > 1<<60"},
	{"a bucket fills beside what is leased", buckets, "int64(burst-b.hand-b.old) * Micro", "int64(burst-b.hand) * Micro"},
	{"an ended lease counts as live", buckets, "	default:\n\t\treturn 0\n", "	default:\n"},
	{"a lease is over with its slot", buckets, "b.hand, b.old = 0, b.hand", "b.hand, b.old = 0, 0"},
	{"a part of a unit is spent", buckets, "level -= level % max(1, c.Unit)", "level -= 0"},
	{
		"what a bucket granted in vain comes back whole", "leasing/internal/lease/key.go", "e.Refund(max(0, e.vain-tokens(math.Ceil(min(refilled, float64(e.vain))))))",
		"e.Refund(max(0, e.vain-tokens(min(0, refilled))))",
	},
	{"what a bucket granted in vain comes back late", "leasing/internal/lease/key.go", "float64(now.Sub(claimed))", "float64(min(now.Sub(claimed), shortest))"},
	{"a refill is rounded down", "leasing/account/refill.go", "level + int64(added), int64(rest)", "level + int64(added), 0 * int64(rest)"},
	// A node's side of a key.
	{"a reset credits a report under way twice", "leasing/internal/lease/key.go", "max(0, e.Charged-underWay)", "max(0, e.Charged-0*underWay)"},
	{"what is granted for requests is not spent yet", "leasing/account/account.go", "r.taken, r.spent = r.taken+n, r.spent+used", "r.taken, r.spent = r.taken+n, r.spent+0*used"},
	{"a node does not notice that its registration may be over", "leasing/shard.go", "c.Val.Deadline = instant(s.ends.Load())", "c.Val.Deadline = instant(s.ends.Load()) + 1<<60"},
	{"an expired lease is spent", "leasing/internal/lease/part.go", "if now >= p.Deadline {\n\t\treturn 0", "if now < 0 {\n\t\treturn 0"},
	{"a draw is made where the record is not this node's total", part, "!p.mustClaim && p.Deadline == Never && p.Taken == p.booked", "p.Deadline == Never"},
	{"a lapsed claim is answered", part, "	p.inFlight = 0\n	p.mustClaim = true\n	p.unclaimed = 0\n", "	p.mustClaim = true\n	p.unclaimed = 0\n"},
	{"what was not answered is drawn on", part, "\t\tp.inFlight, p.mustClaim = 0, true", "\t\tp.inFlight = 0"},
	{"a refund stays in this node's hand", part, "p.Taken, p.Spent = p.Taken-n, p.Spent-n", "p.Spent -= n"},
	{"a denial is undone in part", "leasing/local/counter.go", "v.Charged+v.Debt", "v.Charged"},
	// Expiry, and its clock.
	{"the ledger's clock is taken to have stood still while the answer travelled", clock, "lo := nanos(from) - time.Duration(answered)", "lo := nanos(from) - time.Duration(sent)"},
	{"what is known of the ledger's clock does not age", clock, "by := max(0, now.Sub(c.At)) / MaxSkew", "by := max(0, now.Sub(c.At)) / MaxSkew / 1000"},
	// Local refusals.
	{"a store that is back is met by all callers at once", "leasing/lane/breaker.go", "(now < b.openTill || b.probing)", "now < b.openTill"},
	// Drift, and its seats.
	{"a new tenant uses the shares of one that crashed", seats, "return max(s.NotBefore, s.Expires)", "return s.NotBefore"},
	{"a seat that is given up with spending unconfirmed is as good as new", seats, "\t\t\tif a.Clean {\n\t\t\t\ts.Expires = 0\n\t\t\t}\n", "\t\t\ts.Expires = 0\n"},
	{"a tenancy that the ledger had forgotten comes back without its not_before", seats, "NotBefore: a.Now.NotBefore, Plan:", "Plan:"},
	{"a seat's fence does not count for who may renew it", seats, "case s != nil && s.Holder == a.Holder && s.Fence == a.Now.Fence && !a.Leave", "case s != nil && s.Holder == a.Holder && !a.Leave"},
	{"a tenant stops only when the ledger does", keeper, "until: sent.Add(SeatTTL - margin)", "until: sent.Add(SeatTTL)"},
	{"a tenancy is counted from its answer", keeper, "Tenancy: t, until: sent.Add(", "Tenancy: t, until: k.clock().Add("},
	{"a share is spent in the window in which the tenant before crashed", keeper, "begins < t.NotBefore", "begins < 0"},
	// Accounts that move, in order and once.
	{"a parcel that arrives twice is accepted twice", inbox, "if p.GetNumber() <= in.last {", "if p.GetNumber() < in.last {"},
	{"a parcel's receipt is forgotten before its sender has it", inbox, "if n < p.GetFirst() {", "if n <= p.GetNumber() {"},
	{"what a receipt refuses is not taken back", mover, "c.putBack(now, p, func(i int) bool { return refused[i] })", "c.putBack(now, p, func(int) bool { return false })"},
	{"what a receipt accepts is taken back, too", mover, "c.putBack(now, p, func(i int) bool { return refused[i] })", "c.putBack(now, p, func(int) bool { return true })"},
	{"a node accepts accounts that are not its own", inbox, "mine := c.view.Load().ring.Owner(ring.HashOf(m.Key)) == c.options.Addr\n", "mine := true\n"},
	{"a node says done while accounts are on their way", mover, "c.mover.state == walked && len(c.mover.underway) == 0", "c.mover.state == walked"},
	{"a node says done while it has accounts that are not its own", mover, "c.mover.state == walked && len(c.mover.underway) == 0", "len(c.mover.underway) == 0"},
	{"what was on its way to a node that died is lost", mover, "c.putBack(now, p, func(int) bool { return true })", "c.putBack(now, p, func(int) bool { return false })"},
	{"an account that comes back is not looked for by the walk", mover, "\t\t\tc.mover.once()\n\t\t}\n\t\ti++", "\t\t}\n\t\ti++"},
	{"a key is new although its account is on its way", fetches, "\tcase going != \"\":\n", "\tcase false:\n"},
	{"a key is new when the first of several says that it has no account", fetches, "case f.state != fetching, f.open > 0:", "case f.state != fetching:"},
	{"a key is new under a ring that others do not see yet", fetches, "f.soon = f.soon || c.clock().Sub(f.view.began) < disagree", "f.soon = f.soon || false"},
	{"a node that sees another ring says that it has no account", fetches, "case !c.local.Has(key) && v.digest == m.GetRing():", "case !c.local.Has(key):"},
	{"an owner that slept goes on to decide", owns, "!= c.options.Addr, c.lapsed(now), c.unconfirmed.Load():", "!= c.options.Addr, c.unconfirmed.Load():"},
	{"an owner that slept does not give its keys up", present, "\tc.quitRing()\n\tc.turn()\n", "\tc.turn()\n"},
	{"a node joins the ring before it has handed over what it had", present, "!c.looked || !c.clean() {", "!c.looked {"},
	{"a leaving node leaves its ring before the others have heard", present, "if now.Sub(c.left) < leaveWait {", "if false {"},
	{"a node is buried at the first silence", present, "m.owes()) && now.Sub(lastSeen) > TakeOver {", "m.owes()) && now.Sub(lastSeen) > TakeOver/10 {"},
	{"a node that an owner has not answered in time is charged there for a refusal", requests, "v.OverLimit || left && r.inStore() {", "left && r.inStore() {"},
	{"a fallback is undone at the owner, who was not charged", undoes, "\t\t\tc.undoAlone(now, &asks[i], &verdicts[i])\n", "\t\t\tc.undoStoreless(now, asks[i:i+1], verdicts[i:i+1])\n"},
	{"an ask for a key of another's waits where it came to", serves, "\t\t\tx.decided, x.status = true, notOwner\n", "\t\t\tx.again = now.Add(askAgain)\n"},
	// What owners book late.
	{"what was admitted in place of the owner is booked again and again", owed, "x.charge -= b.ask.Cost", "x.charge -= 0 * b.ask.Cost"},
	{"what was admitted in place of the owner is never booked", owed, "c.owe(&report, w, report.Cost)\n\t\tcase ratelimit.Charge", "c.owe(&report, w, 0*report.Cost)\n\t\tcase ratelimit.Charge"},
	{"a credit that may have arrived is sent again", owed, "b.ask.Kind == ratelimit.Release && call.sent && call.reply == nil", "false"},
	{"a credit of an ended window counts in the next", owed, "Cost: x.charge, Window: at.window}", "Cost: x.charge}"},
}
