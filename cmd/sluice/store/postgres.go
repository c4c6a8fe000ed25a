package store

import (
	_ "embed"
	"fmt"

	"github.com/sluice-gate/sluice/leasing/postgres"
	"github.com/sluice-gate/sluice/ratelimit"
)

var postgresScheme = scheme{names: []string{"postgres", "postgresql"}, open: openPostgres, promise: Promise{
	Kind: "PostgreSQL", Keeps: true,
	Loss: "0 with synchronous_commit=on and fsync=on, the defaults. A failover loses 0 with a synchronous standby. " +
		"With less, and for an older copy that you restore, the cost is that of Redis: --store redis.",
	Failover: "The promotion of the standby decides how long writes fail.",
	Young:    ratelimit.YoungFor, Trips: 2,
	Claim: "PostgreSQL commits one transaction, which waits for the disk and a synchronous standby. It writes one row " +
		"for each account and lease.",
}}

func openPostgres(o *Options) (Store, error) {
	s, err := postgres.Open(o.URL, o.Redis.KeyPrefix)
	if err != nil {
		return nil, fmt.Errorf("STORE_URL: %w", err)
	}
	// The table of all nodes is in the same database, behind the same pool of connections.
	return newDatabase(s, postgres.Feed{Store: s}, o, postgresAdvice), nil
}

//go:embed postgresadvice.txt
var postgresAdvice string
