package etcd

import (
	"testing"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest/etcdtest"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/ratelimit/table/tabletest"
)

func TestEtcdTable(t *testing.T) {
	s := etcdtest.Start(t)
	snapshot := s.Snapshot()
	tabletest.Run(t, tabletest.Server{
		Open: func(t testing.TB) table.Store {
			return Feed{ledgertest.Prepared(t, Open, s.URL(), "t:")}
		},
		Restart: func() { s.Kill(); s.Run() },
		Lose: func() {
			s.Kill()
			s.Restore(snapshot, "") // in the same place: its cluster has the same ID
			s.Run()
		},
	})
}
