package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Store is a database. It is safe for concurrent use. Each call blocks at most until its context is done.
type Store struct {
	pool   *pgxpool.Pool
	prefix string
	// prepared means that the tables are those of this release. It never becomes false again.
	prepared atomic.Bool
}

// connectTime bounds the time for a connection to a host, unless the URL has connect_timeout.
const connectTime = time.Second

// Open makes a store of the database of a URL, in the form of libpq: several hosts, TLS, passwords and settings of
// the session have their usual meaning. It does not connect: [Store.Prepare] does. prefix separates fleets that share
// the database. There are ten connections at most, unless the URL has pool_max_conns.
func Open(rawURL, prefix string) (*Store, error) {
	c, err := pgxpool.ParseConfig(rawURL)
	if err != nil {
		return nil, fmt.Errorf("not a valid PostgreSQL URL: %w", withoutSecret(err))
	}
	if !strings.Contains(rawURL, "pool_max_conns") {
		c.MaxConns = 10
	}
	// The first requests after a pause must not wait for a connection.
	c.MinConns = min(c.MaxConns, 4)
	if c.ConnConfig.ConnectTimeout == 0 { // the pool waits two minutes for a host before it tries the next one
		c.ConnConfig.ConnectTimeout = connectTime
	}
	// With several hosts, only the primary takes writes. Others are passed over.
	if len(c.ConnConfig.Fallbacks) > 0 && c.ConnConfig.ValidateConnect == nil {
		c.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	defaults := map[string]string{
		"application_name": "sluice",
		// Rows are locked in the order of their names, so that nodes do not wait for each other in a circle. Tables
		// are small at the time of planning.
		"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_seqscan": "off", "jit": "off",
		// By default, PostgreSQL plans both statements again for each message, over all partitions, which is more
		// work than to run them. It estimates a general plan for ten accounts, and a message of one or two looks
		// cheaper.
		"plan_cache_mode": "force_generic_plan",
	}
	for name, value := range defaults {
		// A setting of the URL counts.
		if c.ConnConfig.RuntimeParams[name] == "" {
			c.ConnConfig.RuntimeParams[name] = value
		}
	}
	// Each connection reads the identity of its server once, before its first use.
	c.AfterConnect = named
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", withoutSecret(err))
	}
	return &Store{pool: pool, prefix: prefix}, nil
}

// withoutSecret removes a URL, which may contain a password. pgx has it in the text "cannot parse `URL`: reason".
func withoutSecret(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	if text := err.Error(); strings.Contains(text, "://") {
		_, reason, _ := strings.Cut(text, "`: ")
		return errors.New(reason)
	}
	return err
}

// named reads the identity of a connection's server, which stays the same during the connection. If a crash may lose
// commits, each start of the server has another identity. It is read once for a connection, because pg_control_system
// reads a file of the server.
func named(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, `SELECT set_config('sluice.server', (SELECT system_identifier FROM pg_control_system()) ||
  CASE WHEN current_setting('synchronous_commit') = 'off' OR current_setting('fsync') = 'off'
    THEN '-' || extract(epoch FROM pg_postmaster_start_time()) ELSE '' END, false)`)
	return err
}

// life is the life of the data: the server's, and its timeline, which a promotion changes. The timeline is the first
// eight digits of the name of the current WAL file. A standby has none and answers with an error, so it is never read.
const life = `current_setting('sluice.server') || '-' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)`

// Prepare connects, and migrates the tables to this release. Call it until it returns nil, before the store is used.
// Until then all other calls fail. It makes the partitions of the near future, too.
func (s *Store) Prepare(ctx context.Context) error {
	if s.prepared.Load() {
		return nil
	}
	err := s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return migrate(ctx, c.Conn()) })
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	if err := s.widen(ctx); err != nil {
		return err
	}
	s.prepared.Store(true)
	return nil
}

var errUnprepared = errors.New("postgres: the tables are not verified yet")

// Ping asks whether the server answers. It uses a connection of the pool, so it also shows a pool that is used up.
func (s *Store) Ping(ctx context.Context) error { return s.pool.Ping(ctx) }

// Close ends all connections. It waits for calls in progress.
func (s *Store) Close() { s.pool.Close() }

// readSQL returns at least one row, for the time and the life, also without keys. A record that is missing has NULLs.
// The names and ends of accounts are one argument each, so that there is one statement for any number of them.
const readSQL = `SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint, ` + life + `, a.version, a.data
FROM (SELECT 1) one
LEFT JOIN unnest($1::text[], $2::bigint[]) WITH ORDINALITY k(name, over, n) ON true
LEFT JOIN sluice_accounts a ON a.name = k.name AND a.over = k.over
ORDER BY k.n`

// Read implements [account.Store].
func (s *Store) Read(ctx context.Context, keys []account.StoreKey) (x account.Snapshot, err error) {
	if !s.prepared.Load() {
		return x, errUnprepared
	}
	names, overs := make([]string, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		names[i], overs[i] = k.Name, int64(k.Over)
	}
	rows, err := s.pool.Query(ctx, readSQL, names, overs)
	if err != nil {
		return x, fmt.Errorf("postgres: %w", err)
	}
	var version *int64
	var data []byte
	if _, err = pgx.ForEachRow(rows, []any{&x.Now, &x.Life, &version, &data}, func() error {
		r := account.Record{Data: data}
		if version != nil {
			r.Version = uint64(*version)
		}
		x.Records = append(x.Records, r)
		return nil
	}); err != nil {
		return x, fmt.Errorf("postgres: %w", err)
	}
	// Without keys, the only row is no record.
	x.Records = x.Records[:min(len(keys), len(x.Records))]
	return x, nil
}

