package server

import (
	"io"
	"net/http"
	"net/http/pprof"
)

// Debug is the handler of the debug port. It is for people; more adds pages.
func Debug(rules, stats, ring func(io.Writer), metrics http.Handler, more func(*http.ServeMux)) http.Handler {
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
		_, _ = io.WriteString(w, "/console: what this node does, live\n/explain?domain=D&entry=K=V: what a descriptor would get, and why\n/rlconfig: the rules in force\n/stats: counters\n/ring: who owns keys together, and which are hot\n/metrics: counters for Prometheus\n/debug/pprof/: profiles\n")
	})
	page("/rlconfig", rules)
	page("/stats", stats)
	page("/ring", ring)
	mux.Handle("/metrics", metrics)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
