package config

import (
	"cmp"
	"slices"

	"github.com/sluice-gate/sluice/ratelimit"
)

// MatchUnordered is Match for entries without an order, such as those of Envoy's BucketId. It sorts
// them into an order that a rule declares, and leaves them so. If there are rules for several
// orders, it takes the one whose keys come first in the alphabet. No two entries may have the same
// key.
//
// It does not allocate. In the worst case it tries every path of the rules with only keys of the
// entries.
func (d *Domain) MatchUnordered(entries []Entry, buf []byte) (*ratelimit.Rule, []byte) {
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Key, b.Key) })
	if !d.root.order(entries) {
		return nil, buf
	}
	return d.Match(entries, buf)
}

// order permutes entries until a rule matches all of them. Without a match, they stay sorted, as they came.
//
// For each entry that this level matches, it moves that to the front, and orders the rest below. Two reversals are the
// move: of a b c, c is to come first; reversed c b a, and without the first c a b. If nothing below matches, two
// reversals restore the order, and the next entry is tried.
func (l level) order(entries []Entry) bool {
	for i := range entries {
		n := l.find(&entries[i])
		if n == nil {
			continue
		}
		upTo := entries[:i+1] // the entry moves to the front, and the others keep their order
		slices.Reverse(upTo)
		slices.Reverse(upTo[1:])
		if len(entries) == 1 && n.rule != nil || len(entries) > 1 && n.below.order(entries[1:]) {
			return true
		}
		slices.Reverse(upTo[1:])
		slices.Reverse(upTo)
	}
	return false
}
