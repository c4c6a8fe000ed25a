package routing

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// What peers say is encrypted and authenticated, whether or not there are
// certificates: without any, each node makes one for itself when it starts, and
// nobody looks at it. TLS 1.3 then protects against those who only listen, and
// the introduction (auth.go), whose proofs are bound to the connection, against
// those who are in between.

// anonymous are credentials with a certificate that says nothing, for dialling
// and for serving.
func anonymous() (client, server credentials.TransportCredentials) {
	// A new key for each life of the process: none is stored that could be stolen.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(fmt.Sprintf("routing: a key cannot be made: %v", err))
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		panic(fmt.Sprintf("routing: a certificate cannot be made: %v", err))
	}
	client = credentials.NewTLS(&tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // whom this is with, the introduction proves, bound to the connection
	})
	server = credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	})
	return client, server
}

// door takes in connections of peers: those that speak TLS, and, where plain is
// set, those of versions 1 and 2 that do not. It is safe for concurrent use.
type door struct {
	credentials.TransportCredentials
	plain   bool
	refused func(from string, kind rejection, err error)
}

// tlsHandshake is the first byte of a TLS connection.
const tlsHandshake = 22

// ServerHandshake implements [credentials.TransportCredentials]. Its caller
// bounds the time.
func (d *door) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	// Old nodes without certificates do not speak TLS. The first byte tells which of the two it is.
	begun := &peeked{Conn: raw}
	if _, err := io.ReadFull(raw, begun.first[:]); err != nil {
		return nil, nil, err // somebody who only looks whether the port is open
	}
	if begun.first[0] != tlsHandshake {
		if d.plain {
			return insecure.NewCredentials().ServerHandshake(begun)
		}
		d.refused(raw.RemoteAddr().String(), rejectedPlain, errPlain)
		return nil, nil, errPlain
	}
	conn, info, err := d.TransportCredentials.ServerHandshake(begun)
	if err != nil {
		d.refused(raw.RemoteAddr().String(), rejectedTLS, fmt.Errorf("its TLS handshake failed: %w", err))
	}
	return conn, info, err
}

// Clone implements [credentials.TransportCredentials].
func (d *door) Clone() credentials.TransportCredentials {
	return &door{d.TransportCredentials.Clone(), d.plain, d.refused}
}

// peeked is a connection of which the first byte has been read.
type peeked struct {
	net.Conn
	first [1]byte
	given bool
}

// Read gives the first byte once more, and then goes on with the connection.
func (p *peeked) Read(b []byte) (int, error) {
	if p.given || len(b) == 0 {
		return p.Conn.Read(b)
	}
	p.given = true
	return copy(b, p.first[:]), nil
}

// dials are the ways to dial a node, the best first.
func (r *Router) dials() []credentials.TransportCredentials {
	ways := []credentials.TransportCredentials{r.options.TLS}
	// With certificates of an authority, old nodes are dialled by TLS, too.
	if r.options.AllowOld && r.anonymous {
		ways = append(ways, insecure.NewCredentials())
	}
	return ways
}

// connect holds one conversation, until it breaks.
func (r *Router) connect(ctx context.Context, m *member) error {
	var err error
	for _, way := range r.dials() {
		var met bool
		// Once there was a conversation the next dial begins with the best way again: the node may
		// have been upgraded.
		if met, err = r.connectBy(ctx, m, way); met || ctx.Err() != nil {
			break
		}
	}
	return err
}
