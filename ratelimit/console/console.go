// Package console is what people see of a node on its debug port: a page that
// shows whether limits hold, how far from them the truth may be, and why; an
// answer to "what would happen to this descriptor, and why"; and two corrections.
//
// Guarantee: nothing that a request brought along is ever markup: values are
// text in JSON, and the page may load nothing but itself. Corrections need the
// token, and are logged; everything else only reads.
package console

import (
	"embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
)

// Source is what is shown, and who may change it.
type Source struct {
	Metrics   metrics.Collector
	Inspector ratelimit.Inspector
	Clock     ratelimit.Clock
	// Token must come with corrections; "" allows none.
	Token string
	// Overrides, if set, keeps limits of keys that are set at run time.
	Overrides ratelimit.Overrider
	// Quotas, if set, is what streams of Envoys hold here. KeyName names a key, as the store does.
	Quotas  *rlqs.Node
	KeyName func(key []byte) string
	// Nodes, if set, are those that share the store, and how old that is.
	Nodes func() Fleet
	// Name, if set, is this node's debug port, as others know it.
	Name func() string
	// History, if set, is what charts show.
	History *History
	// Redact, if set, hides values of descriptors in what is shown of keys. Those of
	// the ring are expected to be hidden already.
	Redact *Redactor
	// Questions is how many explanations a second are given; 0: DefaultQuestions.
	Questions int
	Log       *slog.Logger
}

// Fleet is who shares the store.
type Fleet struct {
	Nodes []Node
	// Age is how long ago the store was asked for them; Old says that this is too
	// long to tell who is silent.
	Age time.Duration
	Old bool
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
	Silent  bool               `json:"silent"`       // it should have been heard since
	Rates   *Rates             `json:"rates"`        // nil: it is of a version that does not say
	Wrong   int                `json:"problems"`
	Holders []ratelimit.Holder `json:"-"`
	Every   time.Duration      `json:"-"` // it says that it is there so often
	// Rules is the fingerprint of the rules that it has in force; "": none, or it is
	// of a version that does not say.
	Rules string `json:"rules"`
}

// Bounds of what one page costs.
const (
	shownRules = 200
	shownKeys  = 20
	shownHeld  = 24              // leases of Envoys
	hotFor     = 2 * time.Second // an answer about the hottest keys serves so long
	askTimeout = 2 * time.Second
)

//go:embed index.html console.js page.js charts.js console.css openapi.json
var assets embed.FS

// console serves a Source.
type console struct {
	Source
	throttle *throttle
	// Questions and changes of overrides that run, and the import.
	changing, importing chan struct{}

	began    time.Time
	mu       sync.Mutex
	hot      []ratelimit.HotKey // guarded by mu
	hotTill  ratelimit.Instant  // guarded by mu
	held     *Envoys            // guarded by mu
	heldTill ratelimit.Instant  // guarded by mu
}

// Register adds the console's pages to a mux.
func Register(mux *http.ServeMux, s Source) { newConsole(s).register(mux) }

func newConsole(s Source) *console {
	return &console{
		Source: s, throttle: newThrottle(s.Questions, time.Now), began: time.Now(),
		changing: make(chan struct{}, overridesAtOnce), importing: make(chan struct{}, 1),
	}
}

func (c *console) register(mux *http.ServeMux) {
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
	file("/console/page.js", "page.js", "text/javascript; charset=utf-8")
	file("/console/charts.js", "charts.js", "text/javascript; charset=utf-8")
	file("/openapi.json", "openapi.json", "application/json")
	file("/console/console.css", "console.css", "text/css; charset=utf-8")
	mux.HandleFunc("GET /console/state", c.state)
	mux.HandleFunc("GET /console/history", c.history)
	mux.HandleFunc("GET /explain", c.explain)
	mux.HandleFunc("POST /admin/reset", c.correct("reset", c.reset))
	mux.HandleFunc("POST /admin/drop", c.correct("drop", c.drop))
	c.registerOverrides(mux)
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

func answer(w http.ResponseWriter, v any) { answerWith(w, http.StatusOK, v) }

func answerWith(w http.ResponseWriter, code int, v any) {
	secure(w, "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // it escapes <, > and &
}

func refuse(w http.ResponseWriter, code int, format string, args ...any) {
	answerWith(w, code, map[string]string{"error": ratelimit.OneLine(fmt.Sprintf(format, args...))})
}

// State is what the page asks for every two seconds.
type State struct {
	metrics.State
	Name     string             `json:"name"` // this node's debug port, as others know it
	Started  time.Time          `json:"started"`
	Problems []Problem          `json:"problems"` // the gravest first
	Recent   Rates              `json:"recent"`   // of the last ten seconds
	Hottest  []ratelimit.HotKey `json:"hottest"`
	Redacted bool               `json:"redacted"` // values in keys are hidden
	Envoys   *Envoys            `json:"envoys"`   // that hold leases on streams to this node
	Nodes    []Node             `json:"nodes"`    // that share the store; none: nobody knows
	NodesAge float64            `json:"nodes_age_seconds"`
	NodesOld bool               `json:"nodes_old"` // too old to tell who is silent
	Admin    bool               `json:"admin"`     // corrections are possible, with the token
	Now      time.Time          `json:"now"`
}

func (c *console) state(w http.ResponseWriter, _ *http.Request) {
	fleet := c.fleet()
	v := State{
		State: c.Metrics.State(shownRules), Started: c.began.UTC(), Hottest: c.Redact.hottest(c.hottest()),
		Redacted: c.Redact != nil, Envoys: c.envoys(),
		Nodes: fleet.Nodes, NodesAge: fleet.Age.Seconds(), NodesOld: fleet.Old,
		Admin: c.Token != "", Now: time.Now().UTC(),
	}
	if c.Name != nil {
		v.Name = c.Name()
	}
	var rules recentRules
	v.Recent, rules = c.History.recent()
	v.Problems = problems(&v, v.Recent, rules)
	answer(w, v)
}

func (c *console) fleet() Fleet {
	if c.Nodes == nil {
		return Fleet{}
	}
	return c.Nodes()
}

// hostOf is the node that a holder is, "" if that is not known.
func (c *console) hostOf(h ratelimit.Holder) string {
	for _, n := range c.fleet().Nodes {
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
