package main

import (
	"os"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/report"
)

type benchCmd struct {
	Accuracy benchAccuracyCmd `cmd:"" help:"Compare admitted requests with limits in each mode, under load and faults."`
	Cost     benchCostCmd     `cmd:"" help:"Compare the CPU of a call with an empty gRPC server."`
	Envoy    benchEnvoyCmd    `cmd:"" help:"Measure latency and CPU of a request through Envoy: each mode, an empty server, no filter."`
	Keys     benchKeysCmd     `cmd:"" help:"Measure memory and limits of a process that gets new keys all the time."`
	Overload benchOverloadCmd `cmd:"" help:"Measure the goodput of a server at up to ten times its capacity."`
	Store    benchStoreCmd    `cmd:"" help:"Measure the CPU of Redis for a decision in each mode, and for a service that asks Redis for each request."`
	Streams  benchStreamsCmd  `cmd:"" help:"Measure RLS calls while thousands of RLQS streams report."`
	Table    benchTableCmd    `cmd:"" help:"Measure memory and time for a million keys and more in one process."`
	Tokens   benchTokensCmd   `cmd:"" help:"Measure limits in tokens whose cost is known when a request is done: what is over, what is refused, and the work of Redis."`
	Empty    benchEmptyCmd    `cmd:"" hidden:"" help:"Run the empty server."`
	Baseline benchBaselineCmd `cmd:"" hidden:"" help:"Run the server that asks Redis for each request."`
}

// output is how a command shows a report.
type output struct {
	JSON   bool   `help:"Print JSON."`
	HTML   string `placeholder:"FILE" help:"Also write a page with charts."`
	Charts string `placeholder:"DIR" help:"Also write the charts as SVG files."`
}

// show writes the page where it was asked for, and prints the report.
func (o *output) show(s streams, result any, page *report.Page, took time.Duration) error {
	page.Facts = facts(took)
	if err := page.Write(o.HTML, o.Charts); err != nil {
		return err
	}
	if o.JSON {
		return writeJSON(s.out, result)
	}
	return page.WriteText(s.out)
}

// facts are those of a page about what this process has measured, for so long until now.
func facts(took time.Duration) []report.Fact {
	return []report.Fact{
		{Name: "command", Value: strings.Join(os.Args, " ")},
		{Name: "when", Value: time.Now().UTC().Format(time.RFC3339)},
		{Name: "took", Value: took.Round(time.Second).String()},
	}
}