// What is changed, and what is new, of one partition, which is named: through the table of all, PostgreSQL would open
// each partition for each message. Most messages need only one of the two statements.
const (
	// In another life, the condition holds for no row: none is written, and no name is returned.
	rowsSQL = ` FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[])
  c(name, over, version, until, data) WHERE ` + life + ` = $1`
	changeSQL = `UPDATE %s a SET version = a.version + 1, until = c.until, data = c.data` + rowsSQL + `
  AND a.name = c.name AND a.over = c.over AND a.version = c.version RETURNING a.name`
	// A new row's version is the time, so that a row that was dropped and made again never has an old one. Where
	// another node was faster, the row stays as it is.
	addSQL = `INSERT INTO %s (name, over, version, until, data)
SELECT name, over, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, until, data` + rowsSQL + `
ON CONFLICT DO NOTHING RETURNING name`
)

// Write implements [account.Store]. It makes all changes in one transaction. If a partition was missing, none of the
// changes was made, and the second try makes all.
func (s *Store) Write(ctx context.Context, inLife string, changes []account.Change) ([]bool, error) {
	if !s.prepared.Load() {
		return nil, errUnprepared
	}
	made, err := s.write(ctx, inLife, changes)
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == noPartition {
		err = s.partitions(ctx, changes)
		if err == nil {
			made, err = s.write(ctx, inLife, changes)
		}
	}
	return made, err
}

// noPartition is PostgreSQL's code for a missing table: undefined_table.
const noPartition = "42P01"

// write makes changes in one batch. They are grouped by statement: the partition, and whether they are new. Each
// statement returns the names of the rows that it wrote.
func (s *Store) write(ctx context.Context, inLife string, changes []account.Change) ([]bool, error) {
	made, tried := make([]bool, len(changes)), map[string]int{}
	all := map[string]*rows{} // by their statements
	for i := range changes {
		c := &changes[i]
		sql := changeSQL
		if c.Version == 0 {
			sql = addSQL
		}
		// The name of a partition has no other source than a number.
		sql, tried[c.Name] = fmt.Sprintf(sql, partitionName(partitionOf(c.Over))), i
		if all[sql] == nil {
			all[sql] = &rows{}
		}
		all[sql].add(c)
	}
	var b pgx.Batch // which is one transaction, and one round trip
	// All nodes write in the same order, so that none waits for another that waits for it.
	for _, sql := range slices.Sorted(maps.Keys(all)) {
		r := all[sql]
		b.Queue(sql, inLife, r.names, r.overs, r.versions, r.untils, r.data).Query(func(rows pgx.Rows) error {
			// The names of the rows that were written. The others had another version, or the life was another one.
			names, err := pgx.CollectRows(rows, pgx.RowTo[string])
			for _, name := range names {
				made[tried[name]] = true
			}
			return err
		})
	}
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return made, nil
}

// rows are what one statement writes. Its slices are the columns of the statement's arguments.
type rows struct {
	names                   []string
	overs, versions, untils []int64
	data                    [][]byte
}

func (r *rows) add(c *account.Change) {
	r.names, r.overs = append(r.names, c.Name), append(r.overs, int64(c.Over))
	r.versions, r.untils = append(r.versions, int64(c.Version)), append(r.untils, int64(c.Until))
	r.data = append(r.data, c.Data)
}

// mostPayload is the maximum text of a notification.
const mostPayload = 7999

func channelOf(node ratelimit.Holder) string { return "sluice_" + account.HolderName(node) }

// Listen implements [account.Messenger]. A channel has one node, and a notification one name.
func (s *Store) Listen(ctx context.Context, node ratelimit.Holder, ready func(), received func(name string)) error {
	// A separate connection: it waits for ever, and the pool would lack it.
	c, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	// ready is called after this: from here on, PostgreSQL keeps notifications for the connection.
	if _, err := c.Exec(ctx, "LISTEN "+pgx.Identifier{channelOf(node)}.Sanitize()); err != nil {
		return err
	}
	for ready(); ; {
		n, err := within(ctx, pingEvery, c.WaitForNotification)
		switch {
		case err == nil:
			received(n.Payload)
			continue
		case pgconn.Timeout(err): // a host that is gone may never say so
			_, err = within(ctx, connectTime, func(ctx context.Context) (none struct{}, err error) {
				return none, c.Ping(ctx)
			})
		}
		if err != nil {
			return err
		}
	}
}

// pingEvery is the time without a notification after which a host must answer.
const pingEvery = 3 * time.Second

func within[T any](ctx context.Context, d time.Duration, do func(context.Context) (T, error)) (T, error) {
	ctx, stop := context.WithTimeout(ctx, d)
	defer stop()
	return do(ctx)
}

// Send implements [account.Messenger], by notifications. A longer name is left out: PostgreSQL would refuse all of
// them.
func (s *Store) Send(ctx context.Context, all map[ratelimit.Holder][]string) error {
	var channels, names []string
	for node, some := range all {
		for _, name := range some {
			channels, names = append(channels, channelOf(node)), append(names, name)
		}
	}
	_, err := s.pool.Exec(ctx, `SELECT pg_notify(c, n) FROM unnest($1::text[], $2::text[]) r(c, n)
WHERE length(n) <= $3`, channels, names, mostPayload)
	return err
}

var (
	_ account.Store     = (*Store)(nil)
	_ account.Messenger = (*Store)(nil)
)
