//go:build !server

package main

import (
	"fmt"
	"io"
	"time"
)

type simCmd struct {
	WhatIf    whatIfCmd    `cmd:"" name:"what-if" help:"What each mode would do with a limit under some demand, and which to choose."`
	Histories historiesCmd `cmd:"" help:"Play random fleets, settings and faults, and check every invariant at every step."`
}

// simGC lets the simulator's heap grow to five times what is alive: its garbage
// is short-lived, and its memory small.
const simGC = 400

// progressLine returns what tells a person how far a long run is; nil, if
// nobody looks.
func progressLine(out io.Writer, of int64, what string) func(int64) {
	if out == nil {
		return nil
	}
	var last time.Time
	return func(n int64) {
		if now := time.Now(); n == of || now.Sub(last) > 200*time.Millisecond {
			last = now
			fmt.Fprintf(out, "\r%d of %d %s", n, of, what)
			if n == of {
				fmt.Fprintln(out)
			}
		}
	}
}
