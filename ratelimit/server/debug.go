package server

import (
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// DebugOptions are who may ask the debug port, and for what.
type DebugOptions struct {
	// Hosts are allowed names of the port, in addition to those that an outsider cannot point at it; "*"
	// allows all. See hostAllowed.
	Hosts []string
	// Unnamed are paths that any name may use.
	Unnamed []string
}

// longestProfile bounds what /debug/pprof/profile and /trace may be asked for.
const longestProfile = 60 * time.Second

// Debug is the handler of the debug port. It is for people; more adds pages.
//
// Nothing but numbers is shown to a page of another site that has its own name
// point here (DNS rebinding): a browser says that name as the Host, and it is
// refused.
func Debug(rules, stats, ring func(io.Writer), metrics http.Handler, o DebugOptions,
	more func(*http.ServeMux),
) http.Handler {
	mux := http.NewServeMux()
	more(mux)
	page := func(path string, write func(io.Writer)) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			write(w)
		})
	}
	page("/{$}", func(w io.Writer) {
		_, _ = io.WriteString(w, "/console: what this node does, live\n/explain?domain=D&entry=K=V: what a "+
			"descriptor would get, and why\n/rlconfig: the rules in force\n/stats: counters\n/ring: who owns keys "+
			"together, and which are hot\n/metrics: counters for Prometheus\n/openapi.json: these, for programs\n"+
			"/debug/pprof/: profiles\n")
	})
	page("/rlconfig", rules)
	page("/stats", stats)
	page("/ring", ring)
	mux.Handle("/metrics", metrics)
	profile := profiler()
	mux.HandleFunc("/debug/pprof/", profile(pprof.Index))
	mux.HandleFunc("/debug/pprof/cmdline", profile(pprof.Cmdline))
	mux.HandleFunc("/debug/pprof/profile", profile(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", profile(pprof.Symbol))
	mux.HandleFunc("/debug/pprof/trace", profile(pprof.Trace))
	// A machine's own name may have dots, and is asked for by people on its network.
	own, _ := os.Hostname()
	hosts := append(slices.Clone(o.Hosts), own)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(o.Unnamed, r.URL.Path) && !hostAllowed(r.Host, hosts) {
			refuseDebug(w, http.StatusMisdirectedRequest, "the debug port is not asked for as "+
				strconv.Quote(ratelimit.OneLine(r.Host))+": use its address, or name it in DEBUG_ALLOWED_HOSTS")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func refuseDebug(w http.ResponseWriter, code int, why string) {
	http.Error(w, why, code) // text/plain, nosniff
}

// privateNames end names that only a local resolver knows.
var privateNames = []string{".localhost", ".local", ".internal", ".svc", ".cluster.local"}

// hostAllowed tells whether a Host can only come from who means this port: an
// address, a name without a dot or one that no public registry has, or one that
// was allowed.
func hostAllowed(host string, allowed []string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	// A page of another site can have only its own, public name point here, and such a name has a
	// dot.
	if name == "" || net.ParseIP(name) != nil || !strings.Contains(name, ".") {
		return true
	}
	for _, end := range privateNames {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return slices.ContainsFunc(allowed, func(a string) bool { return a == "*" || strings.EqualFold(a, name) })
}

// profiler bounds profiles: callers on this machine take them (also kubectl port-forward), for how long, and one at
// a time. A profile costs the processor for as long as it takes, and shows what is in memory.
func profiler() func(http.HandlerFunc) http.HandlerFunc {
	one := make(chan struct{}, 1)
	return func(take http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if !onThisMachine(r.RemoteAddr) {
				refuseDebug(w, http.StatusForbidden, "profiles are not taken from "+r.RemoteAddr+
					": ask from this machine, or through kubectl port-forward")
				return
			}
			if text := r.FormValue("seconds"); text != "" {
				seconds, err := strconv.ParseFloat(text, 64)
				// A NaN is in no range, which a comparison the other way round would let pass.
				if err != nil || !(seconds >= 0 && seconds <= longestProfile.Seconds()) {
					refuseDebug(w, http.StatusBadRequest, "seconds is "+strconv.Quote(ratelimit.OneLine(text))+", "+
						"must be between 0 and "+strconv.Itoa(int(longestProfile.Seconds())))
					return
				}
			}
			select {
			// Profiles at the same time would show each other's cost.
			case one <- struct{}{}:
				defer func() { <-one }()
			default:
				w.Header().Set("Retry-After", "10")
				refuseDebug(w, http.StatusTooManyRequests, "a profile is being taken: ask again")
				return
			}
			take(w, r)
		}
	}
}

// onThisMachine tells whether an address is on this machine.
func onThisMachine(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}
