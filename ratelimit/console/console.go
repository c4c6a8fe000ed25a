// Package console serves the pages of the debug port for users. They show whether limits hold, by
// which margin, and the problems of the node. They also explain the next decision for a descriptor,
// correct limits, and keep overrides.
//
// Guarantee: no value from a request becomes markup: values are text in JSON, and the page may load
// only its own files. Corrections need the token, and are logged. Everything else only reads.
package console

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// Source has the data of the pages, and the token for changes.
type Source struct {
	Metrics   metrics.Collector
	Inspector ratelimit.Inspector
	Clock     ratelimit.Clock
	// Token is required for corrections; "" allows none.
	Token string
	// Overrides are the limits of keys that are set at run time.
	Overrides *overrides.Book
	// Quotas has the streams of Envoys at this node.
	Quotas *rlqs.Node
	// Nodes returns the nodes that share the store, and the age of that list.
	Nodes func() Fleet
	// Name is this node's debug port, as other nodes reach it.
	Name func() string
	// Remove takes a silent node out of Nodes.
	Remove func(ctx context.Context, name string) error
	// History has the data of charts.
	History *History
	// Redact, if set, hides values of descriptors in keys. Those of the ring must be hidden
	// already.
	Redact *Redactor
	// ShadowMode says that the node answers OK to all requests.
	ShadowMode bool
	Log        *slog.Logger
}

// Fleet has the nodes that share the store.
//
// A list that is old comes from a store that does not answer: then no node is called silent.
type Fleet struct {
	Nodes []Node
	// Age is the age of the list. Old means that it is too old to tell which nodes are silent.
	Age time.Duration
	Old bool
}

// Node is a node that shares the store, as it describes itself.
type Node struct {
	Name    string           `json:"name"`
	Host    string           `json:"host"`
	Debug   string           `json:"debug"` // its debug port, by its own settings
	Version string           `json:"version"`
	Region  string           `json:"region"` // "": none
	Started time.Time        `json:"started"`
	Seen    int64            `json:"seen_seconds"` // ago
	Here    bool             `json:"here"`         // this node
	Silent  bool             `json:"silent"`       // its report is overdue
	Rates   *Rates           `json:"rates"`        // nil: it has none yet
	Wrong   int              `json:"problems"`
	Holder  ratelimit.Holder `json:"-"`
	Every   time.Duration    `json:"-"` // interval of its reports
	// Rules is the fingerprint of its rules in force; "": none.
	Rules string `json:"rules"`
}

// Bounds of the cost of one page.
const (
	shownRules = 200
	shownKeys  = 20
	shownHeld  = 24              // leases of Envoys
	lookedFor  = 2 * time.Second // an answer about all keys and streams is reused for this time
	askTimeout = 2 * time.Second
)

//go:embed index.html console.js page.js charts.js console.css openapi.json
var assets embed.FS

// console serves a Source.
type console struct {
	Source
	throttle *throttle
	// The throttle bounds explanations, and wrong tokens of all requests that need one.
	// Running requests for overrides.
	changing chan struct{}

	began time.Time
	mu    sync.Mutex
	hot   []ratelimit.HotKey // guarded by mu
	held  *Envoys            // guarded by mu
	till  ratelimit.Instant  // guarded by mu: of both
}

// Register adds the console's pages to a mux.
func Register(mux *http.ServeMux, s Source) { newConsole(s).register(mux) }

// newConsole makes one without a mux, as tests need it.
func newConsole(s Source) *console {
	return &console{
		Source: s, throttle: newThrottle(time.Now), began: time.Now(),
		changing: make(chan struct{}, overridesAtOnce),
	}
}

// Patterns name the method, so a GET changes nothing, and a link in another page cannot reset a key.
func (c *console) register(mux *http.ServeMux) {
	file := func(path, name, kind string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			secure(w, kind)
			http.ServeFileFS(w, r, assets, name)
		})
	}
	file("/console", "index.html", "text/html; charset=utf-8")
	file("/console/console.js", "console.js", "text/javascript; charset=utf-8")
	file("/console/page.js", "page.js", "text/javascript; charset=utf-8")
	file("/console/charts.js", "charts.js", "text/javascript; charset=utf-8")
	file("/openapi.json", "openapi.json", "application/json")
	file("/console/console.css", "console.css", "text/css; charset=utf-8")
	for pattern, do := range map[string]handler{
		"GET /console/state":            c.state,
		"GET /console/history":          c.history,
		"GET /explain":                  c.explain,
		"POST /admin/reset":             c.correct("reset", c.reset),
		"POST /admin/drop":              c.correct("drop", c.drop),
		"POST /admin/remove":            c.remove,
		"GET /v1/overrides":             c.guarded("list overrides", c.listOverrides),
		"GET /v1/overrides/{domain}":    c.guarded("read overrides", c.getOverrides),
		"PUT /v1/overrides/{domain}":    c.guarded("set an override", c.putOverride),
		"DELETE /v1/overrides/{domain}": c.guarded("remove an override", c.deleteOverride),
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := do(w, r); err != nil {
				failed(w, err)
			}
		})
	}
}

