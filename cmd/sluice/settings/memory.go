package settings

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Memory is how much this process may use, and who says so.
type Memory struct {
	Bytes int64
	From  string
	Alone bool // it is this process's, and no others'
}

// unknownMemory is what to reckon with where the system says nothing. It is as large as referenceMemory, so the caps
// then have the figures of the guides.
const unknownMemory = 2 << 30

// MemoryOf is the memory that MAX_MEMORY gives this process, or without it what the system does. An error is one of
// MAX_MEMORY.
func MemoryOf(maxMemory string) (Memory, error) {
	if maxMemory == "" {
		return ownMemory(os.ReadFile), nil
	}
	bytes, err := parseMemory(maxMemory)
	return Memory{bytes, "MAX_MEMORY", true}, err
}

// ownMemory finds the least of what bounds this process. It reads GOMEMLIMIT, then the limit of the container in cgroup
// v2 and v1, then the memory of the machine.
func ownMemory(read func(string) ([]byte, error)) Memory {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return Memory{limit, "GOMEMLIMIT", true}
	}
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := read(file)
		if err != nil {
			continue
		}
		// "max", and a number beyond all memory, are no limit.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && n < 1<<50 {
			return Memory{n, "the container", true}
		}
	}
	if text, err := read("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] != "MemTotal:" {
				continue
			}
			if kib, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return Memory{kib << 10, "the machine", false}
			}
		}
	}
	return Memory{unknownMemory, "nobody", false}
}

// Bounds of the derived number; MAX_KEYS may set more, or less.
const (
	leastKeys = 10_000
	mostKeys  = 10_000_000
)

// keys is the number of keys that fit, each with at most so many bytes: into half of the process's own memory, or a
// quarter of shared memory. The other half is for connections, requests and the collector's garbage. On a shared
// machine, other processes need the rest.
func (m Memory) keys(each int64) int {
	part := m.Bytes / 4
	if m.Alone {
		part = m.Bytes / 2
	}
	return int(min(max(part/each, leastKeys), mostKeys))
}

// Table is how many keys are tracked, each of at most so many bytes: maxKeys (MAX_KEYS), or what fits if that is 0. So
// invented keys fill a known part of the memory. It keeps the collector from using what the table may need. It sets the
// memory limit of the collector, so it is called once, before the table fills.
func (m Memory) Table(maxKeys int, each int64, log *slog.Logger) int {
	from := "MAX_KEYS"
	if maxKeys == 0 {
		maxKeys, from = m.keys(each), m.From
	}
	most := int64(maxKeys) * each
	if m.Alone { // the table is not on the collector's heap, and GOMEMLIMIT does not count it
		debug.SetMemoryLimit(max(m.Bytes/10*9-most, m.Bytes/4))
	}
	level := slog.LevelDebug
	if from == "MAX_KEYS" {
		level = slog.LevelInfo
	}
	log.Log(context.Background(), level, "key table sized", "max_keys", maxKeys, "from", from, "memory", gigabytes(m.Bytes), "table_at_most", gigabytes(most))
	if most > m.Bytes/10*8 {
		log.Warn("MAX_KEYS needs more memory than the process has: invented keys can end it. Lower MAX_KEYS, or add memory",
			"max_keys", maxKeys, "table_at_most", gigabytes(most), "memory", gigabytes(m.Bytes), "memory_of", m.From)
	}
	return maxKeys
}

// gigabytes is a number of bytes for people.
func gigabytes(n int64) string { return fmt.Sprintf("%.1f GB", float64(n)/1e9) }

// The ballast is an unused part of the heap. Its pages are never touched, so that the machine spends no
// memory on it. But the collector, which runs each time that the heap has doubled, counts it as kept: the
// heap grows by a ballast more before it runs.
//
// A node keeps a few MB on the heap, because its table of keys is elsewhere, and each call leaves a few KB
// behind. Without a ballast the heap has doubled after some thousand calls, and the collector is a large part
// of their cost (GODEBUG=gctrace=1 shows both).
//
// A GOGC with the same effect on 3 MB would let a heap of 100 MB grow by a gigabyte before the collector
// runs. The ballast adds the same to each heap.
const mostBallast = 16 << 20

// Ballast is to be kept while calls are answered. It is a thirty-second of what this process may use at
// most: GOMEMLIMIT counts it, although it takes no memory.
func (m Memory) Ballast(lookup func(string) (string, bool)) []byte {
	// An operator who sets GOGC has decided how often the collector runs.
	if value, _ := lookup("GOGC"); value != "" {
		return nil
	}
	return make([]byte, min(mostBallast, m.Bytes/32))
}

// A node with many streams of RLQS keeps a hundred MB and more on the heap, all of it pointers. Each run of the
// collector takes a tenth of a second on two processors. With Go's own setting, that was every three seconds at
// 2,000 messages of reports a second, and delayed one call of RLS in a hundred by some milliseconds. So it may
// leave three times as much garbage as it keeps before the collector runs.
const (
	manyStreams = 1000
	usual, rare = 100, 300 // as GOGC has it: the heap may grow by so many percent
)

// growth is how much the heap may grow with so many streams. Between half of many and many it stays as it
// is: to change it stops all calls for a moment.
func growth(now, streams int) int {
	switch {
	case streams >= manyStreams:
		return rare
	case streams < manyStreams/2:
		return usual
	}
	return now
}

// EaseCollector has the collector run less often while there are many streams, until ctx is done.
func EaseCollector(ctx context.Context, streams func() int64, lookup func(string) (string, bool)) {
	// An operator who sets GOGC has decided how often the collector runs.
	if value, _ := lookup("GOGC"); value != "" {
		return
	}
	now := usual
	upkeep.Every(ctx, 5*time.Second, func() {
		if next := growth(now, int(streams())); next != now {
			now = next
			debug.SetGCPercent(now)
		}
	})
}
