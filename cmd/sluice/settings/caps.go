package settings

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

// Caps bound the memory and the work that callers, peers, Envoys and rules can cost a node. Those that hold memory in
// proportion to their number follow from one figure, the node's memory; docs/guides/capacity.md has the table.
type Caps struct {
	bytesInFlight   int64 // of calls and bodies that callers have begun and not ended; peers have as much
	GRPCConnections int
	HTTPConnections int
	quotaStreams    int // of RLQS
	quotaBytes      int // of their buckets
	Rules           config.Caps
}

// The caps that do not depend on memory. The others are in [Caps].
const (
	RequestBytes     = 256 << 10 // of one request; Envoy sends hundreds
	headerBytes      = 8 << 10   // of a call's headers, unpacked
	callsAtOnce      = 1000      // on one connection
	DebugConnections = 64
	peerConnections  = 2000
	idleConnection   = 5 * time.Minute
	requestTimeout   = 10 * time.Second // to read a request, or to write a response
)

// referenceMemory is the memory for which the caps have the figures of docs/guides/capacity.md.
const referenceMemory = 2 << 30

// Caps are in proportion to the memory, within bounds. Memory that other processes use, too, counts up to the
// reference: a larger machine says nothing of the share of this process. part takes an amount for each so many bytes,
// and holds it between two bounds. The comments have the values at 2 GiB.
func (m Memory) Caps() Caps {
	bytes := m.Bytes
	if !m.Alone {
		bytes = min(bytes, referenceMemory)
	}
	part := func(each, least, most int64) int64 { return min(max(bytes/each, least), most) }
	return Caps{
		bytesInFlight:   part(32, 32<<20, 1<<30),           // 64 MiB of 2 GiB
		GRPCConnections: int(part(512<<10, 512, 1<<16)),    // 4096; each costs about 30 KB
		HTTPConnections: int(part(2<<20, 128, 1<<14)),      // 1024
		quotaStreams:    int(part(200<<10, 1000, 100_000)), // 10485
		quotaBytes:      int(part(8, 8<<20, 1<<30)),        // 256 MiB
		Rules:           config.DefaultCaps().Times(int(part(referenceMemory, 1, 16))),
	}
}

// Transport are the caps of the gRPC port.
func (c *Caps) Transport() transport.Caps {
	return transport.Caps{
		Connections: c.GRPCConnections, Streams: callsAtOnce, HeaderBytes: headerBytes, MessageBytes: RequestBytes,
		RequestTimeout: requestTimeout, Idle: idleConnection,
	}
}

// Quotas are the caps of the Rate Limit Quota Service.
func (c *Caps) Quotas() rlqs.Options {
	o := rlqs.DefaultOptions()
	o.Streams, o.Bytes = c.quotaStreams, c.quotaBytes
	return o
}

// Budgets are shares of the bytes in flight. Each has its own, so that callers of one port cannot have those of
// another closed.
type Budgets struct{ GRPC, HTTP *transport.Budget }

// Budgets divides the bytes in flight.
func (c *Caps) Budgets() Budgets {
	bodies := c.bytesInFlight / 4
	return Budgets{GRPC: transport.NewBudget(c.bytesInFlight - bodies), HTTP: transport.NewBudget(bodies)}
}

// Peers bounds the listener of the peers' port, and returns its budget. Peers have a budget of their own, so that
// callers cannot shut them out.
func (c *Caps) Peers(l net.Listener) (*transport.Listener, *transport.Budget) {
	budget := transport.NewBudget(c.bytesInFlight)
	return transport.Listen(l, peerConnections, budget), budget
}

// All are the budgets by the names that metrics give them.
func (b Budgets) All() map[string]*transport.Budget {
	return map[string]*transport.Budget{"grpc": b.GRPC, "http": b.HTTP}
}

// byteUnits are those of GOMEMLIMIT.
var byteUnits = []struct {
	name string
	of   int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}, {"", 1}}

// leastMemory is less than a node needs to start.
const leastMemory = 64 << 20

// parseMemory reads MAX_MEMORY: bytes, with a unit as GOMEMLIMIT has it. The largest value is 1 PiB, so that no product
// overflows.
func parseMemory(text string) (int64, error) {
	for _, unit := range byteUnits {
		number, ok := strings.CutSuffix(text, unit.name)
		if n, err := strconv.ParseInt(number, 10, 64); ok && err == nil && n >= (leastMemory+unit.of-1)/unit.of && n <= (1<<50)/unit.of {
			return n * unit.of, nil
		}
	}
	return 0, fmt.Errorf("MAX_MEMORY is %q, must be at least 64MiB: a number of bytes, or one with KiB, MiB, GiB or TiB", text)
}
