// Package console is what people see of a node on its debug port: a page that
// shows whether limits hold, how far from them the truth may be, and why; an
// answer to "what would happen to this descriptor, and why"; and two corrections.
//
// Guarantee: nothing that a request brought along is ever markup: values are
// text in JSON, and the page may load nothing but itself. Corrections need the
// token, and are logged; everything else only reads.
package console

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// Source is what is shown, and who may change it.
type Source struct {
	Metrics   metrics.Collector
	Inspector ratelimit.Inspector
	Clock     ratelimit.Clock
	// Token must come with corrections; "" allows none.
	Token string
	// Nodes, if set, are those that share the store.
	Nodes func() []Node
	// Questions is how many explanations a second are given; 0: DefaultQuestions.
	Questions int
	Log       *slog.Logger
}

// Node is one that shares the store, as it says of itself.
type Node struct {
	Name    string             `json:"name"`
	Host    string             `json:"host"`
	Debug   string             `json:"debug"` // its debug port, as it knows itself
	Version string             `json:"version"`
	Started time.Time          `json:"started"`
	Seen    int64              `json:"seen_seconds"` // ago
	Here    bool               `json:"here"`         // this node
	Holders []ratelimit.Holder `json:"-"`
}

// Bounds of what one page costs.
const (
	shownRules = 200
	shownKeys  = 20
	hotFor     = 2 * time.Second // an answer about the hottest keys serves so long
	askTimeout = 2 * time.Second
)

//go:embed index.html console.js console.css
var assets embed.FS

// console serves a Source.
type console struct {
	Source
	throttle *throttle
	mu       sync.Mutex
	hot      []ratelimit.HotKey // guarded by mu
	hotTill  ratelimit.Instant  // guarded by mu
}

// Register adds the console's pages to a mux.
func Register(mux *http.ServeMux, s Source) {
	c := &console{Source: s, throttle: newThrottle(s.Questions, time.Now)}
	file := func(path, name, kind string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			secure(w, kind)
			data, err := assets.ReadFile(name)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			_, _ = w.Write(data)
		})
	}
	file("/console", "index.html", "text/html; charset=utf-8")
	file("/console/console.js", "console.js", "text/javascript; charset=utf-8")
	file("/console/console.css", "console.css", "text/css; charset=utf-8")
	mux.HandleFunc("GET /console/state", c.state)
	mux.HandleFunc("GET /explain", c.explain)
	mux.HandleFunc("POST /admin/reset", c.correct("reset", c.reset))
	mux.HandleFunc("POST /admin/drop", c.correct("drop", c.drop))
}

// secure sets the headers of every answer: the page may load nothing but
// itself, and no other page may show it.
func secure(w http.ResponseWriter, kind string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
}

func answer(w http.ResponseWriter, v any) {
	secure(w, "application/json")
	_ = json.NewEncoder(w).Encode(v) // it escapes <, > and &
}

func refuse(w http.ResponseWriter, code int, format string, args ...any) {
	secure(w, "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": ratelimit.OneLine(fmt.Sprintf(format, args...))})
}

// State is what the page asks for every two seconds.
type State struct {
	metrics.State
	Hottest []ratelimit.HotKey `json:"hottest"`
	Nodes   []Node             `json:"nodes"` // that share the store; none: nobody knows
	Admin   bool               `json:"admin"` // corrections are possible, with the token
	Now     time.Time          `json:"now"`
}

func (c *console) state(w http.ResponseWriter, _ *http.Request) {
	answer(w, State{
		State: c.Metrics.State(shownRules), Hottest: c.hottest(), Nodes: c.nodes(), Admin: c.Token != "",
		Now: time.Now().UTC(),
	})
}

func (c *console) nodes() []Node {
	if c.Nodes == nil {
		return nil
	}
	return c.Nodes()
}

// hostOf is the node that a holder is, "" if that is not known.
func (c *console) hostOf(h ratelimit.Holder) string {
	for _, n := range c.nodes() {
		if slices.Contains(n.Holders, h) {
			return n.Debug
		}
	}
	return ""
}

