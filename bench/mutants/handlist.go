package main

// The core's files, for the lists below.
const (
	account = "leasing/ledger/account.go"
	grant   = "leasing/ledger/grant.go"
	records = "leasing/ledger/records.go"
	bucket  = "leasing/ledger/bucket.go"
	settle  = "leasing/ledger/settle.lua"
	held    = "leasing/internal/lease/held.go"
	lease   = "leasing/internal/lease/lease.go"
	answer  = "leasing/internal/lease/answer.go"
	next    = "leasing/internal/lease/next.go"
	share   = "leasing/internal/lease/share.go"
	clock   = "leasing/internal/lease/ledgerclock.go"
	till    = "leasing/ledger/till.go"
	draw    = "leasing/ledger/draw.go"
	draws   = "leasing/internal/lease/draw.go"
	seats   = "approx/seats.go"
	sit     = "approx/seats.lua"
	keeper  = "approx/keeper.go"
	mover   = "routing/handover.go"
	fetches = "routing/fetch.go"
	members = "routing/members.go"
	decides = "routing/decide.go"
)

// allByHand are faults that would matter and are easy to miss: ideas that
// somebody could have, rather than slips. Where two ledgers say the same, both
// are wrong.
var allByHand = []byHand{
	// Which claim counts.
	{"a claim that arrives twice is settled twice", []replacement{
		{account, "r != nil && c.Seq <= r.seq {", "r != nil && c.Seq < r.seq {"},
		{settle, "r and c.seq <= r[SEQ] then", "r and c.seq < r[SEQ] then"},
	}},
	{"a claim that was overtaken is answered as if it were the latest", []replacement{
		{account, "if c.Seq < r.seq || r.closed {", "if r.closed {"},
		{settle, "if c.seq < r[SEQ] or flag(r, 1) then", "if flag(r, 1) then"},
	}},
	{"a repeated claim is answered after its lease was reclaimed", []replacement{
		{account, "if c.Seq < r.seq || r.closed {", "if c.Seq < r.seq {"},
		{settle, "if c.seq < r[SEQ] or flag(r, 1) then", "if c.seq < r[SEQ] then"},
	}},
	{"a holder takes any answer for the answer to its latest claim", []replacement{
		{lease, "if g.Err != nil || g.Seq != l.Seq {", "if g.Err != nil {"},
		{answer, "if g.Seq != h.Lease.Seq {", "if false {"},
	}},

	// Draws.
	{"a draw does not look at what is charged", []replacement{
		{till, "units*unit - max(0, charged) - all*unit", "units*unit - all*unit"},
	}},
	{"a draw is taken with a fence that is renamed", []replacement{
		{till, " && now > ledgerTime(a.renamed)", ""},
		{draw, " && now > ledgerTime(numbers[15])", ""},
	}},
	{"a till stays behind when the clock goes back", []replacement{
		{account, "		a.placeAll(c)\n", ""},
		{settle, "local this, next = place(a.window), place(a.window + 1)", "local this, next = false, false"},
	}},
	{"a till that is booked late takes the place of the next window's lease", []replacement{
		{till, "	case r.window > w:\n", "	case r.window > w && false:\n"},
		{settle, "if r and r[WINDOW] > at then", "if false then"},
	}},
	{"a draw ahead has what is charged of this window forgotten", []replacement{
		{till, "r.granted > 0 && w == a.window, r.window != w && r.window == a.window:", "r.granted > 0 && w == a.window:"},
		{settle, "if r and here(r) and (at ~= a.window or fresh and r[GRANTED] > 0) then", "if r and here(r) and at == a.window and fresh and r[GRANTED] > 0 then"},
	}},
	{"who has forgotten what it had draws once more", []replacement{
		{till, "case r.window == w && d.fresh && r.granted > 0 && w == a.window, ", "case "},
		{settle, "(at ~= a.window or fresh and r[GRANTED] > 0)", "at ~= a.window"},
	}},
	{"a draw says nothing of the claims that it has overtaken", []replacement{
		{till, "r.seq = max(r.seq, d.seq-1)", "r.seq = max(r.seq, 1)"},
		{settle, "r[SEQ] = max(r[SEQ], seq - 1)", "r[SEQ] = max(r[SEQ], 1)"},
	}},
	{"a draw is booked that its holder had given up", []replacement{
		{till, "case r.window == w && d.seq < r.seq:", "case false:"},
		{settle, "elseif not (r and r[WINDOW] == at and seq < r[SEQ]) then", "else"},
	}},
	{"a claim ahead shuts the till of this window", []replacement{
		{till, " && a.target(c) == a.window &&", " &&"},
		{settle, "if drawable and at == a.window and", "if drawable and"},
	}},
	{"a limit's rest beyond whole units is drawn", []replacement{
		{till, "units*unit - max(0, charged) - all*unit", "c.Limit.Capacity() - max(0, charged) - all*unit"},
	}},
	{"a till is never shut", []replacement{
		{till, "a.shut = a.window", "_ = a.window"},
		{settle, "    a.shut = a.window\n", ""},
		{settle, "(capacity - fmod(capacity, ROOM_ABOVE)) / ROOM_ABOVE\n    or live > LEAST_SHARES and capacity >= UNITS_OF_TWO) then shut = w end", "0 and false) then shut = w end"},
	}},
	{"one draw after the other is sent and lost", []replacement{
		{draws, " || h.vain {", " {"},
	}},

	// Fences.
	{"a fence goes back when the ledger has lost its data", []replacement{
		{account, "a.fence = max(a.fence+1, ratelimit.Fence(a.now), min(c.Fence, MostFence)+1)", "a.fence++"},
		{settle, "a.fence = max(a.fence + 1, a.now, min(c.fence, MOST_FENCE) + 1)", "a.fence = a.fence + 1"},
	}},
	{"a holder's fence does not count for the next, where the ledger's clock is behind it", []replacement{
		{account, "a.fence = max(a.fence+1, ratelimit.Fence(a.now), min(c.Fence, MostFence)+1)", "a.fence = max(a.fence+1, ratelimit.Fence(a.now))"},
		{settle, "a.fence = max(a.fence + 1, a.now, min(c.fence, MOST_FENCE) + 1)", "a.fence = max(a.fence + 1, a.now)"},
	}},
	{"two claims in one microsecond get the same fence", []replacement{
		{account, "a.fence = max(a.fence+1, ratelimit.Fence(a.now), min(c.Fence, MostFence)+1)", "a.fence = max(a.fence, ratelimit.Fence(a.now), min(c.Fence, MostFence))"},
		{settle, "a.fence = max(a.fence + 1, a.now, min(c.fence, MOST_FENCE) + 1)", "a.fence = max(a.fence, a.now, min(c.fence, MOST_FENCE))"},
	}},
	{"a reclaimed lease keeps what it has not spent", []replacement{
		{account, "r.granted = min(c.Granted, c.Spent+c.Returned)", "r.granted = c.Granted"},
		{settle, "if void then r[GRANTED] = min(c.granted, c.spent + c.returned) end", ""},
	}},

	// A ledger that has lost its data.
	{"a ledger that has forgotten grants a quarter of the limit meanwhile", []replacement{
		{account, "RelearnShare = 20", "RelearnShare = 4"},
		{settle, "RELEARN_SHARE = 2000000, 20", "RELEARN_SHARE = 2000000, 4"},
	}},
	{"a ledger that has forgotten grants a twentieth to each, and not in all", []replacement{
		{grant, "\t\ta.relearned += lease\n", ""},
		{settle, "if learning then a.relearned = a.relearned + lease end", ""},
	}},
	{"each holder that tells its totals starts the twentieth anew", []replacement{
		{account, "\tif a.now >= a.relearn {\n\t\ta.relearned, a.born = 0, a.fence+1\n\t}\n\ta.relearn = t", "\ta.relearned, a.born = 0, a.fence+1\n\ta.relearn = t"},
		{settle, "if a.now >= a.relearn then a.relearned, a.born = 0, a.fence + 1 end", "a.relearned, a.born = 0, a.fence + 1"},
	}},
	{"what a young ledger granted to a claim that did not know of the loss is taken", []replacement{
		{"leasing/loss.go", "return !in.Young(at) || known.ID == in.ID && known.Learning > at", "return true"},
	}},
	{"only leases that still have tokens are told again", []replacement{
		{held, "if h.underWay != nil || now < h.Pause || t.UsedUp && !usedUp {", "if h.underWay != nil || now < h.Pause || usedUp {"},
	}},

	// Expiry, and whose clock.
	{"a lease is counted from its answer, and not from its claim", []replacement{
		{answer, "h.Lease.Apply(sent, &fl.Claim, g, Margin(", "h.Lease.Apply(now, &fl.Claim, g, Margin("},
	}},
	{"no margin for what two clocks may differ by", []replacement{
		{lease, "return ttl / 20", "return 0"},
	}},
	{"a lease that is reclaimed eagerly has the margin of others", []replacement{
		{lease, "return ttl / 4", "return ttl / 20"},
	}},
	{"the ledger reclaims a lease half a second before it has expired", []replacement{
		{grant, "r.closed || a.now < r.expires ||", "r.closed || a.now.Add(500*time.Millisecond) < r.expires ||"},
		{settle, "and not flag(r, 1) and a.now >= r[EXPIRES] then\n", "and not flag(r, 1) and a.now + 500000 >= r[EXPIRES] then\n"},
	}},
	{"leases that were not claimed as eager are reclaimed, too", []replacement{
		{grant, "if !r.eager || r.closed ||", "if r.closed ||"},
		{settle, "if flag(r, 8) and here(r) and not flag(r, 1) and a.now >=", "if here(r) and not flag(r, 1) and a.now >="},
	}},
	{"the ledger's clock is taken to have stood still while the answer travelled", []replacement{
		{clock, "lo := nanos(t) - time.Duration(answered)", "lo := nanos(t) - time.Duration(sent)"},
	}},
	{"what is known of the ledger's clock does not age", []replacement{
		{clock, "by := max(0, now.Sub(c.At)) / MaxSkew", "by := max(0, now.Sub(c.At)) / MaxSkew / 1000"},
	}},

	// The turn of a window.
	{"the next window's lease is spent when its window may have begun", []replacement{
		{next, "Start: there.SurelyBy(now, begins)", "Start: there.NotBefore(now, begins)"},
	}},
	{"this window's lease is spent until the next has certainly begun", []replacement{
		{next, "Over: there.NotBefore(now, begins)", "Over: there.SurelyBy(now, begins)"},
	}},
	{"in doubt about the window, a request is charged to the next one only", []replacement{
		{next, "\th.Lease.Spent += a.Cost // at most what is unspent\n", ""},
	}},
	{"a request that takes 20 ms to be sure of the window waits for that", []replacement{
		{next, "DoubtWait = 2 * time.Millisecond", "DoubtWait = 20 * time.Millisecond"},
	}},
	{"a request is undone in a window that did not pay for it", []replacement{
		{lease, "if v.Window != l.Window {\n\t\treturn", "if v.Window > l.Window {\n\t\treturn"},
	}},
	{"what an outage admitted in the last window is charged to this one", []replacement{
		{"leasing/internal/lease/unasked.go", "if h.UnplacedAt > h.Lease.Reset.Add(-h.Rule.Limit.WindowLength(h.Lease.Window)) ||", "if h.UnplacedAt > 0 ||"},
	}},
	{"a sliding window forgets what a holder may have spent while its report travelled", []replacement{
		{account, "a.prev+max(c.Spent, c.Granted-c.Returned))", "a.prev+c.Spent)"},
		{settle, "a.prev + max(c.spent, c.granted - c.returned))", "a.prev + c.spent)"},
	}},

	// Refusing without asking.
	{"a lease asks again for each request that is more than there is", []replacement{
		{lease, "Grantable(g)+1 // whatever", "c.Limit.Capacity()+1 // whatever"},
	}},
	{"a lease refuses although others hold tokens that they may return", []replacement{
		{lease, "g.RetryAfter > 0 && g.Outstanding == 0 {", "g.RetryAfter > 0 {"},
	}},
	{"a refund does not end the time for which requests are refused", []replacement{
		{lease, "\tl.Spent -= n\n\tl.Retry = 0\n", "\tl.Spent -= n\n"},
	}},
	{"a store that is back is met by all callers at once", []replacement{
		{"leasing/breaker.go", "(now < b.openTill || b.probing)", "now < b.openTill"},
	}},

	// Buckets.
	{"a bucket takes back what was granted to be spent at once", []replacement{
		{bucket, "\tif r.direct {\n\t\tn += max(0, r.granted+r.inflight-received)\n\t}\n", ""},
		{settle, "  if flag(r, 4) then lost = lost + max(0, r[GRANTED] + r[INFLIGHT] - received) end\n", ""},
	}},
	{"a bucket refills for the time that an expired lease held it back", []replacement{
		{bucket, "if a.now < r.expires && r.outstanding() > 0 {", "if false {"},
		{settle, "if a.now < r[EXPIRES] and outstanding(r) > 0 then step =", "if false then step ="},
	}},

	// Drift, and who may.
	{"a confirmed grant frees a share that the limit did not have", []replacement{
		{grant, "confirmed = max(0, drift-max(0, -a.free(c, at)))", "confirmed = drift"},
		{settle, "confirmed = max(0, drift - max(0, -free(at)))", "confirmed = drift"},
	}},
	{"a new tenant uses the shares of one that crashed", []replacement{
		{seats, "return s.expires, true", "return s.taint, true"},
		{sit, "(now >= s[EXPIRES] and s[EXPIRES])", "(now >= s[EXPIRES] and s[TAINT])"},
	}},
	{"a seat that is given up with spending unconfirmed is as good as new", []replacement{
		{seats, "\t\t\tif !a.Clean {\n\t\t\t\ts.taint = now\n\t\t\t}\n", ""},
		{sit, "clean and s[TAINT] or now", "s[TAINT]"},
	}},
	{"a tenancy that the ledger had forgotten comes back without its taint", []replacement{
		{seats, "taint: min(a.Now.Taint, now), plan:", "plan:"},
		{sit, "{ holder, fence, 0, math.min(taint, now), plan,", "{ holder, fence, 0, 0, plan,"},
	}},
	{"a seat's fence does not count for who may renew it", []replacement{
		{seats, "case s != nil && s.holder == a.Holder && s.fence == a.Now.Fence && !a.Leave", "case s != nil && s.holder == a.Holder && !a.Leave"},
		{sit, "local mine = s and s[1] == holder and s[FENCE] == fence", "local mine = s and s[1] == holder"},
	}},
	{"a tenant stops only when the ledger does", []replacement{
		{keeper, "until: sent.Add(SeatTTL - margin)", "until: sent.Add(SeatTTL)"},
	}},
	{"a tenancy is counted from its answer", []replacement{
		{keeper, "Tenancy: t, until: sent.Add(", "Tenancy: t, until: k.clock().Add("},
	}},
	{"a share is spent in the window in which the tenant before crashed", []replacement{
		{keeper, "begins < t.Taint", "begins < 0"},
	}},
	{"what a share spent of a bucket is not passed on to its heir", []replacement{
		{share, "if share > 0 && of.Heir != h.heir && a.Rule", "if false && a.Rule"},
	}},
	{"a share of a sliding window does not count what was drifted in the one before", []replacement{
		{share, "h.Carried, h.Before = l.Drifted(),", "h.Carried, h.Before = 0,"},
	}},

	// Accounts that move, in order and once.
	{"a parcel that arrives twice is taken in twice", []replacement{
		{mover, "if p.GetNumber() <= in.last {", "if p.GetNumber() < in.last {"},
	}},
	{"a parcel's receipt is forgotten before its sender has it", []replacement{
		{mover, "if n < p.GetFirst() {", "if n <= p.GetNumber() {"},
	}},
	{"what a receipt refuses is not taken back", []replacement{
		{mover, "c.putBack(now, p, func(i int) bool { return refused[i] })", "c.putBack(now, p, func(int) bool { return false })"},
	}},
	{"what a receipt accepts is taken back, too", []replacement{
		{mover, "c.putBack(now, p, func(i int) bool { return refused[i] })", "c.putBack(now, p, func(int) bool { return true })"},
	}},
	{"a node takes in accounts that are not its own", []replacement{
		{mover, "mine := c.view.Load().ring.Owner(ring.HashOf(m.Key)) == c.options.Addr\n", "mine := true\n"},
	}},
	{"a node says done while accounts are on their way", []replacement{
		{mover, "c.mover.left == 0 && len(c.mover.underway) == 0", "c.mover.left == 0"},
	}},
	{"a node says done while it has accounts that are not its own", []replacement{
		{mover, "c.mover.left == 0 && len(c.mover.underway) == 0", "len(c.mover.underway) == 0"},
	}},
	{"what was on its way to a node that died is lost", []replacement{
		{mover, "c.putBack(now, p, func(int) bool { return true })", "c.putBack(now, p, func(int) bool { return false })"},
	}},
	{"an account that comes back is not looked for by the walk", []replacement{
		{mover, "\t\t\tc.mover.mark(c.local.Part(m.Key))\n\t\t}\n\t\ti++", "\t\t}\n\t\ti++"},
	}},
	{"a key is new although its account is on its way", []replacement{
		{fetches, "going == from {\n\t\tto.flush()\n\t\treturn wire.Found_COMING\n\t} else if going != \"\" {\n\t\treturn wire.Found_ELSEWHERE\n\t}", "going == from {\n\t\tto.flush()\n\t\treturn wire.Found_COMING\n\t}"},
	}},
	{"a key is new when the first of several says that it has no account", []replacement{
		{fetches, "\tcase f.open > 0:\n", ""},
	}},
	{"a key is new under a ring that others do not see yet", []replacement{
		{fetches, "f.soon = f.soon || c.clock().Sub(f.view.began) < disagree", "f.soon = f.soon || false"},
	}},
	{"a node that sees another ring says that it has no account", []replacement{
		{fetches, "case !has && (v.print == m.GetRing() || !v.mine):", "case !has:"},
	}},
	{"an owner that slept goes on to decide", []replacement{
		{decides, "case c.lapsed(now), c.unheard.Load():", "case c.unheard.Load():"},
	}},
	{"an owner that slept does not give its keys up", []replacement{
		{members, "\tc.expired.Store(true)\n\tc.quitRing()\n", "\tc.expired.Store(true)\n"},
	}},
	{"a node joins the ring before it has handed over what it had", []replacement{
		{members, "!c.looked || !c.clean() {", "!c.looked {"},
	}},
	{"a leaving node leaves its ring before the others have heard", []replacement{
		{members, "if now.Sub(c.leftAt) < leaveTells {", "if false {"},
	}},
	{"a node is buried at the first silence", []replacement{
		{members, "(m.alive || m.holds) && now.Sub(heard) > TakeOver {", "(m.alive || m.holds) && now.Sub(heard) > TakeOver/10 {"},
	}},
	{"a node that an owner has not answered in time is charged there for a refusal", []replacement{
		{decides, "\tif w.verdicts[i].OverLimit && !w.remote {\n\t\tw.regret(now, i)\n\t}\n", ""},
	}},
	{"a fallback is undone at the owner, who was not charged", []replacement{
		{decides, "case v.Source == ratelimit.FromFallback && v.Reason == ratelimit.FallbackPeer:\n\t\tc.undoFallback(now, a, v)\n", ""},
	}},
	{"an ask that was forwarded is forwarded again", []replacement{
		{decides, "\tcase w.remote:\n\t\ts.status = notOwner\n\t\treturn true\n\tcase !w.inStore():", "\tcase !w.inStore():"},
	}},
}
