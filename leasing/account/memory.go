package account

import (
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Memory is a ledger in this process: for embedded use, for owners, and for the simulator. It is safe for concurrent
// use, blocks only on its own short locks, and allocates for new accounts and holders. It has a maximum of accounts:
// claims of further accounts fail with [ErrFull], and no account in use is dropped.
type Memory struct {
	clock  func() ratelimit.LedgerTime
	seed   maphash.Seed
	shards []memoryShard
	// OnRecall, if set before the first claim, is called for each recall. No lock is held.
	OnRecall func(holder ratelimit.Holder, key string, window ratelimit.Window)
	// OnEvent, if set before the first claim, is called for each event of audited rules, likewise.
	OnEvent func(*Event)

	mu    sync.Mutex
	epoch ratelimit.Epoch // guarded by mu
}

// name identifies an account; its window is 0 for a bucket.
type name struct {
	key    string
	window ratelimit.Window
}

type memoryShard struct {
	mu       sync.Mutex
	accounts map[name]*kept // guarded by mu
	// overrides are by key; ended ones are dropped with accounts. Guarded by mu.
	overrides map[string]*Overridden
	most      int
	sweep     int     // guarded by mu; number of accounts that starts the next sweep
	oldest    instant // guarded by mu; the earliest end of the accounts of the last sweep
	_         [32]byte
}

// kept is an account, or a bucket's, and the time from which it may be dropped.
type kept struct {
	account
	*bucket
	over instant
}

const memoryShards = 16

// NewMemory makes a ledger of about maxAccounts accounts at most. It reads clock once for each Settle. It begins with
// an epoch that does not learn.
func NewMemory(maxAccounts int, clock func() ratelimit.LedgerTime) *Memory {
	m := &Memory{clock: clock, seed: maphash.MakeSeed(), epoch: ratelimit.Epoch{ID: 1, Began: clock()}}
	m.shards = make([]memoryShard, min(memoryShards, max(1, maxAccounts/memoryShards)))
	for i := range m.shards {
		m.shards[i].accounts, m.shards[i].overrides = map[name]*kept{}, map[string]*Overridden{}
		m.shards[i].most = max(1, (maxAccounts+len(m.shards)-1)/len(m.shards))
	}
	return m
}

// Predictable makes an unused ledger do the same in every run: the time when ended accounts are dropped depends on
// the size of a shard, so this uses one shard.
func (m *Memory) Predictable() *Memory {
	m.shards[0].most *= len(m.shards)
	m.shards = m.shards[:1]
	return m
}

// Settle implements [Ledger]. All claims are settled at one instant.
func (m *Memory) Settle(
	_ context.Context, claims []Claim, grants []Grant,
) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	now := m.clock()
	for i := range claims {
		grants[i] = m.settle(now, &claims[i])
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// A learning that ends later began before the clock was set back.
	m.epoch.Learning = min(m.epoch.Learning, now.Add(Learn))
	return m.epoch, now, nil
}

func (m *Memory) settle(now instant, c *Claim) Grant {
	if err := check(c); err != nil {
		return Grant{Err: err}
	}
	var t told
	own := *c
	c = &own
	g := m.shard(c.Key).settle(now, c, &t)
	if m.OnRecall != nil {
		for _, h := range t.asked {
			m.OnRecall(h, c.Key, c.Window)
		}
	}
	if c.Audit != "" && m.OnEvent != nil {
		for i := range t.expired {
			m.OnEvent(&t.expired[i])
		}
		e := NewEvent(c, &g)
		m.OnEvent(&e)
	}
	return g
}

// told is the recalls and events of a claim.
type told struct {
	asked   []ratelimit.Holder
	expired []Event
}

// shard has all accounts of a key.
func (m *Memory) shard(key string) *memoryShard {
	return &m.shards[maphash.String(m.seed, key)%uint64(len(m.shards))]
}

// settle settles a claim, and sets its limit to the one that judged it.
func (s *memoryShard) settle(now instant, c *Claim, t *told) Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, own, at := s.overrides[c.Key], c.Limit, spanOf(&c.Limit, c.Window)
	*c = r.judge(now, *c)
	if !at.kept(now) {
		return Grant{Err: ErrOver}
	}
	k := s.findOrAddLocked(now, name{c.Key, c.Window})
	if k == nil {
		return Grant{Err: ErrFull}
	}
	g := k.settle(now, c, &own, &at, s.accounts[name{c.Key, c.Window - 1}], t)
	g.override(r, &c.Limit)
	return g
}

