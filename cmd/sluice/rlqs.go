package main

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
)

func quotaNode(store *config.Store, l ratelimit.Limiter, o rlqs.Options) *rlqs.Node {
	return rlqs.NewNode(rlqs.Source{Rules: store.Rules, Limiter: l, Wall: time.Now}, o)
}
