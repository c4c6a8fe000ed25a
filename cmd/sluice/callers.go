package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/server"
)

// callerFlags bound the time and the rights of callers; see also caps.
type callerFlags struct {
	RequestTimeout time.Duration `env:"REQUEST_TIMEOUT" name:"request-timeout" default:"10s" help:"Maximum time to read a request or write a response. Slower connections are closed."`
	Gzip           bool          `env:"GRPC_ACCEPT_GZIP" name:"grpc-accept-gzip" help:"Accept gzip requests that unpack to at most 16 times their size and 256 KiB."`
	DebugHosts     string        `env:"DEBUG_ALLOWED_HOSTS" name:"debug-allowed-hosts" placeholder:"NAME,..." help:"Host names of the debug port, in addition to addresses, names without a dot and .svc, .cluster.local, .local, .internal. *: all. Requests for other names are refused, against DNS rebinding."`
	Pprof          string        `env:"DEBUG_PPROF" name:"debug-pprof" default:"local" help:"Access to profiles of at most 60s: local (this machine and port forwards), on or off."`
}

func (f *callerFlags) validate() error {
	var errs []error
	if f.RequestTimeout < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("REQUEST_TIMEOUT is %v, must be at least 100ms", f.RequestTimeout))
	}
	if all := []string{server.ProfilesFromHere, server.ProfilesFromAll, server.ProfilesOff}; !slices.Contains(all, f.Pprof) {
		errs = append(errs, fmt.Errorf("DEBUG_PPROF is %q, must be %s", f.Pprof, strings.Join(all, ", ")))
	}
	return errors.Join(errs...)
}

func (s *settings) debugOptions() server.DebugOptions {
	o := server.DebugOptions{Profiles: s.Callers.Pprof, Unnamed: []string{"/metrics"}}
	for name := range strings.SplitSeq(s.Callers.DebugHosts, ",") {
		if name = strings.TrimSpace(name); name != "" {
			o.Hosts = append(o.Hosts, name)
		}
	}
	return o
}