// handler answers a request, or returns why not.
type handler func(http.ResponseWriter, *http.Request) error

// secure sets the headers of every answer: the page may load only its own files, and no other page
// may frame it.
func secure(w http.ResponseWriter, kind string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
}

// answer sends a value as JSON with status 200.
func answer(w http.ResponseWriter, v any) { answerWith(w, http.StatusOK, v) }

func answerWith(w http.ResponseWriter, code int, v any) {
	secure(w, "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // it escapes <, > and &
}

// refusal is an answer with a status, and one line. The line may quote a request, so refusing removes line ends from
// it.
type refusal struct {
	code int
	why  string
}

// Error implements error.
func (r *refusal) Error() string { return r.why }

func refusing(code int, format string, args ...any) *refusal {
	return &refusal{code, ratelimit.OneLine(fmt.Sprintf(format, args...))}
}

// tooMany refuses for a while.
func tooMany(what string) error {
	return refusing(http.StatusTooManyRequests, "%s: ask again in a second", what)
}

// failed answers with an error. The codes: a refusal has its own, a changed override 412, a full table 422, and a store
// without an answer 503.
func failed(w http.ResponseWriter, err error) {
	r, ok := errors.AsType[*refusal](err)
	switch {
	case ok:
	case errors.Is(err, table.ErrChanged):
		r = refusing(http.StatusPreconditionFailed, "the key does not have the override that the change expects: "+
			"get it again, and use its version")
	case errors.Is(err, table.ErrFull):
		r = refusing(http.StatusUnprocessableEntity, "%v", err)
	default:
		r = refusing(http.StatusServiceUnavailable, "overrides cannot be read or set now: %v", err)
	}
	if r.code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	answerWith(w, r.code, map[string]string{"error": r.why})
}

// State is the answer to the page's poll every two seconds.
type State struct {
	metrics.State
	Name     string             `json:"name"` // this node's debug port, as other nodes reach it
	Started  time.Time          `json:"started"`
	Problems []Problem          `json:"problems"` // the most severe first
	Recent   Rates              `json:"recent"`   // of the last ten seconds
	Hottest  []ratelimit.HotKey `json:"hottest"`
	Redacted bool               `json:"redacted"` // values in keys are hidden
	Envoys   *Envoys            `json:"envoys"`   // with leases on streams to this node
	Nodes    []Node             `json:"nodes"`    // that share the store; none: unknown
	NodesAge float64            `json:"nodes_age_seconds"`
	NodesOld bool               `json:"nodes_old"` // too old to tell which nodes are silent
	Admin    bool               `json:"admin"`     // corrections are possible, with the token
	Now      time.Time          `json:"now"`
}

// The order counts: problems read the state and the rates of the same moment.
func (c *console) state(w http.ResponseWriter, _ *http.Request) error {
	fleet := c.Nodes()
	hottest, held := c.look()
	v := State{
		State: c.Metrics.State(shownRules), Name: c.Name(), Started: c.began.UTC(), Hottest: hottest,
		Redacted: c.Redact != nil, Envoys: held,
		Nodes: fleet.Nodes, NodesAge: fleet.Age.Seconds(), NodesOld: fleet.Old,
		Admin: c.Token != "", Now: time.Now().UTC(),
	}
	// Problems quote it, too, so it is removed before they are made.
	if c.Redact != nil { // it may quote a request
		v.LastBadRequest = ""
	}
	var rules recentRules
	v.Recent, rules = c.History.recent()
	v.Problems = problems(&v, v.Recent, rules)
	answer(w, v)
	return nil
}

// hostOf is the node of a holder, or "" if it is unknown.
func (c *console) hostOf(h ratelimit.Holder) string {
	for _, n := range c.Nodes().Nodes {
		if n.Holder == h {
			return n.Debug
		}
	}
	return ""
}

// look goes through all keys and streams, once for several open pages. It holds the lock while it looks, so that a
// second page waits for the result instead of looking, too. Looking through all keys takes long in a table of millions.
func (c *console) look() ([]ratelimit.HotKey, *Envoys) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.Clock(); now >= c.till {
		c.hot, c.held = c.Redact.hottest(c.Inspector.Hottest(now, shownKeys)), c.envoys()
		c.till = now.Add(lookedFor)
	}
	return c.hot, c.held
}
