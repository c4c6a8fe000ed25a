package settings

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// How much memory there is, is read where each system says it.
func TestOwnMemory(t *testing.T) {
	const v2, v1, machine = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/proc/meminfo"
	total := "MemFree: 1 kB\nMemTotal:       16384 kB\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Memory
	}{
		{"a container", map[string]string{v2: "536870912\n", machine: total}, Memory{512 << 20, "the container", true}},
		{"an older container", map[string]string{v1: "268435456\n", machine: total}, Memory{256 << 20, "the container", true}},
		{"a container without a limit", map[string]string{v2: "max\n", machine: total}, Memory{16 << 20, "the machine", false}},
		{"an older container without a limit", map[string]string{v1: "9223372036854771712\n", machine: total}, Memory{16 << 20, "the machine", false}},
		{"nonsense", map[string]string{v2: "x", machine: "MemTotal: y kB"}, Memory{unknownMemory, "nobody", false}},
		{"another system", nil, Memory{unknownMemory, "nobody", false}},
	} {
		read := func(name string) ([]byte, error) {
			if text, ok := c.files[name]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		}
		if got := ownMemory(read); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	old := debug.SetMemoryLimit(300 << 20)
	defer debug.SetMemoryLimit(old)
	if got := ownMemory(os.ReadFile); got.Bytes != 300<<20 || got.From != "GOMEMLIMIT" {
		t.Errorf("%+v", got)
	}
}

// The table takes at most half of what is this process's own, whatever a key takes, and
// what MAX_KEYS says is not changed.
func TestTableFitsTheMemory(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	for _, c := range []struct {
		each     int64
		max      int
		m        Memory
		want     int
		complain bool
	}{
		{local.KeyBytes, 0, Memory{512 << 20, "the container", true}, 256 << 20 / local.KeyBytes, false},
		{leasing.KeyBytes, 0, Memory{512 << 20, "GOMEMLIMIT", true}, 256 << 20 / leasing.KeyBytes, false},
		{local.KeyBytes, 0, Memory{512 << 20, "the machine", false}, 128 << 20 / local.KeyBytes, false},
		{local.KeyBytes, 0, Memory{1 << 20, "the machine", false}, leastKeys, true},
		{local.KeyBytes, 0, Memory{1 << 40, "the machine", false}, mostKeys, false},
		{local.KeyBytes, 700_000, Memory{512 << 20, "the machine", false}, 700_000, false},
		{leasing.KeyBytes, 1_000_000, Memory{512 << 20, "GOMEMLIMIT", true}, 1_000_000, true},
	} {
		debug.SetMemoryLimit(c.m.Bytes) // as GOMEMLIMIT does
		var log bytes.Buffer
		if keys := c.m.Table(c.max, c.each, slog.New(slog.NewTextHandler(&log, nil))); keys != c.want {
			t.Errorf("%+v: %d keys", c, keys)
		}
		if got := strings.Contains(log.String(), "more memory than the process has"); got != c.complain {
			t.Errorf("%+v: it says %s", c, &log)
		}
		if limit := debug.SetMemoryLimit(-1); c.m.Alone && (limit > c.m.Bytes*9/10-256<<20+1<<20 || limit < c.m.Bytes/4) {
			t.Errorf("%+v: the collector may use %d", c, limit)
		}
	}
}

// The ballast is a small part of the memory, and none where GOGC is set.
func TestBallast(t *testing.T) {
	unset := func(string) (string, bool) { return "", false }
	for bytes, want := range map[int64]int{64 << 20: 2 << 20, 512 << 20: 16 << 20, 1 << 40: 16 << 20} {
		if got := len((Memory{Bytes: bytes}).Ballast(unset)); got != want {
			t.Errorf("of %d bytes of memory, the ballast is %d, want %d", bytes, got, want)
		}
	}
	if got := (Memory{Bytes: 1 << 40}).Ballast(func(name string) (string, bool) { return "100", name == "GOGC" }); got != nil {
		t.Errorf("with GOGC set the ballast is %d", len(got))
	}
}

// The collector runs less often while there are many streams, and a number of them that goes up and down
// does not have the setting follow.
func TestManyStreamsEaseTheCollector(t *testing.T) {
	now := usual
	for _, step := range []struct{ streams, want int }{
		{0, usual}, {999, usual}, {1000, rare}, {999, rare}, {500, rare}, {10_000, rare}, {499, usual}, {600, usual},
	} {
		if now = growth(now, step.streams); now != step.want {
			t.Errorf("with %d streams the heap may grow by %d percent, want %d", step.streams, now, step.want)
		}
	}
}

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
