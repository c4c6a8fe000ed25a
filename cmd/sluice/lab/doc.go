// Package lab has the commands that need the load generator and the simulator: [Demo] and [WhatIf].
//
// Demo runs real nodes, and a Redis, on free ports of this machine, and ends them all when it returns. WhatIf plays the
// nodes' code in virtual time: the same question and seed give the same answer. A build with the tag server leaves the
// package out.
package lab
