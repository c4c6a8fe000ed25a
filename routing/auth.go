package routing

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"hash"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/sluice-gate/sluice/routing/wire"
)

// Two nodes prove PEER_SECRET to each other, or have certificates of the same authority. The stream runs in a
// TLS connection that is theirs alone (channel.go), and begins with an introduction:
//
//	caller                                   called
//	  hello: who it is, a nonce        -->
//	                                   <--   welcome: who it is, a nonce
//	  proof: HMAC, role "caller"       -->
//	                                   <--   proof: HMAC, role "called"
//
// Guarantee: an accepted node has itself, in this very connection, made a proof with the secret, over both
// introductions. A proof covers the connection by its channel binding (RFC 9266, tls-exporter), which cannot
// be equal in two connections. A relay between two nodes has one with each, and a proof in one has no value
// in the other. A proof covers the role, so that it cannot be reflected, and both nonces, so that it cannot
// be replayed. The called node proves last: a caller without the secret gets no proof to guess it by.
//
// Limit: a caller trusts its name server for the receiver of its proof. An impostor there, with TLS of its
// own, gets the caller's proof, and can try secrets on it offline: hence leastSecret.

// version of the messages. Nodes with another one are refused: their fields have other meanings.
const version = 4

// Bounds of a node's introduction.
const (
	maxAddr   = 256
	maxRegion = 64
	// A peer's nonce has between leastNonce and mostNonce bytes.
	leastNonce = 16
	mostNonce  = 64
	// leastSecret is the shortest secret. Sixteen random letters and digits are 95 bits: more than can be
	// tried on a known proof.
	leastSecret = 16
)

// ErrSecret means that a peer did not prove the secret. It may be a stranger, or a relay between this node and
// a peer.
var ErrSecret error = &refusal{
	rejectedSecret, "the peer has another PEER_SECRET or none, or a relay is between the nodes",
}

var (
	errHello   = &refusal{rejectedIntroduction, "the peer did not introduce itself"}
	errVersion = &refusal{rejectedVersion, "the peer has another version of peer messages"}
	errPlain   = &refusal{rejectedPlain, "the peer does not use TLS 1.3: it has an older version, or is not a peer"}
	errSelf    = &refusal{rejectedName, "the peer has the name of this node (its PEER_ADDR)"}
	errName    = &refusal{rejectedName, "the peer has another name"}
	errRegion  = &refusal{rejectedRegion, "the peer is of another region"}
)

// refusal is the fault of an introduction, with the kind under which it counts.
type refusal struct {
	kind rejection
	text string
}

// Error names the fault.
func (e *refusal) Error() string { return e.text }

// CheckSecret returns the fault of a secret, if it has one.
func CheckSecret(secret string) error {
	if len(secret) < leastSecret {
		return fmt.Errorf("PEER_SECRET has %d bytes, must have at least %d, and at random, for it "+
			"could be guessed: make one with `openssl rand -base64 32`", len(secret), leastSecret)
	}
	return nil
}

func newNonce() []byte { return []byte(rand.Text()) } // 26 bytes

// prove makes the proof of one role in one introduction. binding is the
// connection's.
func prove(secret, role string, binding []byte, caller, called *wire.Hello) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	// The version is in the proof, so that one which a later version makes of the same fields is
	// another.
	part(h, []byte("sluice introduction 4, "+role))
	part(h, binding)
	for _, hello := range []*wire.Hello{caller, called} {
		part(h, []byte(hello.GetAddr()))
		part(h, []byte(hello.GetRegion()))
		part(h, hello.GetNonce())
		absent := uint64(0)
		if hello.GetAbsent() {
			absent = 1
		}
		for _, n := range [...]uint64{
			uint64(hello.GetVersion()), absent, hello.GetIncarnation(), hello.GetChanges(),
		} {
			part(h, binary.BigEndian.AppendUint64(nil, n))
		}
	}
	return h.Sum(nil)
}

// part writes bytes so that they cannot be taken for parts of their neighbours.
func part(h hash.Hash, b []byte) {
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
	h.Write(b)
}

// binding is a value that only the two ends of a stream's connection can compute. It differs between any two
// connections.
func binding(stream context.Context) ([]byte, error) {
	p, ok := peer.FromContext(stream)
	if !ok {
		return nil, errPlain
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	// Before TLS 1.3 two connections may have the same channel binding (RFC 9266).
	if !ok || info.State.Version < tls.VersionTLS13 {
		return nil, errPlain
	}
	return info.State.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, sha256.Size)
}

// check returns the fault of a peer's hello, at a node of a region.
func check(h *wire.Hello, region string) error {
	switch {
	case h == nil:
		return errHello
	// First of all, for the fields of another version may mean something else.
	case h.GetVersion() != version:
		return fmt.Errorf("%w: it speaks version %d, and this node version %d. They share no budgets: "+
			"finish the upgrade (docs/guides/upgrading.md)", errVersion, h.GetVersion(), version)
	case h.GetAddr() == "" || len(h.GetAddr()) > maxAddr || len(h.GetNonce()) < leastNonce ||
		len(h.GetNonce()) > mostNonce || h.GetIncarnation() == 0 || len(h.GetRegion()) > maxRegion:
		return errHello
	case h.GetRegion() != region:
		return fmt.Errorf("%w: its REGION is %q, and this node's %q. Name peers of one region in PEERS", errRegion,
			h.GetRegion(), region)
	}
	return nil
}
