package postgres

import (
	"testing"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/ratelimit/table/tabletest"
)

func TestPostgresTable(t *testing.T) {
	s := pgtest.Start(t)
	restore := func() {}
	tabletest.Run(t, tabletest.Server{
		Open: func(t testing.TB) table.Store {
			return Feed{ledgertest.Prepared(t, Open, s.URL(), "t:")}
		},
		Restart: func() { s.Kill(); s.Run() },
		Lose: func() {
			restore()
			s.Exec("TRUNCATE sluice_table, sluice_feed")
		},
	})
}
