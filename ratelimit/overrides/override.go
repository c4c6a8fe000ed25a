package overrides

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"unicode/utf8"
	"unique"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// Override is the limit of one key.
type Override struct {
	ratelimit.Override
	// Per is the period that Requests are for ([ratelimit.Limit.Per]).
	Per string
	// Of is the domain and the descriptor of a long key, which is a digest: DOMAIN?KEY=VALUE&KEY=VALUE.
	Of string
	// Key is that of the table ([ratelimit.DescriptorKey]).
	Key string
}

// stored is the value of a record, as JSON:
//
//	{"limit":500,"per":"per minute","by":"ann","why":"ticket 17"}
//
// Its key is a DescriptorKey, and its end is the record's.
type stored struct {
	Limit ratelimit.Tokens `json:"limit"` // -1: unlimited
	Per   string           `json:"per"`
	By    string           `json:"by,omitempty"`
	Why   string           `json:"why,omitempty"`
	Of    string           `json:"of,omitempty"`
}

const isUnlimited = -1

// decode reads a value, and refuses one that no Book writes: another version of Sluice, or a person, may have.
func decode(r *table.Record) (s stored, err error) {
	d := json.NewDecoder(bytes.NewReader([]byte(r.Value)))
	d.DisallowUnknownFields()
	switch err := d.Decode(&s); {
	case err != nil:
		return s, fmt.Errorf("%w: %w", table.ErrRecord, err)
	case s.Limit < isUnlimited || s.Limit > ratelimit.MaxLimit,
		len(s.By) > ratelimit.MaxOverrideText, len(s.Why) > ratelimit.MaxOverrideText, !utf8.ValidString(s.Per):
		return s, fmt.Errorf("%w: an override of %d requests", table.ErrRecord, s.Limit)
	}
	return s, nil
}

// limit is what a node keeps of an override for its decisions: few bytes, because there may be 100,000. Its period is a
// handle, which is shared by all with the same.
type limit struct {
	requests ratelimit.Tokens // or isUnlimited
	ends     ratelimit.LedgerTime
	per      unique.Handle[string]
	derived  atomic.Pointer[derived]
}

// derived is a rule with an override's limit, as a key needed it last. It is immutable.
type derived struct {
	of *ratelimit.Rule
	is *ratelimit.Rule // of, if the override does not count under it
}

// NewTable makes an empty table of overrides.
func NewTable() *table.Table {
	return table.New(func(r *table.Record) (any, error) {
		s, err := decode(r)
		return &limit{requests: s.Limit, ends: r.Ends, per: unique.Make(s.Per)}, err
	})
}

// in is the override, if it counts under a rule; else nil.
func (x *limit) in(rule *ratelimit.Rule) *ratelimit.Override {
	o := &ratelimit.Override{Requests: max(0, x.requests), Unlimited: x.requests == isUnlimited}
	return counts(o, x.per.Value(), rule)
}

// counts is an override for a period, if it counts under a rule; else nil. A number for another period would be another
// rate: a limit of 100 a day must not become 100 a second when the rule's unit changes. A rule
// without a limit admits all requests, whatever override their key has.
func counts(o *ratelimit.Override, per string, rule *ratelimit.Rule) *ratelimit.Override {
	if o.Bans() && !rule.Unlimited || rule.WhyNoOverrides() == "" && (o.Unlimited || per == rule.Limit.Per()) {
		return o
	}
	return nil
}

// Keeper sets records of a table for all nodes: a [table.Node] or a [table.Alone].
type Keeper interface {
	Set(ctx context.Context, r table.Record, expected table.Expected) (table.Record, error)
}

// Book is the table as people see it. It is safe for concurrent use.
type Book struct {
	Table  *table.Table
	Keeper Keeper
	// Now is the store's time.
	Now func() ratelimit.LedgerTime
}

// Get is the override of a key; ok is false if it has none in force.
func (b *Book) Get(key []byte) (o Override, ok bool) {
	r := b.Table.Record(string(ratelimit.DescriptorKey(key)))
	if !r.In(b.Now()) {
		return o, false
	}
	return read(&r), true
}

// read is a record as people see it.
func read(r *table.Record) Override {
	s, _ := decode(r) // the table has no other records
	return Override{
		Override: ratelimit.Override{
			Requests: max(0, s.Limit), Unlimited: s.Limit == isUnlimited, Expires: r.Ends, Set: r.Version,
			By: s.By, Reason: s.Why,
		},
		Per: s.Per, Of: s.Of, Key: r.Key,
	}
}

// All are the overrides in force, in the order of their keys, that come after one. The list is made at once, and what
// ends meanwhile is left out.
func (b *Book) All(after string) iter.Seq[Override] {
	return func(yield func(Override) bool) {
		for _, r := range b.Table.After(after) {
			if r.In(b.Now()) && !yield(read(r)) {
				return
			}
		}
	}
}

// Lifted is the number of bans that rules lift, because none of them has the key, or without a limit; and the domain
// and the descriptor of one. Those of digests are not looked at.
func (b *Book) Lifted(rules *config.Rules) (n int, one []string) {
	for o := range b.All("") {
		texts, ok := ratelimit.ReadDescriptor([]byte(o.Key))
		if !ok || !o.Bans() {
			continue
		}
		var rule *ratelimit.Rule
		var key []byte
		if d := rules.Domain(texts[0]); d != nil {
			var entries []config.Entry
			for i := 1; i < len(texts); i += 2 {
				entries = append(entries, config.Entry{Key: texts[i], Value: texts[i+1]})
			}
			rule, key = d.Match(entries, nil)
		}
		if rule == nil || rule.Unlimited || string(ratelimit.DescriptorKey(key)) != o.Key {
			n, one = n+1, texts
		}
	}
	return n, one
}

// Rule is a rule under an override; ok is false if it does not count under the rule.
func (o *Override) Rule(rule *ratelimit.Rule) (is *ratelimit.Rule, ok bool) {
	in := counts(&o.Override, o.Per, rule)
	if in == nil {
		return rule, false
	}
	return rule.Under(in), true
}

// Set sets the override of a key, or removes it if o is nil. It blocks until ctx is done at most, and returns the
// override that is in force then. expected is a version, [table.Any] or [table.None].
func (b *Book) Set(ctx context.Context, key []byte, o *Override, expected table.Expected) (Override, error) {
	r := table.Record{Key: string(ratelimit.DescriptorKey(key))}
	if o != nil {
		s := stored{Limit: o.Requests, Per: o.Per, By: o.By, Why: o.Reason}
		if o.Unlimited {
			s.Limit = isUnlimited
		}
		// A digest does not say its descriptor.
		if r.Key[0] == 0xff {
			s.Of = o.Of
		}
		value, err := json.Marshal(&s)
		if err != nil {
			return Override{}, err
		}
		r.Value, r.Ends = string(value), o.Expires
	}
	// Texts are bounded before, so only Of can be too long.
	if len(r.Value) > table.MostValue {
		return Override{}, errors.New("the descriptor is too long for an override")
	}
	is, err := b.Keeper.Set(ctx, r, expected)
	if err != nil || o == nil {
		return Override{}, err
	}
	return read(&is), nil
}
