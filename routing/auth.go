package routing

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/sluice-gate/sluice/routing/wire"
)

// version of the messages. A node talks to any that is at least leastVersion.
// Version 2 hands accounts over in numbered parcels, and fetches.
const version, leastVersion = 2, 1

// maxWeight bounds a node's share of the keys, and with it the points that it has
// on each node's ring.
const maxWeight = 1000

var (
	errSecret  = errors.New("the peer does not know PEER_SECRET, or has another one")
	errHello   = errors.New("the peer did not introduce itself")
	errWeight  = errors.New("the peer's weight is out of bounds")
	errVersion = errors.New("the peer speaks a version that this node does not")
)

func newNonce() []byte {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return b
}

// mac proves that who made it knows the secret, to one who chose a nonce, in
// one role of one conversation.
func mac(secret, role string, caller, called *wire.Hello) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	for _, part := range [][]byte{[]byte(role), caller.GetNonce(), called.GetNonce(), []byte(caller.GetAddr()), []byte(called.GetAddr())} {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return h.Sum(nil)
}

// check says what is wrong with a peer's hello.
func check(h *wire.Hello) error {
	switch {
	case h == nil || h.GetAddr() == "" || len(h.GetNonce()) < 16 || len(h.GetAddr()) > 256:
		return errHello
	case h.GetVersion() < leastVersion:
		return fmt.Errorf("%w: %d", errVersion, h.GetVersion())
	case h.GetWeight() > maxWeight:
		return fmt.Errorf("%w: it is %d (its PEER_WEIGHT), and may be at most %d", errWeight, h.GetWeight(), maxWeight)
	}
	return nil
}
