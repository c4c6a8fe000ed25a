package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// caps bound the memory and the work that callers, peers, Envoys and rules can cost a node. Those that hold memory in
// proportion to their number follow from one figure, the node's memory; docs/callers.md has the table.
type caps struct {
	bytesInFlight   int64 // of calls and bodies that callers have begun and not ended; peers have as much
	grpcConnections int
	httpConnections int
	quotaStreams    int // of RLQS
	rules           config.Caps
}

// The caps that do not depend on memory.
const (
	requestBytes     = 256 << 10 // of one request; Envoy sends hundreds
	headerBytes      = 8 << 10   // of a call's headers, unpacked
	callsAtOnce      = 1000      // on one connection
	debugConnections = 64
	peerConnections  = 2000
	explainRate      = 20 // a second
	idleConnection   = 5 * time.Minute
	requestTimeout   = 10 * time.Second // to read a request, or to write a response
)

// referenceMemory is the memory for which the caps have the figures of docs/callers.md.
const referenceMemory = 2 << 30

// caps are in proportion to the memory, within bounds. Memory that other processes use, too, counts up to the
// reference: a larger machine says nothing of the share of this process.
func (m memory) caps() caps {
	bytes := m.bytes
	if !m.alone {
		bytes = min(bytes, referenceMemory)
	}
	part := func(each, least, most int64) int64 { return min(max(bytes/each, least), most) }
	return caps{
		bytesInFlight:   part(32, 32<<20, 1<<30),           // 64 MiB of 2 GiB
		grpcConnections: int(part(512<<10, 512, 1<<16)),    // 4096; each costs about 30 KB
		httpConnections: int(part(2<<20, 128, 1<<14)),      // 1024
		quotaStreams:    int(part(200<<10, 1000, 100_000)), // 10485
		rules:           config.DefaultCaps().Times(int(part(referenceMemory, 1, 16))),
	}
}

// transport are the caps of the gRPC port.
func (c *caps) transport() transport.Caps {
	return transport.Caps{
		Connections: c.grpcConnections, Streams: callsAtOnce, HeaderBytes: headerBytes, MessageBytes: requestBytes,
		RequestTimeout: requestTimeout, Idle: idleConnection,
	}
}

// quotas are the caps of the Rate Limit Quota Service.
func (c *caps) quotas() rlqs.Options {
	o := rlqs.DefaultOptions()
	o.Streams = c.quotaStreams
	return o
}

// budgets are shares of the bytes in flight. Each has its own, so that callers of one port cannot have those of
// another closed.
type budgets struct{ grpc, http *transport.Budget }

func (c *caps) budgets() budgets {
	bodies := c.bytesInFlight / 4
	return budgets{grpc: transport.NewBudget(c.bytesInFlight - bodies), http: transport.NewBudget(bodies)}
}

// peers bounds the listener of the peers' port, and returns its budget.
func (c *caps) peers(l net.Listener) (*transport.Listener, *transport.Budget) {
	budget := transport.NewBudget(c.bytesInFlight)
	return transport.Listen(l, peerConnections, budget), budget
}

func (b budgets) all() map[string]*transport.Budget {
	return map[string]*transport.Budget{"grpc": b.grpc, "http": b.http}
}

// byteUnits are those of GOMEMLIMIT.
var byteUnits = []struct {
	name string
	of   int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}, {"", 1}}

// leastMemory is less than a node needs to start.
const leastMemory = 64 << 20

// parseMemory reads MAX_MEMORY: bytes, with a unit as GOMEMLIMIT has it.
func parseMemory(text string) (int64, error) {
	for _, unit := range byteUnits {
		number, ok := strings.CutSuffix(text, unit.name)
		if n, err := strconv.ParseInt(number, 10, 64); ok && err == nil && n >= (leastMemory+unit.of-1)/unit.of && n <= (1<<50)/unit.of {
			return n * unit.of, nil
		}
	}
	return 0, fmt.Errorf("MAX_MEMORY is %q, must be at least 64MiB: a number of bytes, or one with KiB, MiB, GiB or TiB", text)
}
