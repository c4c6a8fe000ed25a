package settings

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit/config"
)

// Caps are in proportion to the memory, within bounds, and docs/guides/capacity.md has the figures.
func TestCaps(t *testing.T) {
	page, err := os.ReadFile("../../../docs/guides/capacity.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		of   Memory
		want string
	}{
		{Memory{Bytes: 2 << 30, Alone: true}, "64 4096 1024 10485 256 1"},
		{Memory{Bytes: 2 << 30}, "64 4096 1024 10485 256 1"},
		{Memory{Bytes: 256 << 30}, "64 4096 1024 10485 256 1"}, // of a machine that others use, too
		{Memory{Bytes: 64 << 20, Alone: true}, "32 512 128 1000 8 1"},
		{Memory{Bytes: 8 << 30, Alone: true}, "256 16384 4096 41943 1024 4"},
		{Memory{Bytes: 1 << 40, Alone: true}, "1024 65536 16384 100000 1024 16"},
	} {
		c := x.of.Caps()
		got := fmt.Sprint(c.bytesInFlight>>20, c.GRPCConnections, c.HTTPConnections, c.quotaStreams, c.quotaBytes>>20,
			c.Rules.Rules/config.DefaultCaps().Rules)
		if got != x.want {
			t.Errorf("%+v: %s, want %s", x.of, got, x.want)
		}
		if c.bytesInFlight < 16*RequestBytes || c.bytesInFlight < 32<<20 {
			t.Errorf("%+v: %d bytes in flight are too few for requests and peers", x.of, c.bytesInFlight)
		}
	}
	for _, row := range []string{
		"| 64 MiB | 32 MiB to 1 GiB |", "| 4096 | 512 to 65536 |", "| 1024 | 128 to 16384 |", "| 10485 | 1000 to 100000 |",
		"| 256 MiB | 8 MiB to 1 GiB |",
	} {
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/guides/capacity.md does not have %s", row)
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
	if m, err := MemoryOf("1GiB"); err != nil || m != (Memory{1 << 30, "MAX_MEMORY", true}) {
		t.Errorf("%+v %v", m, err)
	}
}
