package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Register notes a node's report about itself, "" if it is gone, and calls see with each report in a time until now.
// Older ones are deleted, and those that are later by as much: after the server's clock was set back, nodes that have
// ended would count until then. All times are the server's, so the clocks of nodes do not matter. The batch is one
// transaction.
func (s *Store) Register(
	ctx context.Context, node, text string, within time.Duration, see func(node, text string, ago time.Duration),
) error {
	var b pgx.Batch
	if text == "" {
		b.Queue("DELETE FROM sluice_nodes WHERE prefix = $1 AND name = $2", s.prefix, node)
	} else {
		b.Queue(`INSERT INTO sluice_nodes (prefix, name, said, at)
VALUES ($1, $2, $3, statement_timestamp())
ON CONFLICT (prefix, name) DO UPDATE SET said = excluded.said, at = excluded.at`, s.prefix, node, text)
	}
	b.Queue(`DELETE FROM sluice_nodes
WHERE prefix = $1 AND at NOT BETWEEN now() - $2::interval AND now() + $2::interval`, s.prefix, within)
	b.Queue(`SELECT name, said, extract(epoch FROM statement_timestamp() - at)::float8 FROM sluice_nodes
WHERE prefix = $1`, s.prefix).Query(func(rows pgx.Rows) error {
		var name, said string
		var ago float64
		_, err := pgx.ForEachRow(rows, []any{&name, &said, &ago}, func() error {
			see(name, said, max(0, time.Duration(ago*float64(time.Second))))
			return nil
		})
		return err
	})
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// Durable reports whether commits survive a crash of the server. Without full_page_writes, a crash of the machine can
// tear a page, and lose rows that were committed earlier.
func (s *Store) Durable(ctx context.Context) (yes bool, err error) {
	err = s.pool.QueryRow(ctx, `SELECT current_setting('synchronous_commit') <> 'off'
  AND current_setting('fsync') <> 'off' AND current_setting('full_page_writes') <> 'off'`).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("postgres: %w", err)
	}
	return yes, nil
}
