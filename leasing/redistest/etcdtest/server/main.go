// Command server is one member of etcd for tests, as its own process: a test can kill it, stop it and run it again on
// the same data. It is a module of its own, which keeps the dependencies of etcd's server out of Sluice's.
//
//	server [-restore SNAPSHOT] [-token TOKEN] [-members PORT,...] DATA CLIENTS PEERS
//
// CLIENTS and PEERS are ports. The members' ports are those for messages of their peers. With -restore it creates the
// data from a snapshot, as etcdutl does, and ends.
package main

import (
	"cmp"
	"errors"
	"flag"
	"log"
	"net/url"
	"strings"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

func main() {
	restore := flag.String("restore", "", "a snapshot to make the data from")
	token := flag.String("token", "test", "of the cluster: its ID is made of this and of the address for peers")
	members := flag.String("members", "", "the peers' ports of all members, if there are more")
	flag.Parse()
	if err := run(*restore, *token, *members, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(restore, token, members string, args []string) error {
	if len(args) != 3 {
		return errors.New("usage: server [-restore SNAPSHOT] [-token TOKEN] [-members PORT,...] DATA CLIENTS PEERS")
	}
	address := func(port string) url.URL { return url.URL{Scheme: "http", Host: "127.0.0.1:" + port} }
	clients, peers := address(args[1]), address(args[2])
	c := embed.NewConfig()
	c.Name = args[2]
	c.Dir = args[0]
	c.InitialClusterToken = token
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{clients}, []url.URL{clients}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peers}, []url.URL{peers}
	var all []string
	for _, port := range strings.Split(cmp.Or(members, args[2]), ",") {
		peer := address(port)
		all = append(all, port+"="+peer.String())
	}
	c.InitialCluster = strings.Join(all, ",")
	c.TickMs, c.ElectionMs = 10, 100
	c.LogLevel = "fatal" // at a start it logs false errors
	if restore != "" {
		return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: restore, Name: c.Name, OutputDataDir: c.Dir, PeerURLs: []string{peers.String()},
			InitialCluster: c.InitialCluster, InitialClusterToken: token,
		})
	}
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	return <-e.Err()
}
