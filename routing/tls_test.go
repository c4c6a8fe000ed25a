package routing

import (
	"crypto/tls"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// peerOf returns a new peer's credentials, for dialling and for serving.
func peerOf(a *redistest.Authority) (client, server credentials.TransportCredentials) {
	pair, pool := []tls.Certificate{a.Leaf("peer", time.Hour)}, a.Pool()
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: pair, RootCAs: pool}),
		credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: pair, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})
}

// With mutual TLS peers meet without a secret. A certificate of another authority is refused.
func TestRouterTLS(t *testing.T) {
	ours, theirs := redistest.NewAuthority(t), redistest.NewAuthority(t)
	w := newRingWorld(t, 3)
	var nodes []*node
	for i := range 2 {
		client, server := peerOf(ours)
		nodes = append(nodes, w.startTLS(i, "", client, server))
	}
	client, server := peerOf(theirs)
	stranger := w.startTLS(2, "", client, server)
	w.agree(nodes...)
	w.eventually("the stranger complains", func() bool { return len(stranger.errs) > 0 })
	if n := len(stranger.Stats().Members); n > 1 {
		t.Errorf("the stranger sees %d members", n)
	}
	rule := routed(1)
	rule.Coordination.StoreDeadline = ratelimit.MaxStoreDeadline
	if v := nodes[0].ask(rule, 1, 1); v.OverLimit {
		t.Errorf("%+v", v)
	}
}
