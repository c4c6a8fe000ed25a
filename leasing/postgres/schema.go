package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

//go:embed schema.sql
var schemaSQL string

// migrations lead from schema version i to version i+1. They never change: a release adds one. The version in the table
// is their number, so 0 is an empty database.
var migrations = []string{schemaSQL, feedSQL}

// ErrSchema means that the tables belong to a later release.
var ErrSchema = errors.New("the tables of Sluice in this database belong to a later release")

// lockSchema is the advisory lock of schema changes, and lockSweep that of drops. The upper digits are "sluice" in
// ASCII, so that locks of other programs are other numbers.
const lockSchema, lockSweep = 0x736c75696365 << 8, 0x736c75696365<<8 + 1

// migrate brings the schema to this release. Nodes that start together take turns. All of it is one transaction: a node
// that ends in its middle leaves the old version.
func migrate(ctx context.Context, c *pgx.Conn) error {
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lockSchema)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS sluice_schema (version int NOT NULL)"); err != nil {
			return err
		}
		var version int
		if err := tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM sluice_schema").Scan(&version); err != nil {
			return err
		}
		if version > len(migrations) {
			return fmt.Errorf("%w: their version is %d, and this release reads %d; run a release that is at least as "+
				"new as the newest that has used this database", ErrSchema, version, len(migrations))
		}
		for ; version < len(migrations); version++ {
			if _, err := tx.Exec(ctx, migrations[version]); err != nil {
				return fmt.Errorf("migrating the tables from version %d: %w", version, err)
			}
			if _, err := tx.Exec(ctx, "INSERT INTO sluice_schema VALUES ($1)", version+1); err != nil {
				return err
			}
		}
		return nil
	})
}
