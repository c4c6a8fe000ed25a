package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
	"github.com/sluice-gate/sluice/routing"
)

// peerFlags say who owns keys together under mode routing.
type peerFlags struct {
	Peers   string `env:"PEERS" name:"peers" placeholder:"WHERE" help:"How nodes find each other: static:HOST:PORT,... or dns:NAME:PORT or gossip:HOST:PORT,... NAME is a headless service, or an SRV name such as _peers._tcp.sluice. Without PEERS, rules with mode routing run as leasing."`
	Addr    string `env:"PEER_ADDR" name:"peer-addr" placeholder:"HOST:PORT" help:"HOST:PORT by which peers reach this node. If HOST is another machine, as behind a NAT, the node listens on this port of all its addresses. With PEERS=gossip:..., the node also uses the next port, over TCP and UDP."`
	Secret  string `env:"PEER_SECRET" name:"peer-secret" placeholder:"SECRET" help:"Shared secret of all peers, at least 16 random bytes (openssl rand -base64 32). Required without PEER_TLS_*."`
	Region  string `env:"REGION" name:"region" placeholder:"NAME" help:"Region of this node, for limits over regions. The node refuses peers of other regions. The console, metrics and logs show the region."`
	TLSCert string `env:"PEER_TLS_CERT" name:"peer-tls-cert" placeholder:"FILE" help:"File with this node's certificate for peers. This file and the next two are read again when they change."`
	TLSKey  string `env:"PEER_TLS_KEY" name:"peer-tls-key" placeholder:"FILE" help:"File with the key of this certificate."`
	TLSCA   string `env:"PEER_TLS_CACERT" name:"peer-tls-cacert" placeholder:"FILE" help:"File with the authority of peers' certificates."`
}

// options checks the settings and makes them a router's. Peers change accounts of each other. So it refuses to start
// without a secret or certificates.
func (f *peerFlags) options(log *slog.Logger) (o routing.Options, serverTLS credentials.TransportCredentials, err error) {
	// 0.0.0.0 is refused: other nodes would use it as the name of this node, and dial themselves.
	host, port, err := net.SplitHostPort(f.Addr)
	own, notNumber := strconv.Atoi(port)
	if err != nil || host == "" || net.ParseIP(host).IsUnspecified() || notNumber != nil {
		return o, nil, fmt.Errorf("PEER_ADDR is %q, and with PEERS it must be the HOST:PORT of this node as peers see it", f.Addr)
	}
	f.Addr = net.JoinHostPort(host, port) // an IPv4 address has no brackets in the names that others find
	// The function runs only for gossip, which uses the next port.
	o.Discovery, err = routing.ParsePeers(f.Peers, func(seeds []string) (routing.Discovery, error) {
		bound, _, _ := net.SplitHostPort(f.listens())
		return routing.NewGossip(net.JoinHostPort(bound, strconv.Itoa(own+1)), f.Addr, f.Secret, seeds)
	})
	if err != nil {
		return o, nil, err
	}
	o.Addr, o.Secret = f.Addr, f.Secret
	o.Region = f.Region
	// Either a secret or certificates authenticate peers, or both.
	switch none := f.TLSCert+f.TLSKey+f.TLSCA == ""; {
	case none && f.Secret == "":
		return o, nil, errors.New("PEERS is set without PEER_SECRET or PEER_TLS_CERT, PEER_TLS_KEY and PEER_TLS_CACERT: strangers could change accounts")
	case none:
		return o, nil, o.Validate()
	case f.TLSCert == "" || f.TLSKey == "" || f.TLSCA == "":
		return o, nil, errors.New("PEER_TLS_CERT, PEER_TLS_KEY and PEER_TLS_CACERT must be set together")
	}
	shown := settings.Certificate{Cert: f.TLSCert, Key: f.TLSKey, Setting: "PEER_TLS_"}
	files := &upkeep.FileValue[*tls.Config]{Files: []string{f.TLSCert, f.TLSKey, f.TLSCA}, Failed: settings.BadCertificate(log), Read: func(now time.Time) (*tls.Config, error) {
		return eitherSide(shown, now, tls.VersionTLS13, f.TLSCA, "PEER_TLS_CACERT")
	}}
	if err := files.Load(time.Now()); err != nil {
		return o, nil, err
	}
	serverTLS = credentials.NewTLS(serverConfig(tls.VersionTLS13, files))
	o.TLS = peerTLS{serverTLS, files}
	return o, serverTLS, o.Validate()
}

