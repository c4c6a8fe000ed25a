package routing

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// setting is what is asked of a key's owner: an override to set, or to read.
type setting struct {
	look  bool
	set   *ratelimit.Override // nil: it is removed
	match ratelimit.Match
	// The answer: what is in force, whose Set is 0 if nothing is.
	is   ratelimit.Override
	err  error
	done bool
}

// do implements errand.
func (x *setting) do(now instant, l *leasing.Local, a *ask, _ *verdict) {
	x.done = true
	if x.look {
		x.is, _, x.err = l.Override(context.Background(), now, a)
	} else {
		x.is, x.err = l.SetOverride(context.Background(), now, a, x.set, x.match)
	}
}

// recordOf is an override as peers have it; none is nothing.
func recordOf(o *ratelimit.Override) []byte {
	if o.Set == 0 {
		return nil
	}
	return (&account.Overridden{Override: *o}).Encode()
}

// overrideOf is recordOf, backwards.
func overrideOf(record []byte) (ratelimit.Override, error) {
	r, err := account.DecodeOverride(string(record))
	if err == nil && r.Removed {
		err = account.ErrOverride
	}
	return r.Override, err
}

func (x *setting) message() *wire.Change {
	m := &wire.Change{Look: x.look, Any: x.match.Any, Set: int64(x.match.Set)}
	if x.set != nil {
		own := *x.set
		own.Set = 1 // the owner's reply has its value
		m.Record = recordOf(&own)
	}
	return m
}

// settingOf reads a change, which may hold anything; nil if it makes no sense.
func settingOf(m *wire.Change) *setting {
	x := &setting{look: m.GetLook(), match: ratelimit.Match{Any: m.GetAny(), Set: ratelimit.LedgerTime(m.GetSet())}}
	o, err := overrideOf(m.GetRecord())
	if err != nil || m.GetSet() < 0 {
		return nil
	}
	if o.Set > 0 {
		x.set = &o
	}
	return x
}

// refusals are errors of a change as peers have them, by their place.
var refusals = []error{nil, ratelimit.ErrOverrideChanged, account.ErrFull, ratelimit.ErrOverrides}

// reply implements errand.
func (x *setting) reply(r *wire.Reply) {
	why := slices.IndexFunc(refusals, func(err error) bool { return errors.Is(x.err, err) })
	if why < 0 {
		why = len(refusals) - 1
	}
	r.Changed = &wire.Changed{Record: recordOf(&x.is), Refused: uint32(why)}
}

// apply takes in the owner's answer. It reports false if that cannot be one.
func (x *setting) apply(r *wire.Reply) bool {
	m := r.GetChanged()
	is, err := overrideOf(m.GetRecord())
	if m == nil || err != nil || int(m.GetRefused()) >= len(refusals) {
		return false
	}
	x.is, x.err, x.done = is, refusals[m.GetRefused()], true
	return true
}
