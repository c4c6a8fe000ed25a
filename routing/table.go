package routing

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/routing/wire"
)

// Without a store, the table that all nodes have is the peers': a node sends all of its table on each new stream, and
// then each change (ratelimit/table).

// tableEvery is the interval of looks for changes of the table.
const tableEvery = 500 * time.Millisecond

// tableStream is what a stream has sent of the table; nil: there is none here.
func (c *core) tableStream() *table.Stream {
	if c.inStore() || c.options.Table == nil {
		return nil
	}
	return table.NewStream(c.options.Table)
}

// sendTable sends what has changed since.
func sendTable(s *table.Stream, send func(*wire.Frame) error) error {
	if s == nil {
		return nil
	}
	for m := s.Next(); m != nil; m = s.Next() {
		if err := send(&wire.Frame{Table: m}); err != nil {
			return err
		}
	}
	return nil
}

// receiveTable handles records of a peer. It reports whether they make sense.
func (c *core) receiveTable(now instant, message []byte) bool {
	if c.inStore() || c.options.Table == nil {
		return false
	}
	return c.options.Table.Receive(message, table.At(now)) == nil
}
