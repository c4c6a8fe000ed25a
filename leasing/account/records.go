package account

import "github.com/sluice-gate/sluice/ratelimit"

// record is an account's state of one holder.
type record struct {
	holder ratelimit.Holder
	taken  tokens // the holder's total: the number that plain increments change
	// spent is the holder's usage, as reported and as granted since. Invariant: at most taken, so that tokens in hand
	// are never below 0.
	spent tokens
	seq   uint64 // of its last claim; 0: it has only drawn
	fence ratelimit.Fence
}

// inHand is the total less the usage.
func (r *record) inHand() tokens { return r.taken - r.spent }

// records are the records of all holders of an account. The zero records are none. They are few, one for each name
// under which nodes use the key, so a search needs no index.
type records []record

// find returns the record of a holder, or nil.
func (rs records) find(h ratelimit.Holder) *record {
	for i := range rs {
		if rs[i].holder == h {
			return &rs[i]
		}
	}
	return nil
}

// findOrAdd returns the record of a holder, which may be new. It moves the others. So a pointer to a record is valid
// until the next findOrAdd of another holder.
func (rs *records) findOrAdd(h ratelimit.Holder) *record {
	if r := rs.find(h); r != nil {
		return r
	}
	*rs = append(*rs, record{holder: h})
	return &(*rs)[len(*rs)-1]
}
