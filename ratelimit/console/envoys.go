package console

import (
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
)

// Envoys are Envoys that enforce leases of this node.
type Envoys struct {
	Streams  int64  `json:"streams"`
	Unproven int64  `json:"unproven"` // charged tokens, neither proven spent nor in use
	Leases   int    `json:"leases"`   // holders of all keys: an Envoy is one holder for each key
	Held     []Held `json:"held"`     // the largest of them
}

// Held is the lease of an Envoy for a key.
type Held struct {
	Account string `json:"account"`
	rlqs.Holder
}

// envoys looks through all streams. It is called under the lock of look, at most every two seconds.
func (c *console) envoys() *Envoys {
	s := c.Quotas.Stats()
	e := &Envoys{Streams: s.Streams.Load(), Unproven: s.Unproven.Load()}
	var held []rlqs.Holder
	held, e.Leases = c.Quotas.Largest(shownHeld)
	for _, h := range held {
		e.Held = append(e.Held, Held{c.Redact.account(ratelimit.KeyName(h.Key)), h})
	}
	return e
}
