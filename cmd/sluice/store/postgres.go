package store

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

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
	return newDatabase(s, postgres.Feed{Store: s}, o, advisePostgres), nil
}

// advisePostgres names what an error of PostgreSQL speaks of.
func advisePostgres(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case strings.HasPrefix(e.Code, "28"): // invalid authorization
			return "check the user and the password in STORE_URL, and pg_hba.conf of the server"
		case e.Code == "3D000": // invalid catalog name
			return "check the database's name in STORE_URL, or create the database"
		case e.Code == "42501": // insufficient privilege
			return "let the user of STORE_URL create tables in its schema (GRANT CREATE ON SCHEMA)"
		case e.Code == "53300": // too many connections
			return "raise max_connections of the server, or give STORE_URL a pool_max_conns, which is 10 for each node"
		}
	}
	if errors.Is(err, postgres.ErrSchema) {
		return "run the newest release that has used this database"
	}
	return "check STORE_URL: its host, its port and its sslmode"
}
