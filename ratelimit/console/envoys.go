package console

import "github.com/sluice-gate/sluice/ratelimit/rlqs"

// Envoys are those that enforce by themselves what this node has granted them.
type Envoys struct {
	Streams  int64  `json:"streams"`
	Unproven int64  `json:"unproven"` // tokens that are charged, and not known to be spent nor in use
	Leases   int    `json:"leases"`   // holders of all keys: an Envoy is one for each
	Held     []Held `json:"held"`     // the largest of them
}

// Held is what an Envoy holds of a key.
type Held struct {
	Account string `json:"account"`
	rlqs.Holder
}

// envoys looks through all streams, but not for each page that is open.
func (c *console) envoys() *Envoys {
	if c.Quotas == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Clock()
	if c.held != nil && now < c.heldTill {
		return c.held
	}
	s := c.Quotas.Stats()
	e := &Envoys{Streams: s.Streams.Load(), Unproven: s.Unproven.Load()}
	var held []rlqs.Held
	held, e.Leases = c.Quotas.Largest(shownHeld)
	for _, h := range held {
		e.Held = append(e.Held, Held{c.Redact.account(c.KeyName(h.Key)), h.Holder})
	}
	c.held, c.heldTill = e, now.Add(hotFor)
	return e
}
