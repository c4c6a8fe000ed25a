package ledger

import (
	"encoding/binary"

	"github.com/sluice-gate/sluice/ratelimit"
)

func testRule(l ratelimit.Limit) *ratelimit.Rule {
	return &ratelimit.Rule{Domain: "d", Path: "p", Limit: l, Coordination: ratelimit.DefaultCoordination()}
}

func keyOf(n uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{1, 0, 1, 'd'}, n)
}
