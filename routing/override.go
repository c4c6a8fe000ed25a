package routing

import (
	"context"

	"github.com/sluice-gate/sluice/ratelimit"
)

// With a store, overrides are there, and any node sets and reads them: the owner reads them with its next message. A
// ring without a store keeps none: an owner's memory goes with the owner.

func (r *Router) overrider() (ratelimit.Overrider, error) {
	if base, ok := r.base.(blocking); ok && r.inStore() {
		if o, ok := base.Limiter.(ratelimit.Overrider); ok {
			return o, nil
		}
	}
	return nil, ratelimit.ErrOverrides
}

// Override implements [ratelimit.Overrider].
func (r *Router) Override(
	ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask,
) (is ratelimit.Override, ok bool, err error) {
	o, err := r.overrider()
	if err != nil {
		return is, false, err
	}
	return o.Override(ctx, now, a)
}

// SetOverride implements [ratelimit.Overrider].
func (r *Router) SetOverride(
	ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask, is *ratelimit.Override, match ratelimit.Match,
) (ratelimit.Override, error) {
	o, err := r.overrider()
	if err != nil {
		return ratelimit.Override{}, err
	}
	return o.SetOverride(ctx, now, a, is, match)
}

// Overrides implements [ratelimit.Overrider].
func (r *Router) Overrides(ctx context.Context, now ratelimit.Instant, prefix, after string, n int) ([]ratelimit.NamedOverride, error) {
	o, err := r.overrider()
	if err != nil {
		return nil, err
	}
	return o.Overrides(ctx, now, prefix, after, n)
}

var _ ratelimit.Overrider = (*Router)(nil)