// settle settles a claim of the account at an instant. own is the limit without the override. was is the previous
// window's account, or nil.
func (k *kept) settle(now instant, c *Claim, own *ratelimit.Limit, at *span, was *kept, t *told) Grant {
	if c.Window == 0 {
		if k.bucket == nil {
			k.bucket = &bucket{}
		}
		g := k.bucket.claim(now, c)
		k.over = max(k.over, k.full(&c.Limit, own)) // a node that has not read a refund still states its total
		return g
	}
	k.over = max(k.over, at.over)
	sum := tokens(0)
	if was != nil {
		sum = was.sum
	}
	before := at.before(now, &c.Limit, sum)
	if c.Kind == Draws {
		return k.draw(now, c, before)
	}
	if c.Limit.Carries {
		before = was.debt(now, c, at)
	}
	var over []ratelimit.Holder
	if c.Audit != "" {
		over = k.account.records.over(now)
	}
	fence := k.account.fence
	g := k.account.claim(now, c, before, func(h ratelimit.Holder) { t.asked = append(t.asked, h) })
	for _, h := range over {
		if r := k.account.records.find(h); r.expires == closed {
			g := Grant{Total: r.spent, Sum: g.Sum - g.Granted, Fence: fence, At: now}
			t.expired = append(t.expired, expiry(h, NewEvent(c, &g)))
		}
	}
	return g
}

// debt is the previous window's excess over the limit; below 0: it is unknown, or no longer counts.
func (k *kept) debt(now instant, c *Claim, at *span) tokens {
	if k == nil || now >= at.ends {
		return -1
	}
	return max(0, k.sum-c.Limit.Capacity())
}

// findOrAddLocked returns nil if there is no room for another account.
func (s *memoryShard) findOrAddLocked(now instant, n name) *kept {
	k := s.accounts[n]
	if k != nil {
		return k
	}
	if len(s.accounts) >= min(s.sweep, s.most) && now >= s.oldest {
		s.sweepLocked(now)
	}
	if len(s.accounts) >= s.most {
		return nil
	}
	k = &kept{}
	s.accounts[n] = k
	return k
}

// sweepLocked drops ended accounts. The next sweep is at twice the number, so that a claim pays for few others.
func (s *memoryShard) sweepLocked(now instant) {
	oldest := lastTime
	maps.DeleteFunc(s.accounts, func(_ name, k *kept) bool {
		if now < k.over {
			oldest = min(oldest, k.over)
		}
		return now >= k.over
	})
	maps.DeleteFunc(s.overrides, func(_ string, r *Overridden) bool { return now >= r.Until() })
	s.sweep, s.oldest = max(64, 2*len(s.accounts)), oldest
	if len(s.accounts) < s.most {
		s.oldest = 0
	}
}

// Accounts returns the number of accounts, including ended ones that are not dropped yet.
func (m *Memory) Accounts() int {
	n := 0
	for i := range m.shards {
		m.shards[i].mu.Lock()
		n += len(m.shards[i].accounts)
		m.shards[i].mu.Unlock()
	}
	return n
}

// Copy is a copy of the data, as on a replica or a disk. It is another ledger.
func (m *Memory) Copy() *Memory {
	other := &Memory{clock: m.clock, seed: m.seed, shards: make([]memoryShard, len(m.shards))}
	for i := range m.shards {
		from, to := &m.shards[i], &other.shards[i]
		from.mu.Lock()
		to.most, to.accounts = from.most, make(map[name]*kept, len(from.accounts))
		for n, k := range from.accounts {
			to.accounts[n] = k.copied()
		}
		to.overrides = maps.Clone(from.overrides)
		from.mu.Unlock()
	}
	return other
}

func (k *kept) copied() *kept {
	c := *k
	c.account.records = slices.Clone(k.account.records)
	if k.bucket != nil {
		b := *k.bucket
		b.records = slices.Clone(b.records)
		c.bucket = &b
	}
	return &c
}

