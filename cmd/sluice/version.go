package main

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/sluice-gate/sluice/cmd/cli"
)

// versionCmd prints which build this is.
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

// released is the version that make release gives a binary; "": none. The linker sets it (-X).
var released string

// version is the release's, or the module's as the Go tool recorded it.
func version() string { return builtAs().Version }

// A binary that was built outside of a checkout has no commit.
func builtAs() built {
	b := built{Version: cmp.Or(released, "unknown"), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = cmp.Or(released, info.Main.Version, b.Version)
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

// Run prints which sluice this is.
func (c *versionCmd) Run(s cli.Streams) error {
	b := builtAs()
	if c.JSON {
		return s.JSON(b)
	}
	return builtText.Write(s.Out, b)
}

var builtText = cli.NewText(`sluice {{.Version}}
{{if .Commit -}}
commit {{.Commit}} of {{.Time}}{{if .Modified}}, with changes that were not committed{{end}}
{{end -}}
{{.Go}}, {{.Platform}}
`, nil)
