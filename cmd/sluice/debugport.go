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
	return s.DebugHost != "localhost" && !net.ParseIP(bare(s.DebugHost)).IsLoopback()
}

func (s *flags) debugOptions() server.DebugOptions {
	names := strings.FieldsFunc(s.DebugHosts, func(r rune) bool { return strings.ContainsRune(", ", r) })
	return server.DebugOptions{Unnamed: []string{"/metrics"}, Hosts: names}
}
