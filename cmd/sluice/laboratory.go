//go:build !server

package main

// laboratory are commands that need the simulator and the load generator. A build with the tag server leaves them out.
type laboratory struct {
	Demo   demoCmd   `cmd:"" help:"A fleet under load on this machine, to look at."`
	WhatIf whatIfCmd `cmd:"" name:"what-if" help:"What each mode would do with a limit under some demand, and which to choose."`
}