// hottest looks through all keys, but not for each page that is open.
func (c *console) hottest() []ratelimit.HotKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.Clock(); now >= c.hotTill {
		c.hot, c.hotTill = c.Inspector.Hottest(now, shownKeys), now.Add(hotFor)
	}
	return c.hot
}

// Explanation is what would happen to one descriptor, and why.
type Explanation struct {
	Domain     string        `json:"domain"`
	Steps      []config.Step `json:"steps"`
	Rule       string        `json:"rule,omitempty"`
	Limit      string        `json:"limit,omitempty"`
	Mode       string        `json:"mode,omitempty"`
	Reclaim    string        `json:"reclaim,omitempty"`
	OnFailure  string        `json:"on_store_failure,omitempty"`
	Shadow     bool          `json:"shadow_mode,omitempty"`
	Quota      bool          `json:"quota_mode,omitempty"`
	Declared   string        `json:"declared,omitempty"` // over-admission
	Next       string        `json:"next"`               // what the next request would get
	WholeAgain time.Duration `json:"reset_ns,omitempty"`
	*ratelimit.Look
}

// errAsk is a question that makes no sense.
var errAsk = errors.New("ask like /explain?domain=edge&entry=tier=gold&entry=user=bob")

// asked is the descriptor of a request: domain, and entries in their order.
func (c *console) asked(r *http.Request) (*config.Domain, []config.Entry, error) {
	q := r.URL.Query()
	name := q.Get("domain")
	if name == "" || len(q["entry"]) == 0 {
		return nil, nil, errAsk
	}
	var entries []config.Entry
	for _, text := range q["entry"] {
		key, value, _ := strings.Cut(text, "=")
		if key == "" {
			return nil, nil, fmt.Errorf("%w: %q is not key=value", errAsk, text)
		}
		entries = append(entries, config.Entry{Key: key, Value: value})
	}
	d := c.Metrics.Store.Rules().Domain(name)
	if d == nil {
		return nil, entries, fmt.Errorf("no rules are in force for the domain %q: its requests are OK", name)
	}
	return d, entries, nil
}

