package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit/config"
)

// Caps are in proportion to the memory, within bounds, and docs/callers.md has the figures.
func TestCaps(t *testing.T) {
	page := read(t, "docs/callers.md")
	for _, x := range []struct {
		of   memory
		want string
	}{
		{memory{bytes: 2 << 30, alone: true}, "64 4096 1024 10485 1"},
		{memory{bytes: 2 << 30}, "64 4096 1024 10485 1"},
		{memory{bytes: 256 << 30}, "64 4096 1024 10485 1"}, // of a machine that others use, too
		{memory{bytes: 64 << 20, alone: true}, "32 512 128 1000 1"},
		{memory{bytes: 8 << 30, alone: true}, "256 16384 4096 41943 4"},
		{memory{bytes: 1 << 40, alone: true}, "1024 65536 16384 100000 16"},
	} {
		c := x.of.caps()
		got := fmt.Sprint(c.bytesInFlight>>20, c.grpcConnections, c.httpConnections, c.quotaStreams, c.rules.Rules/config.DefaultCaps().Rules)
		if got != x.want {
			t.Errorf("%+v: %s, want %s", x.of, got, x.want)
		}
		if c.bytesInFlight < 16*requestBytes || c.bytesInFlight < 32<<20 {
			t.Errorf("%+v: %d bytes in flight are too few for requests and peers", x.of, c.bytesInFlight)
		}
		bounds := c.transport()
		quotas := c.quotas()
		if err := errors.Join(bounds.Validate(), quotas.Validate()); err != nil {
			t.Errorf("%+v: %v", x.of, err)
		}
	}
	for _, row := range []string{"| 64 MiB | 32 MiB to 1 GiB |", "| 4096 | 512 to 65536 |", "| 1024 | 128 to 16384 |", "| 10485 | 1000 to 100000 |"} {
		if !strings.Contains(page, row) {
			t.Errorf("docs/callers.md does not have %s", row)
		}
	}
}

func TestMaxMemory(t *testing.T) {
	for text, want := range map[string]int64{
		"2GiB": 2 << 30, "67108864": 64 << 20, "67108864B": 64 << 20, "65536KiB": 64 << 20, "512MiB": 512 << 20, "1TiB": 1 << 40,
		"63MiB": 0, "1GB": 0, "": 0, "-1GiB": 0, "9999999999GiB": 0, "GiB": 0, "1.5GiB": 0,
	} {
		if got, err := parseMemory(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q is %d (%v), want %d", text, got, err, want)
		}
	}
	s := flags{MaxMemory: "1GiB"}
	if m, err := s.memory(nil); err != nil || m.bytes != 1<<30 || !m.alone || m.from != "MAX_MEMORY" {
		t.Errorf("%+v %v", m, err)
	}
}
