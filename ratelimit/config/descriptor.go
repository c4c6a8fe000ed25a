package config

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// File is the rules of one domain, as they were written: what the decoder makes of
// a YAML text, and what a source fills in whose rules are no YAML. The places of
// the latter name the file and have no line.
type File struct {
	Place       Place
	Domain      string
	Descriptors []Descriptor
	Defaults    Inherited
}

// Descriptor is a node of the rules, as it was written.
type Descriptor struct {
	Place          Place
	Key, Value     string
	Limit          *RateLimit
	Descriptors    []Descriptor
	Shadow         bool
	Quota          bool
	Detailed       bool
	ValueToMetric  bool
	ShareThreshold bool
	Metadata       map[string]any
	Inherited      Inherited
}

// RateLimit is a rate_limit block.
type RateLimit struct {
	Place    Place
	Requests ratelimit.Tokens
	Unit     string
	// Multiplier is how many units a period has, unit_multiplier; 0 means one.
	Multiplier ratelimit.Tokens
	Billing    *Billing
	// Concurrency is the most requests in flight at once, in place of a unit; 0: it was not written. HoldTTL is how
	// long each counts at most; 0: ratelimit.DefaultHoldTTL.
	Concurrency ratelimit.Tokens
	HoldTTL     time.Duration
	Unlimited   bool
	Name        string
	Replaces    []Replacement
	// NoRequests says that requests_per_unit was not written; it is 0 then.
	NoRequests bool
}

// Billing is a billing block: months that begin on a day of the month in a time zone.
type Billing struct {
	Place Place
	Day   ratelimit.Tokens // of the month; 0, where it is not written, is the first
	Zone  string           // by its IANA name; "" is UTC
}

// Replacement names a rule that this one replaces.
type Replacement struct {
	Place Place
	Name  string
}

// Inherited is what a node says for itself and for all below it: only what is
// set changes anything.
type Inherited struct {
	Place        Place
	Algorithm    *ratelimit.Algorithm
	Burst        *ratelimit.Tokens
	Hold         *Hold
	Overrides    *bool             // false: limits are not overridden at run time
	MaxOverride  *ratelimit.Tokens // the most that an override may set
	Coordination []Setting
}

// Hold is a hold block. It replaces the one above it as a whole.
type Hold struct {
	Place Place
	ratelimit.Hold
	said []string // of amount, from and learned, those that were written
}

// Setting is one field of a coordination block.
type Setting struct {
	Place       Place
	Field, Text string
}

// Segment is a descriptor's part of a rule's path, as statistics and messages write
// it: key, or key_value.
func (d *Descriptor) Segment() string {
	if d.Value == "" {
		return d.Key
	}
	return d.Key + "_" + d.Value
}
