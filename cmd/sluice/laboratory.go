//go:build !server

package main

// laboratory are the commands that measure, simulate and show. A build with the
// tag server does not have them.
type laboratory struct {
	Demo  demoCmd  `cmd:"" help:"A fleet under load on this machine, to look at."`
	Bench benchCmd `cmd:"" help:"Measure."`
	Sim   simCmd   `cmd:"" help:"Simulate."`
}
