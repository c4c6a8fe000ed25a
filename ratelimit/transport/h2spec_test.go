package transport

import (
	_ "embed"
	"encoding/xml"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var h2spec = flag.Bool("h2spec", false, "whether h2spec plays its cases against a port; make h2spec")

// h2specLeft are the cases of h2spec that a port of gRPC fails; the file has the reasons.
//
//go:embed testdata/h2spec.txt
var h2specLeft string

// A port speaks HTTP/2 as the cases of h2spec ask, except those that are listed.
func TestH2Spec(t *testing.T) {
	if !*h2spec {
		t.Skip("make h2spec runs it")
	}
	addr := servePort(t, variants["callers' port"](t, usual))
	_, port, _ := net.SplitHostPort(addr)
	report := filepath.Join(t.TempDir(), "report.xml")
	// Its exit code is that of a failure, for there are some.
	play := exec.Command("go", "tool", "-modfile=../../tools.mod", "h2spec", "-p", port, "-o", "1", "-j", report)
	out, _ := play.CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var all struct {
		Suites []struct {
			Cases []struct {
				Package string    `xml:"package,attr"`
				Name    string    `xml:"classname,attr"`
				Failure string    `xml:"failure"`
				Error   string    `xml:"error"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	passed, left := 0, map[string]bool{} // whether those that are listed fail
	for line := range strings.Lines(h2specLeft) {
		if name := strings.TrimSpace(line); name != "" && name[0] != '#' {
			left[name] = false
		}
	}
	for _, suite := range all.Suites {
		for _, c := range suite.Cases {
			name := c.Package + ": " + c.Name
			failed := c.Failure+c.Error != ""
			_, known := left[name]
			if known {
				left[name] = failed
			}
			switch {
			case c.Skipped != nil:
			case !failed:
				passed++
			case !known:
				t.Errorf("%q fails: %s%s", name, c.Failure, c.Error)
			}
		}
	}
	for name, failed := range left {
		if !failed {
			t.Errorf("%q passes, or is none: take it off the list", name)
		}
	}
	t.Logf("%d cases pass", passed)
}