// peerTLS dials by the files as they are then. A dial reads the files again, so that a renewed certificate needs no
// restart.
type peerTLS struct {
	credentials.TransportCredentials // for all else
	files                            *upkeep.FileValue[*tls.Config]
}

// ClientHandshake implements [credentials.TransportCredentials].
func (d peerTLS) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(d.files.Get(time.Now())).ClientHandshake(ctx, authority, conn)
}

// Clone implements [credentials.TransportCredentials].
func (d peerTLS) Clone() credentials.TransportCredentials { return d }

// listens is the address to listen on: PEER_ADDR, or its port of all addresses, if PEER_ADDR is not of this machine. It
// tries by opening a port of that address for a moment: an address of another machine fails. An address family must be
// kept, because a node of IPv6 alone has no 0.0.0.0.
func (f *peerFlags) listens() string {
	host, port, _ := net.SplitHostPort(f.Addr) // options has checked it
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(host, "0"))
	var unresolved *net.DNSError
	switch ip := net.ParseIP(host); {
	case err == nil:
		l.Close()
	case errors.As(err, &unresolved): // the caller reports it
	case ip != nil && ip.To4() == nil:
		return net.JoinHostPort("::", port)
	default:
		return net.JoinHostPort("0.0.0.0", port)
	}
	return f.Addr
}

// route puts a node into the ring that PEERS names. run replaces the base's. It opens the port of peers, but serves it
// only in run. So a port in use is an error at the start.
func (f *peerFlags) route(bounds *settings.Caps, base ratelimit.NodeLimiter, shared *table.Table, baseRun func(context.Context) error, clock ratelimit.Clock, log *slog.Logger) (*routing.Router, func(context.Context) error, error) {
	o, serverTLS, err := f.options(log)
	if err != nil {
		return nil, nil, err
	}
	o.OnPeer, o.Table = peerLog(log), shared
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", f.listens())
	if err != nil {
		return nil, nil, fmt.Errorf("PEER_ADDR is %q: %w", f.Addr, err)
	}
	r := routing.New(base, o, clock, time.Now())
	bounded, budget := bounds.Peers(l)
	server := r.NewServer(serverTLS, budget)
	run := func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { _ = server.Serve(bounded) })
		wg.Go(func() { r.Run(ctx) })
		// Below may be a store: the ring serves until it has returned its tokens. If it failed, the ring ends with it.
		err := baseRun(ctx)
		if err != nil {
			cancel()
		}
		<-ctx.Done()
		bounded.End() // gRPC waits for those that have not shaken hands
		server.Stop()
		wg.Wait()
		if g, ok := o.Discovery.(io.Closer); ok {
			_ = g.Close()
		}
		return err
	}
	return r, run, nil
}

// peerLog logs failures with peers: wrong secrets, and all others, each at most once in five seconds. Metrics count
// all. A canceled call is no failure: its request, or this node, has ended.
func peerLog(log *slog.Logger) func(addr string, err error) {
	complain := upkeep.Seldom(5*time.Second, func(err error) { log.Warn("a peer is unreachable or was refused", "error", err) })
	stranger := upkeep.Seldom(5*time.Second, func(err error) {
		log.Warn("a peer has another PEER_SECRET, or a relay is between the nodes; sluice_rejected_total counts all", "error", err)
	})
	lost := upkeep.Seldom(5*time.Second, func(err error) {
		log.Warn("peers are not found: a node that sees no peers answers for all keys by itself", "error", err)
	})
	return func(addr string, err error) {
		at := fmt.Errorf("%s: %w", addr, err)
		switch {
		case errors.Is(err, routing.ErrLost): // it happens once, most likely among failures of peers
			log.Warn(err.Error())
		case strings.Contains(err.Error(), context.Canceled.Error()):
		case errors.Is(err, routing.ErrSecret):
			stranger(at)
		case addr == "":
			lost(err)
		default:
			complain(at)
		}
	}
}

// leaveTime bounds how long a node hands its keys over when it ends.
const leaveTime = 15 * time.Second