// Lose continues with an older copy of the data, or without data if it is nil, as after a failover or FLUSHALL.
// Another epoch begins, with this id, and the ledger learns. The copy belongs to the ledger from then on.
func (m *Memory) Lose(older *Memory, id uint64) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		if s.accounts, s.overrides = map[name]*kept{}, map[string]*Overridden{}; older != nil {
			s.accounts, s.overrides = older.shards[i].accounts, maps.Clone(older.shards[i].overrides)
		}
		s.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.clock()
	m.epoch = ratelimit.Epoch{ID: id, Began: at, Learning: at.Add(Learn) + 1} // there are totals to restate (Told)
}

// Evict loses one account without a sign, like a Redis with maxmemory.
func (m *Memory) Evict(key string, window ratelimit.Window) {
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.accounts, name{key, window})
}

// DropEnded drops ended accounts now, as stores do. It is for tests.
func (m *Memory) DropEnded() {
	now := m.clock()
	for i := range m.shards {
		m.shards[i].mu.Lock()
		m.shards[i].sweepLocked(now)
		m.shards[i].mu.Unlock()
	}
}

// Prolong prolongs the learning, like [Redis.Prolong].
func (m *Memory) Prolong(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.clock(); m.epoch.Young(now) {
		m.epoch.Learning = now.Add(Learn)
	}
	return nil
}

// Override implements [Overrider].
func (m *Memory) Override(_ context.Context, key string) (o ratelimit.Override, ok bool, err error) {
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := m.clock()
	return s.overrides[key].Answer(now), s.overrides[key].InForce(now) != nil, nil
}

// SetOverride implements [Overrider].
func (m *Memory) SetOverride(_ context.Context, c *OverrideChange) (ratelimit.Override, error) {
	if err := c.Check(); err != nil {
		return ratelimit.Override{}, err
	}
	now, s, asked := m.clock(), m.shard(c.Key), map[ratelimit.Window][]ratelimit.Holder{}
	r, changed, err := s.override(now, c, asked)
	if changed && c.Audit != "" && m.OnEvent != nil {
		e := c.changed(&r)
		m.OnEvent(&e)
	}
	for _, w := range c.windows(now) {
		for _, h := range asked[w] {
			if m.OnRecall != nil {
				m.OnRecall(h, c.Key, w)
			}
		}
	}
	return r.Answer(now), err
}

// override makes a change, and notes its recalls. Records are never modified, because copies of the data share them.
func (s *memoryShard) override(
	now instant, c *OverrideChange, asked map[ratelimit.Window][]ratelimit.Holder,
) (r Overridden, changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.overrides[c.Key]
	if was == nil && len(s.overrides) >= s.most {
		if s.sweepLocked(now); len(s.overrides) >= s.most {
			return r, false, ErrFull
		}
	}
	if was != nil {
		r = *was
	}
	if changed, err = r.Change(now, c); err != nil || !changed {
		return r, false, err
	}
	is := r
	s.overrides[c.Key] = &is
	for _, w := range c.windows(now) {
		if k := s.accounts[name{c.Key, w}]; k != nil {
			asked[w] = k.holders()
		}
	}
	return r, true, nil
}

// holders are all holders with a record.
func (k *kept) holders() (all []ratelimit.Holder) {
	of := k.account.records
	if k.bucket != nil {
		of = k.bucket.records
	}
	for i := range of {
		all = append(all, of[i].holder)
	}
	return all
}

// Overrides implements [Overrider].
func (m *Memory) Overrides(
	_ context.Context, prefix, after string, n int,
) (found []ratelimit.NamedOverride, err error) {
	now := m.clock()
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for key, r := range s.overrides {
			if o := r.InForce(now); o != nil && strings.HasPrefix(key, prefix) && key > after {
				found = append(found, ratelimit.NamedOverride{Key: key, Override: *o})
			}
		}
		s.mu.Unlock()
	}
	slices.SortFunc(found, func(a, b ratelimit.NamedOverride) int { return strings.Compare(a.Key, b.Key) })
	return found[:min(n, len(found))], nil
}

var (
	_ Ledger    = (*Memory)(nil)
	_ Overrider = (*Memory)(nil)
)
