package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// built is what the Go tool recorded of this binary.
type built struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"commit_time,omitempty"`
	Modified bool   `json:"modified"` // the tree had changes that were not committed
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func builtAs() built {
	b := built{Version: version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// Help is what `sluice version --help` says below its summary.
func (*versionCmd) Help() string {
	return `Examples:

  sluice version
  sluice version --json`
}

// Run prints which sluice this is.
func (c *versionCmd) Run(s streams) error {
	b := builtAs()
	if c.JSON {
		return writeJSON(s.out, b)
	}
	fmt.Fprintf(s.out, "sluice %s\n", b.Version)
	if b.Commit != "" {
		changed := ""
		if b.Modified {
			changed = ", with changes that were not committed"
		}
		fmt.Fprintf(s.out, "commit %s of %s%s\n", b.Commit, b.Time, changed)
	}
	_, err := fmt.Fprintf(s.out, "%s, %s\n", b.Go, b.Platform)
	return err
}
