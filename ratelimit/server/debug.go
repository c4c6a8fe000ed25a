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

// longestProfile bounds the time of /debug/pprof/profile and /trace.
const longestProfile = 60 * time.Second

// Debug is the handler of the debug port. It is for people: pages are texts, and more adds others. Hosts are allowed
// names of the port, in addition to those that an outsider cannot point at it; "*" allows all (see hostAllowed). The
// metrics are for all names.
//
// A page of another site may have its own name point here (DNS rebinding). It gets only numbers: the browser
// sends that name as the Host, which is refused.
func Debug(pages map[string]func(io.Writer), metrics http.Handler, hosts []string,
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
	// The pattern is the root alone, so that unknown paths are 404.
	page("/{$}", func(w io.Writer) {
		_, _ = io.WriteString(w, "/console: the state of this node, live\n/explain?domain=D&entry=K=V: the decision "+
			"on a descriptor, with its reason\n/rlconfig: the rules in force\n/stats: counters\n/ring: the owners of "+
			"keys, and hot keys\n/metrics: counters for Prometheus\n/openapi.json: these, for programs\n"+
			"/debug/pprof/: profiles\n")
	})
	for path, write := range pages {
		page(path, write)
	}
	mux.Handle("/metrics", metrics)
	profile := profiler()
	mux.HandleFunc("/debug/pprof/", profile(pprof.Index))
	mux.HandleFunc("/debug/pprof/cmdline", profile(pprof.Cmdline))
	mux.HandleFunc("/debug/pprof/profile", profile(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", profile(pprof.Symbol))
	mux.HandleFunc("/debug/pprof/trace", profile(pprof.Trace))
	// A machine's own name may have dots, and people on its network use it.
	own, _ := os.Hostname()
	hosts = append(slices.Clone(hosts), own)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" && !hostAllowed(r.Host, hosts) {
			http.Error(w, "the debug port does not accept the host name "+strconv.Quote(ratelimit.OneLine(r.Host))+
				": use its address, or name it in DEBUG_ALLOWED_HOSTS", http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// privateNames end names that only a local resolver has.
var privateNames = []string{".localhost", ".local", ".internal", ".svc", ".cluster.local"}

// hostAllowed reports whether a Host can only mean this port: an address, a name without a dot or outside of public
// registries, or an allowed name. Host is a header of the caller. A browser sets it from the URL, and a page cannot
// change it.
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

// profiler bounds profiles: callers on this machine take them (also kubectl port-forward), for how long, and one at a
// time. A profile costs the processor for as long as it takes, and shows what is in memory.
func profiler() func(http.HandlerFunc) http.HandlerFunc {
	one := make(chan struct{}, 1)
	return func(take http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if !onThisMachine(r.RemoteAddr) {
				http.Error(w, "profiles are not available from "+r.RemoteAddr+
					": use this machine, or kubectl port-forward", http.StatusForbidden)
				return
			}
			// The bound must be below WriteTimeout of the port, or the connection ends before the profile is written.
			if text := r.FormValue("seconds"); text != "" {
				seconds, err := strconv.ParseFloat(text, 64)
				// A NaN is in no range, which a comparison the other way round would let pass.
				if err != nil || !(seconds >= 0 && seconds <= longestProfile.Seconds()) {
					http.Error(w, "seconds is "+strconv.Quote(ratelimit.OneLine(text))+", must be between 0 and "+
						strconv.Itoa(int(longestProfile.Seconds())), http.StatusBadRequest)
					return
				}
			}
			select {
			// Profiles at the same time would show each other's cost.
			case one <- struct{}{}:
				defer func() { <-one }()
			default:
				w.Header().Set("Retry-After", "10")
				http.Error(w, "a profile is in progress: try again", http.StatusTooManyRequests)
				return
			}
			take(w, r)
		}
	}
}

// onThisMachine reports whether an address is on this machine.
func onThisMachine(address string) bool {
	host, _, _ := net.SplitHostPort(address) // "" is no address
	return net.ParseIP(host).IsLoopback()
}
