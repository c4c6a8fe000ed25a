//go:build !server

package main

// laboratory are commands that need the simulator and the load generator. A build with the tag server leaves them out.
type laboratory struct {
	Demo   demoCmd   `cmd:"" help:"Run a fleet under load on this machine."`
	WhatIf whatIfCmd `cmd:"" name:"what-if" help:"Compare the modes for a limit and a demand, simulated, and recommend one."`
}
