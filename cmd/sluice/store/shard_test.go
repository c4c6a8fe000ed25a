package store

import (
	"testing"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// A node that starts while a shard of a Cluster is down serves the keys of the others.
func TestStartWithAShardDown(t *testing.T) {
	servers := redistest.Cluster(t, 3)
	servers[2].Kill()
	f := few
	f.URL, f.Type = servers[0].Addr, "CLUSTER"
	started(t, Flags{Redis: f})
}
