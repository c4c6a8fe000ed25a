package store

import (
	_ "embed"
	"fmt"

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
	return newDatabase(s, etcd.Feed{Store: s}, o, etcdAdvice), nil
}

//go:embed etcdadvice.txt
var etcdAdvice string
