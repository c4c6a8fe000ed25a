package main

import (
	"os"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/report"
)

type benchCmd struct {
	Accuracy benchAccuracyCmd `cmd:"" help:"Admitted requests of each mode compared with its limits, under load and faults."`
	Cost     benchCostCmd     `cmd:"" help:"Server CPU a call, against an empty gRPC server of the same protocol, in one run."`
	Envoy    benchEnvoyCmd    `cmd:"" help:"Latency and CPU of a request through Envoy: each mode, an empty server, and no filter."`
	Keys     benchKeysCmd     `cmd:"" help:"Memory and limits of one process under ever new keys."`
	Overload benchOverloadCmd `cmd:"" help:"Goodput of a server at up to ten times its capacity."`
	Store    benchStoreCmd    `cmd:"" help:"Redis CPU for a decision in each mode, compared with a service that asks Redis for each request."`
	Streams  benchStreamsCmd  `cmd:"" help:"What calls of RLS cost while thousands of streams of RLQS report."`
	Table    benchTableCmd    `cmd:"" help:"Memory a key, and time a decision, for a million keys and more in one process."`
	Empty    benchEmptyCmd    `cmd:"" hidden:"" help:"Serve the empty server."`
	Baseline benchBaselineCmd `cmd:"" hidden:"" help:"Serve the server that asks Redis for each request."`
}

// facts are those of a page about what this process has measured, for so long until now.
func facts(took time.Duration) []report.Fact {
	return []report.Fact{
		{Name: "command", Value: strings.Join(os.Args, " ")},
		{Name: "when", Value: time.Now().UTC().Format(time.RFC3339)},
		{Name: "took", Value: took.Round(time.Second).String()},
	}
}
