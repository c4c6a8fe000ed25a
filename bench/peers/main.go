// Command peers is gubernator, for `sluicelab bench fleets`: the daemon of gubernator's module with its settings from the
// environment (GUBER_...), without tracing. Its arguments are the gRPC addresses of all nodes.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/gubernator-io/gubernator/v2"
	"github.com/sirupsen/logrus"
)

// main runs one node of gubernator until it is interrupted. gubernator's own program finds peers by DNS, etcd or
// memberlist, which a comparison need not start. Here the list is set once.
func main() {
	conf, err := gubernator.SetupDaemonConfig(logrus.StandardLogger(), nil)
	if err != nil {
		log.Fatalf("gubernator's settings: %v", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	daemon, err := gubernator.SpawnDaemon(ctx, conf)
	if err != nil {
		log.Fatalf("starting gubernator: %v", err)
	}
	var nodes []gubernator.PeerInfo
	for _, address := range os.Args[1:] {
		nodes = append(nodes, gubernator.PeerInfo{GRPCAddress: address, IsOwner: address == conf.AdvertiseAddress})
	}
	daemon.SetPeers(nodes)
	<-ctx.Done()
	daemon.Close()
}
