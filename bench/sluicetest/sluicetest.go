// Package sluicetest runs command lines and measurements as people do, for their tests.
package sluicetest

import (
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/leasing/redistest/program"
)

// Measure runs a measurement of sluice with all its commands, and of the servers that sluicelab runs. It returns the
// result, and its page for a terminal. It fails the test if there was not as much progress as was announced. It blocks
// for a build of both programs, which takes seconds where packages are cached.
func Measure[R report.Result](t *testing.T, m report.Measurement) (result R, page string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and starts programs")
	}
	told, all := 0, 0
	given := m.Given()
	var builds errgroup.Group
	builds.Go(func() (err error) { given.Binary, err = program.Build("sluice", "cmd/sluice"); return err })
	builds.Go(func() (err error) { given.Lab, err = program.Build("sluicelab", "cmd/sluicelab"); return err })
	if err := builds.Wait(); err != nil {
		t.Fatal(err)
	}
	given.Progress = func(done, of int, _ string) { told, all = done+1, of }
	got, err := m.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if told != all || told == 0 {
		t.Errorf("%d steps were told of %d", told, all)
	}
	var text strings.Builder
	if err := got.Page().WriteText(&text); err != nil {
		t.Fatal(err)
	}
	return got.(R), text.String()
}
