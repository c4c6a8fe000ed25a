package transport

import (
	"encoding/xml"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var h2spec = flag.Bool("h2spec", false, "whether h2spec plays its cases against a port; make h2spec")

// h2specLeft are the cases of h2spec that a port of gRPC fails, and why.
var h2specLeft = map[string]string{
	"generic/2: Sends a WINDOW_UPDATE frame on half-closed (remote) stream":                                                                                 "the answer is a header block alone",
	"generic/2: Sends a PRIORITY frame on half-closed (remote) stream":                                                                                      "the same",
	"http2/3.5: Sends invalid connection preface":                                                                                                           "the connection is closed before all is read, so that the kernel resets it",
	"http2/5.1: half closed (remote): Sends a DATA frame":                                                                                                   late,
	"http2/5.1: closed: Sends a DATA frame after sending RST_STREAM frame":                                                                                  late,
	"http2/5.1: closed: Sends a DATA frame":                                                                                                                 late,
	"http2/6.1: Sends a DATA frame on the stream that is not in \"open\" or \"half-closed (local)\" state":                                                  late,
	"http2/5.1.2: Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded":                                                 noGRPC,
	"http2/5.3.1: Sends HEADERS frame that depend on itself":                                                                                                priorities,
	"http2/5.3.1: Sends PRIORITY frame that depend on itself":                                                                                               priorities,
	"http2/6.9: Sends a WINDOW_UPDATE frame with a flow control window increment of 0 on a stream":                                                          noGRPC,
	"http2/6.9.1: Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream":                                       noGRPC,
	"http2/6.10: Sends multiple CONTINUATION frames preceded by a HEADERS frame":                                                                            "its headers are larger than the bound of a node",
	"http2/8.1.2.6: Sends a HEADERS frame with the \"content-length\" header field which does not equal the DATA frame payload length":                      noGRPC,
	"http2/8.1.2.6: Sends a HEADERS frame with the \"content-length\" header field which does not equal the sum of the multiple DATA frames payload length": noGRPC,
}

// The reasons of several.
const (
	noGRPC     = "it makes no calls of gRPC, which are answered with 415, or closed, before that matters"
	late       = "data may be on its way when a call is answered, as all refused ones are: it is ignored"
	priorities = "RFC 9113 has no priorities"
)

// A port speaks HTTP/2 as the cases of h2spec ask, except those that are listed.
func TestH2Spec(t *testing.T) {
	if !*h2spec {
		t.Skip("make h2spec runs it")
	}
	addr := servePort(t, variants["callers' port"](t, usual))
	_, port, _ := net.SplitHostPort(addr)
	report := filepath.Join(t.TempDir(), "report.xml")
	// Its exit code is that of a failure, for there are some.
	out, _ := exec.Command("go", "tool", "-modfile=../../tools.mod", "h2spec", "-p", port, "-o", "1", "-j", report).CombinedOutput()
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
	passed, left := 0, map[string]bool{}
	for _, suite := range all.Suites {
		for _, c := range suite.Cases {
			name := c.Package + ": " + c.Name
			failed := c.Failure+c.Error != ""
			_, known := h2specLeft[name]
			left[name] = failed && known
			switch {
			case c.Skipped != nil:
			case !failed:
				passed++
			case !known:
				t.Errorf("%q fails: %s%s", name, c.Failure, c.Error)
			}
		}
	}
	for name := range h2specLeft {
		if !left[name] {
			t.Errorf("%q passes, or is none: take it off the list", name)
		}
	}
	t.Logf("%d cases pass", passed)
}