func (c *console) explain(w http.ResponseWriter, r *http.Request) {
	done, ok := c.throttle.question()
	if !ok {
		tooMany(w, "too many explanations are asked for (DEBUG_EXPLAIN_RATE)")
		return
	}
	defer done()
	d, entries, err := c.asked(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	answer(w, c.explained(ctx, d, entries))
}

func (c *console) explained(ctx context.Context, d *config.Domain, entries []config.Entry) Explanation {
	e := Explanation{Domain: d.Name, Steps: d.Explain(entries)}
	rule, key := d.Match(entries, nil)
	switch {
	case rule == nil:
		e.Next = "OK: no rule matches at the full depth of the descriptor"
		return e
	case rule.Unlimited:
		e.Rule, e.Next = rule.Path, "OK: the rule is unlimited"
		return e
	}
	e.Rule, e.Limit, e.Mode = rule.Path, rule.Limit.String(), rule.Coordination.Mode.String()
	e.Reclaim, e.OnFailure = ratelimit.Reclaims[rule.Coordination.Reclaim],
		ratelimit.FailurePolicies[rule.Coordination.OnStoreFailure]
	e.Shadow, e.Quota = rule.Shadow, rule.Quota
	b := rule.Declare(rule.Coordination.MaxNodes, ratelimit.SharedStore)
	e.Declared = strings.TrimSuffix(fmt.Sprintf("at most %d beyond the limit, for each key and window; %s", b.Over,
		b.OverNote), "; ")
	if rule.Limit.Requests == 0 {
		e.Next = "OVER_LIMIT: requests_per_unit is 0"
		return e
	}
	a := ratelimit.Ask{Rule: rule, Key: key, Kind: ratelimit.Peek}
	look := c.Inspector.Look(ctx, c.Clock(), &a)
	if look.Ledger != nil {
		for i := range look.Ledger.Holders {
			h := &look.Ledger.Holders[i]
			h.Node = c.hostOf(h.Holder)
		}
	}
	e.Look = &look
	e.Next, e.WholeAgain = next(rule, &look)
	return e
}

// next says what a request for one token would get, from what was seen.
func next(rule *ratelimit.Rule, v *ratelimit.Look) (verdict string, resets time.Duration) {
	over := "OVER_LIMIT"
	if rule.Shadow {
		over = "OK, for the rule is in shadow_mode (OVER_LIMIT otherwise)"
	}
	left := rule.Limit.Capacity()
	if v.Ledger != nil {
		left = max(0, v.Ledger.Free)
	}
	l := v.Lease
	switch {
	case v.Owner != "":
		return "what its owner says: ask " + v.Owner, 0
	case l != nil && l.Unspent > 0 && l.Expires > 0:
		return fmt.Sprintf("OK, from the lease of this node: %d unspent here, %d left besides", l.Unspent, left),
			l.Resets
	case l != nil && l.Refuses > 0:
		return over + ", without asking the ledger: there was nothing to be had, and there will not be before",
			l.Refuses
	case v.LedgerError != "" || l != nil && l.Failing:
		return "what on_store_failure says: the ledger does not answer", 0
	case left > 0:
		return fmt.Sprintf("OK, after asking the ledger: %d left there", left), 0
	case rule.Coordination.Mode == ratelimit.Approx:
		return "by its drift share OK, or " + over + ": the ledger has nothing left", 0
	default:
		return over + ": the ledger has nothing left", 0
	}
}

// correct is a change that needs the token.
func (c *console) correct(what string, change func(context.Context, *ratelimit.Ask) (string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		looked, right := c.throttle.guess(r.RemoteAddr, func() bool {
			given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			have, want := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(c.Token))
			return c.Token != "" && subtle.ConstantTimeCompare(have[:], want[:]) == 1
		})
		if !looked {
			tooMany(w, "too many wrong tokens came from this address")
			return
		}
		if !right {
			c.Log.Warn("a correction was refused", "what", what, "from", r.RemoteAddr)
			refuse(w, http.StatusForbidden, "corrections need the header Authorization: Bearer with the ADMIN_TOKEN "+
				"of this node; one is set: %t", c.Token != "")
			return
		}
		d, entries, err := c.asked(r)
		if err != nil {
			refuse(w, http.StatusBadRequest, "%v", err)
			return
		}
		rule, key := d.Match(entries, nil)
		if rule == nil || rule.Unlimited || rule.Limit.Requests == 0 {
			refuse(w, http.StatusBadRequest, "no rule with a budget matches this descriptor")
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		done, err := change(ctx, &ratelimit.Ask{Rule: rule, Key: key, Kind: ratelimit.Peek})
		c.Log.Warn("a correction by an operator", "what", what, "from", r.RemoteAddr, "rule",
			rule.Domain+"."+rule.Path, "descriptor", r.URL.Query()["entry"], "done", done, "error", err)
		if err != nil {
			refuse(w, http.StatusServiceUnavailable, "%v", err)
			return
		}
		answer(w, map[string]string{"done": done})
	}
}

func (c *console) reset(ctx context.Context, a *ratelimit.Ask) (string, error) {
	if owner := c.Inspector.Look(ctx, c.Clock(), a).Owner; owner != "" {
		return "", fmt.Errorf("another node owns this key: ask %s", owner)
	}
	return "the ledger counts from nothing again; nodes that refuse without asking go on until they drop their leases",
		c.Inspector.Reset(ctx, c.Clock(), a)
}

func (c *console) drop(_ context.Context, a *ratelimit.Ask) (string, error) {
	if !c.Inspector.Drop(c.Clock(), a.Key) {
		return "this node had no lease", nil
	}
	return "what was unspent goes back; the next request asks the ledger", nil
}
