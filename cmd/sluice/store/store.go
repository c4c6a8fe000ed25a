// Package store is the one interface to the shared state of a fleet: the ledger, drift seats, and the registry of
// nodes. The URL's scheme chooses the store. Beside this package, only the ledgers import a store's client library
// (leasing/account, leasing/postgres, leasing/etcd, and leasing/limit for programs).
//
// A store is one entry in schemes. For one that compares and sets records (account.Store), implement a
// Database.
//
// How to read it: store.go has the interface and the choice by scheme. database.go makes a Store of any Database, which
// postgres.go and etcd.go open. redis.go is the other implementation. Its connections pass two layers: redisstart.go
// holds them until the server answers, and redisconn.go bounds the answers.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// Store is what nodes share. It is safe for concurrent use. Calls with a context block until that is done, at most.
type Store interface {
	// Ledger is that of a [leasing.Fleet], which detects its further interfaces, and of concurrency limits.
	Ledger() Ledger
	// Seats is the record that drift seats are in.
	Seats() approx.Cell
	// Table is the table that all nodes have.
	Table() table.Store
	// Register records a node's text, with "" that it is gone, and returns the texts of all nodes in the last
	// minute.
	Register(ctx context.Context, node, text string) ([]Registration, error)
	// Safety is how the store keeps its data, and in what words it says so, as attributes of a log line.
	Safety(ctx context.Context) (s metrics.StoreSafety, says []any, err error)
	// The program opens a store, makes everything else over it, and starts it last. So an error in the settings is
	// found before a connection is made.
	// Start connects, and calls came when the first requests may come. failed gets the error of each attempt.
	// If the store did not answer in time, it returns an error at once (ErrStartup). It does the store's
	// background work until ctx is done.
	Start(ctx context.Context, came func(), failed func(error)) error
	// Ping asks the store whether it takes commands, for REDIS_HEALTH_CHECK_ACTIVE_CONNECTION. It changes nothing
	// there.
	Ping(ctx context.Context) error
	// Advise names the settings that an error of the store speaks of. It always has an answer: the last line of each
	// advice file is for all other errors.
	Advise(err error) string
	// Close ends all connections.
	Close()
}

// Ledger has accounts, and the slots of concurrency limits.
type Ledger interface {
	account.Ledger
	account.SlotLedger
}

// Registration is a node's text about itself.
type Registration struct {
	Node, Text string
	Ago        time.Duration // by the store's clock
}

// seatRecord is what the record of drift seats is called, behind the prefix. Releases that had seats in a hash
// (sluice:seats) do not meet it. The record is JSON, and all nodes of a fleet change it with a compare and set.
const seatRecord = "sluice:seat-record"

const (
	// SilentFor is the time after which a node that says nothing counts no longer.
	SilentFor = time.Minute
	// ListedFor is the time for which it stays in the list, so that people miss it. The newest mostSilent do.
	ListedFor  = 24 * time.Hour
	mostSilent = 100
)

// Flags say which store there is.
type Flags struct {
	URL   string `env:"STORE_URL" name:"store-url" placeholder:"URL" help:"URL of the shared store. PostgreSQL: postgres://user:pass@host,host/db?sslmode=verify-full. etcd: etcd://user:pass@host:port,host:port?tls=true. Redis: redis:// or rediss://. Default: REDIS_URL, or else the memory of this process."`
	Redis Redis  `embed:""`
}

// Shared reports whether there is a store.
func (f *Flags) Shared() bool { return f.URL != "" || f.Redis.URL != "" }

// OnRedis reports whether the store is a Redis. It is also true without a store, so callers check Shared first. Only
// Redis has a pool whose connections are counted.
func (f *Flags) OnRedis() bool { return f.URL == "" || strings.HasPrefix(f.URL, "redis") }

// Options are how a store is opened.
type Options struct {
	Flags
	Log  *slog.Logger
	Pool *metrics.Pool // counts connections; nil: not counted
}

// scheme is one kind of store.
type scheme struct {
	names   []string // of URLs
	promise Promise
	open    func(*Options) (Store, error)
}

// schemes are all kinds of stores.
var schemes = [...]scheme{redisScheme, postgresScheme, etcdScheme}

// find returns nil if there is no such scheme, and the names of all. known is for error messages: a mistyped scheme is
// answered with the schemes that there are.
func find(name string) (found *scheme, known string) {
	var all []string
	for i := range schemes {
		if slices.Contains(schemes[i].names, name) {
			found = &schemes[i]
		}
		all = append(all, schemes[i].names...)
	}
	return found, strings.Join(all, ", ")
}

// Open opens the store that the settings name. It does not connect: Start does. The settings are a copy, so that
// urlSetting stays out of those of the caller.
func Open(o Options) (Store, error) {
	if o.URL == "" {
		return openRedis(&o)
	}
	// A Redis may stand in STORE_URL, too. Errors then must name that setting, and not REDIS_URL.
	o.Redis.urlSetting = "STORE_URL"
	if o.Redis.URL != "" {
		return nil, errors.New("STORE_URL and REDIS_URL are both set: unset one of them")
	}
	name, _, _ := strings.Cut(o.URL, "://")
	s, known := find(name)
	if s == nil {
		begins, _, _ := strings.Cut(name, "=") // in a DSN, a password may follow
		return nil, fmt.Errorf("STORE_URL begins with %q, must begin with one of %s, and ://", shown(begins), known)
	}
	return s.open(&o)
}

// shown is a URL or an address without what may be a password.
func shown(address string) string {
	if at := strings.LastIndexByte(address, '@'); at >= 0 {
		return "..." + address[at:]
	}
	return address
}

// newest are the nodes that count, and the newest mostSilent others. It returns the names of the rest. A fleet that
// scales up and down leaves a silent name for each pod that ended. Without the bound, the list of a day would be as
// long as the number of all these pods.
func newest(all []Registration) (listed []Registration, surplus []string) {
	slices.SortFunc(all, func(a, b Registration) int { return cmp.Compare(a.Ago, b.Ago) })
	silent := 0
	for _, r := range all {
		if r.Ago > SilentFor {
			silent++
		}
		if silent > mostSilent {
			surplus = append(surplus, r.Node)
			continue
		}
		listed = append(listed, r)
	}
	return listed, surplus
}
