//go:build !server

package main

import "github.com/sluice-gate/sluice/cmd/sluice/lab"

// laboratory are commands that need the simulator and the load generator. A build with the tag server leaves them out.
type laboratory struct {
	Demo   lab.Demo   `cmd:"" help:"Run a fleet under load on this machine."`
	WhatIf lab.WhatIf `cmd:"" name:"what-if" help:"Compare the modes for a limit and a demand, simulated, and recommend one."`
}
