// Files as they are written: the result of decode.go, and what compile.go and advise.go read.

package config

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// File has the rules of one domain, as written. Places in a pushed text name the file, without a line.
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
	ValuePlace     Place // of the value; zero: it has none
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
	Place    Place // of its unit, or of the block
	Requests ratelimit.Tokens
	Unit     string
	// Multiplier is the number of units in a period, unit_multiplier; 0 means one.
	Multiplier ratelimit.Tokens
	Billing    *Billing
	// Concurrency is the maximum of requests in flight, instead of a unit; 0: not written. HoldTTL
	// is the maximum time that each counts; 0: ratelimit.DefaultHoldTTL.
	Concurrency ratelimit.Tokens
	HoldTTL     time.Duration
	Unlimited   bool
	Name        string
	Replaces    []Replacement
	// Counts means that requests_per_unit is written. Without, it is 0.
	Counts bool
}

// Billing is a billing block: months that begin on a day of the month in a time zone.
type Billing struct {
	Place Place
	Day   ratelimit.Tokens // of the month; 0, if not written: the first
	Zone  string           // by its IANA name; "" is UTC
}

// Replacement names a rule that this rule replaces.
type Replacement struct {
	Place Place
	Name  string
}

// Inherited has the settings of a node and of all descriptors below it. Only set fields change
// anything.
type Inherited struct {
	Place        Place
	Algorithm    *ratelimit.Algorithm
	Burst        *ratelimit.Tokens
	Hold         *Hold
	MaxOverride  *ratelimit.Tokens // the maximum of an override; 0: limits are not overridden at run time
	Coordination []Setting
}

// Hold is a hold block. It replaces the one above it as a whole.
type Hold struct {
	Place Place
	ratelimit.Hold
}

// Setting is one field of a coordination block. Field is one of ratelimit.CoordinationFields, and Text reads as its
// value.
type Setting struct {
	Place       Place
	Field, Text string
}

// Segment is a descriptor's part of a rule's path in statistics and messages: key, or key_value.
func (d *Descriptor) Segment() string {
	if d.Value == "" {
		return d.Key
	}
	return d.Key + "_" + d.Value
}
