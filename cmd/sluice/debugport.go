package main

import (
	"net"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit/server"
)

// redacts tells whether values are hidden on the debug port: where others than this machine reach it, unless the setting
// says otherwise.
func (s *flags) redacts() bool {
	if s.ConsoleRedact != nil {
		return *s.ConsoleRedact
	}
	ip := net.ParseIP(bare(s.DebugHost))
	return s.DebugHost != "localhost" && (ip == nil || !ip.IsLoopback())
}

func (s *flags) debugOptions() server.DebugOptions {
	o := server.DebugOptions{Unnamed: []string{"/metrics"}}
	for name := range strings.SplitSeq(s.DebugHosts, ",") {
		if name = strings.TrimSpace(name); name != "" {
			o.Hosts = append(o.Hosts, name)
		}
	}
	return o
}
