package console

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// correct is a change that needs the token. The steps: check the token, find the rule, change, log, and answer. alone
// has the caller go on to the other nodes.
func (c *console) correct(what string, change func(context.Context, *ratelimit.Ask) (string, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := c.authorized(r, what); err != nil {
			return err
		}
		d, entries, err := c.asked(r)
		if err != nil {
			return err
		}
		rule, key := d.Match(entries, nil)
		// Such rules have no account to correct.
		if rule == nil || rule.Unlimited || rule.RefusesAll() {
			return refusing(http.StatusBadRequest, "no rule with a budget matches this descriptor")
		}
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		done, err := change(ctx, &ratelimit.Ask{Rule: rule, Key: key, Kind: ratelimit.Peek})
		c.Log.Warn("a correction by an operator", "what", what, "from", r.RemoteAddr, "rule",
			rule.FullName(), "descriptor", r.URL.Query()["entry"], "done", err == nil, "error", err)
		if err != nil {
			return refusing(http.StatusServiceUnavailable, "%v", err)
		}
		// Without a store, each node counts by itself, unless the key has an owner.
		alone := c.Metrics.Safety == nil && (c.Metrics.Ring == nil || !rule.Coordination.Mode.Spec().Owned)
		answer(w, map[string]any{"done": done, "alone": alone})
		return nil
	}
}

// remove takes a silent node out of the list. A node that is not silent would register again within seconds, so it is
// refused.
func (c *console) remove(w http.ResponseWriter, r *http.Request) error {
	if err := c.authorized(r, "remove a node"); err != nil {
		return err
	}
	nodes, name := c.Nodes().Nodes, r.URL.Query().Get("node")
	i := slices.IndexFunc(nodes, func(n Node) bool { return n.Silent && (n.Name == name || n.Debug == name) })
	if i < 0 {
		return refusing(http.StatusNotFound,
			"node is %q, must be the name or the debug port of a silent node, as in /console/state", name)
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	err := c.Remove(ctx, nodes[i].Name)
	c.Log.Warn("a correction by an operator", "what", "remove", "from", r.RemoteAddr, "node", nodes[i].Debug,
		"done", err == nil, "error", err)
	if err != nil {
		return refusing(http.StatusServiceUnavailable, "%v", err)
	}
	answer(w, map[string]any{"done": nodes[i].Debug + " is listed no longer, unless it registers again"})
	return nil
}

// authorized refuses a request without the token. Tokens are compared by their digests in constant time, so that
// neither length nor prefix can be measured. An empty ADMIN_TOKEN allows nothing.
func (c *console) authorized(r *http.Request, what string) error {
	looked, right := c.throttle.guess(r.RemoteAddr, func() bool {
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		have, want := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(c.Token))
		return c.Token != "" && strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(have[:], want[:]) == 1
	})
	switch {
	case !looked:
		return tooMany("too many wrong tokens came from this address")
	case !right:
		c.Log.Warn("a correction was refused", "what", what, "from", r.RemoteAddr)
		return refusing(http.StatusForbidden, "corrections and overrides need the header Authorization: Bearer with "+
			"the ADMIN_TOKEN of this node; one is set: %t", c.Token != "")
	}
	return nil
}

// reset clears the account. Only the owner can do so in a ring without a store.
func (c *console) reset(ctx context.Context, a *ratelimit.Ask) (string, error) {
	if owner := c.Inspector.Look(ctx, c.Clock(), a).Owner; owner != "" {
		return "", fmt.Errorf("another node owns this key: ask %s", owner)
	}
	return "the usage of this window is cleared; nodes that refuse the key alone continue until they drop their leases",
		c.Inspector.Reset(ctx, c.Clock(), a)
}

// drop returns this node's lease. Its refusals end, too, because the next request claims.
func (c *console) drop(ctx context.Context, a *ratelimit.Ask) (string, error) {
	had, err := c.Inspector.Drop(ctx, c.Clock(), a.Key)
	switch {
	case err != nil:
		return "", fmt.Errorf("the lease goes back when the store answers: %w", err)
	case !had:
		return "this node had no lease", nil
	}
	return "the unspent lease goes back; the next request claims from the store", nil
}
