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

// In a Cluster, nodes and seats of the drift budget are counted by one clock each, that of the server that has them:
// clocks of servers differ.
func TestNodesAndSeatsHaveOneClock(t *testing.T) {
	servers := redistest.Cluster(t, 3)
	f := few
	f.URL, f.Type = servers[0].Addr, "CLUSTER"
	s := started(t, Flags{Redis: f}) // without a fleet, which reads the clock of each server
	for name, reads := range map[string]func() error{
		"nodes": func() error { _, err := s.Register(t.Context(), "a", "{}"); return err },
		"seats": func() error { _, _, _, err := s.Seats().Load(t.Context()); return err },
	} {
		for _, server := range servers {
			server.Do("CONFIG", "RESETSTAT")
		}
		for range 20 { // a command without a key goes to any of them
			if err := reads(); err != nil {
				t.Fatal(err)
			}
		}
		if n := redistest.Used(servers, "time"); n != 1 {
			t.Errorf("%s: the clocks of %d servers were read", name, n)
		}
	}
}
