package store

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/sluice-gate/sluice/leasing/etcd"
)

var etcdScheme = scheme{names: []string{"etcd"}, open: openEtcd, promise: Promise{
	Kind: "etcd", Keeps: true,
	Loss: "0 while a majority of members keeps its disks, and none runs with --unsafe-no-fsync. " +
		"For a snapshot that you restore, the cost is that of Redis: --store redis.",
	Failover: "Writes fail during an election: one to two --election-timeout (default 1s) if votes are not split.",
	Trips:    2,
	Claim: "etcd reads from a majority, and writes one transaction for each 63 accounts to the disks of a majority: " +
		"one record for each account and lease.",
}}

func openEtcd(o *Options) (Store, error) {
	s, err := etcd.Open(o.URL, o.Redis.KeyPrefix)
	if err != nil {
		return nil, fmt.Errorf("STORE_URL: %w", err)
	}
	return newDatabase(s, etcd.Feed{Store: s}, o, adviseEtcd), nil
}

// adviseEtcd names what an error of etcd speaks of.
func adviseEtcd(err error) string {
	for _, x := range []struct {
		of     error
		advice string
	}{
		{rpctypes.ErrAuthFailed, "check the user and the password in STORE_URL"},
		{rpctypes.ErrUserEmpty, "etcd asks for a password: put user:password@ into STORE_URL"},
		{etcd.ErrCompact, "add compact=false to STORE_URL, and run etcd with --auto-compaction-retention=5m: it fills up without compaction"},
		{rpctypes.ErrPermissionDenied, "let the user of STORE_URL read and write keys that begin with sluice/ (etcdctl role grant-permission --prefix)"},
		{rpctypes.ErrNoSpace, "etcd is full and takes no writes: compact and defragment it, raise --quota-backend-bytes, then end the alarm (etcdctl alarm disarm)"},
		{rpctypes.ErrRequestTooLarge, "raise --max-request-bytes of etcd: an account has very many holders"},
		{rpctypes.ErrTooManyOps, "raise --max-txn-ops of etcd to 128, its default, at least"},
		{rpctypes.ErrNoLeader, "etcd has no leader: see to it that a majority of its members run and reach each other"},
	} {
		if errors.Is(err, x.of) {
			return x.advice
		}
	}
	return "check STORE_URL: its hosts, their ports and its tls; and whether a majority of etcd's members run"
}
