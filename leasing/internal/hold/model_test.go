package hold

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// model is the ledger as a dumb model: one key, its accounts by window.
type model struct {
	limit    ratelimit.Limit
	accounts map[window]*modelAccount
	kept     map[window]*modelAccount // an older copy
	offset   time.Duration            // of its clock
	epoch    ratelimit.Epoch

	// Usage that no ledger has, for the bounds.
	really   map[modelHolder]tokens // spent by a holder
	credited map[window]tokens      // of that, what was credited as not spent
	cutBack  map[window]tokens
	expired  map[window]int
	told     map[modelTold]bool
}

type modelHolder struct {
	window window
	holder ratelimit.Holder
}

type modelTold struct {
	modelHolder
	epoch uint64
}

type modelAccount struct {
	sum, learned tokens
	learns       ledgerTime
	records      map[ratelimit.Holder]*modelRecord
}

type modelRecord struct {
	taken, spent tokens
	seq          uint64
	expires      ledgerTime // 0: never; -1: it was credited
}

func newModel(limit ratelimit.Limit) *model {
	return &model{
		limit: limit, accounts: map[window]*modelAccount{}, epoch: ratelimit.Epoch{ID: 1}, really: map[modelHolder]tokens{},
		credited: map[window]tokens{}, cutBack: map[window]tokens{}, expired: map[window]int{}, told: map[modelTold]bool{},
	}
}

func (m *model) time(now instant) ledgerTime {
	return ledgerTime((time.Duration(now) + m.offset) / time.Microsecond)
}

func (m *model) account(w window, now instant) *modelAccount {
	for x := range m.accounts {
		if m.time(now) >= m.limit.WindowEnd(x+1) {
			delete(m.accounts, x)
			m.expired[x]++
		}
	}
	a := m.accounts[w]
	if a == nil {
		a = &modelAccount{records: map[ratelimit.Holder]*modelRecord{}}
		m.accounts[w] = a
	}
	return a
}

func (a *modelAccount) record(h ratelimit.Holder) *modelRecord {
	r := a.records[h]
	if r == nil {
		r = &modelRecord{}
		a.records[h] = r
	}
	return r
}

// before is what still counts of the window before.
func (m *model) before(w window, now instant) tokens {
	if m.limit.Algorithm != ratelimit.SlidingWindow {
		return 0
	}
	begins, length := m.limit.WindowEnd(w-1), m.limit.WindowEnd(w)-m.limit.WindowEnd(w-1)
	t := m.time(now)
	if t < begins { // it has not begun: all of the limit may still be used before
		return m.limit.Capacity()
	}
	a := m.accounts[w-1]
	if a == nil || t >= begins+length {
		return 0
	}
	rest := tokens(begins + length - t)
	return (max(0, a.sum)*rest + tokens(length) - 1) / tokens(length)
}

func (m *model) settle(c *account.Claim, now instant) account.Grant {
	if c.Kind == account.Draws {
		a := m.account(c.Window, now)
		r := a.record(c.Holder)
		a.sum += c.Want
		r.taken += c.Want
		return account.Grant{Sum: a.sum + m.before(c.Window, now), Total: r.taken, At: m.time(now), InHand: -1}
	}
	return m.claim(c, now)
}

func (m *model) claim(c *account.Claim, now instant) account.Grant {
	a, t := m.account(c.Window, now), m.time(now)
	r := a.record(c.Holder)
	if c.Seq <= r.seq {
		return account.Grant{Err: account.ErrOvertaken}
	}
	learn := ledgerTime(account.Learn / time.Microsecond)
	if r.taken < c.Taken && r.expires != -1 {
		a.learns = max(a.learns, t+learn)
	}
	a.learns = min(t+learn, max(a.learns, c.Learning))
	total := max(c.Taken, c.Spent)
	lowered := max(0, r.taken-total)
	a.sum += total - r.taken
	cut := tokens(0)
	if a.sum < 0 && t >= a.learns {
		cut = min(-a.sum, lowered)
		a.sum, total = a.sum+cut, total+cut
		m.cutBack[c.Window] += cut
	}
	*r = modelRecord{taken: total, spent: c.Spent + cut, seq: c.Seq}
	if c.Eager() {
		r.expires = t + ledgerTime(c.TTL/time.Microsecond)
	}
	m.told[modelTold{modelHolder{c.Window, c.Holder}, m.epoch.ID}] = true
	used := max(0, a.sum) + m.before(c.Window, now)
	free := c.Limit.Capacity() - used
	if c.Eager() && free < c.Need {
		for h, x := range a.records {
			if x != r && x.expires > 0 && t > x.expires {
				a.sum -= x.taken - x.spent
				free += x.taken - x.spent
				m.credited[c.Window] += max(0, m.really[modelHolder{c.Window, h}]-x.spent)
				x.taken, x.expires = x.spent, -1
			}
		}
	}
	if t < a.learns {
		free = min(free, max(1, c.Limit.Capacity()/account.LearnPart)-a.learned)
	}
	grant := max(0, min(free, c.Want, max(c.Need, free/tokens(max(1, c.Share)))))
	if t < a.learns {
		a.learned += grant
	}
	a.sum, r.taken = a.sum+grant, r.taken+grant
	hand := tokens(0)
	for _, x := range a.records {
		if x != r {
			hand += max(0, x.taken-x.spent)
		}
	}
	return account.Grant{
		Granted: grant, Sum: max(0, a.sum) + m.before(c.Window, now), Total: r.taken, Cut: cut, At: t, Learning: a.learns, InHand: hand,
	}
}

// lose has it begin a new epoch, with nothing or with an older copy.
func (m *model) lose(whole bool, now instant) {
	m.accounts = copied(m.kept)
	if whole {
		m.accounts = map[window]*modelAccount{}
	}
	m.epoch = ratelimit.Epoch{ID: m.epoch.ID + 1, Learning: m.time(now) + ledgerTime(account.Learn/time.Microsecond)}
	clear(m.told)
}

func copied(all map[window]*modelAccount) map[window]*modelAccount {
	c := map[window]*modelAccount{}
	for w, a := range all {
		b := *a
		b.records = map[ratelimit.Holder]*modelRecord{}
		for h, r := range a.records {
			x := *r
			b.records[h] = &x
		}
		c[w] = &b
	}
	return c
}
