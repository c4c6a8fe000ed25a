package routing

// Messages of peers are read as if they came from a stranger. A proof shows the identity of the sender, but not
// that it runs this code, or that its clock and its memory are right.
//
// Guarantee: an impossible message is refused or left out, changes no account, ends no process, and is counted
// by its kind.

// rejection is a kind of rejected message.
type rejection uint8

const (
	rejectedPlain        rejection = iota // a connection without TLS
	rejectedTLS                           // a TLS handshake that failed
	rejectedIntroduction                  // a hello or welcome that makes no sense
	rejectedVersion                       // of a version that is not spoken
	rejectedName                          // a node that has another's address
	rejectedSecret                        // a wrong proof
	rejectedGossip                        // what could not be decrypted, or makes no sense
	rejectedAddress                       // found, and not an address, or one too many
	rejectedFrame                         // more in one than any node sends
	rejectedSent                          // of a ledger whose clock cannot be right
	rejectedAsk
	rejectedReply
	rejectedLease // totals of a lease, or the answer to them
	rejectedFetch
	rejectedPresence
	rejectedParcel
	rejectedAccount // in a parcel
	rejectedReceipt
	rejections
)

// rejectionNames are the kinds as metrics have them.
var rejectionNames = [rejections]string{
	rejectedPlain: "plaintext", rejectedTLS: "tls", rejectedIntroduction: "introduction", rejectedVersion: "version",
	rejectedName: "name", rejectedSecret: "secret", rejectedGossip: "gossip", rejectedAddress: "address",
	rejectedFrame: "frame", rejectedSent: "sent",
	rejectedAsk: "ask", rejectedReply: "reply", rejectedLease: "lease", rejectedFetch: "fetch",
	rejectedPresence: "presence", rejectedParcel: "parcel",
	rejectedAccount: "account", rejectedReceipt: "receipt",
}

// reject counts a rejected message.
func (c *core) reject(kind rejection) { c.stats.rejected[kind].Add(1) }

// malformed counts a message of a peer that makes no sense. It counts under its kind
// (sluice_rejected_total) and in the sum over all kinds of messages
// (sluice_peer_messages_malformed_total).
func (c *core) malformed(kind rejection) {
	c.reject(kind)
	c.stats.malformed.Add(1)
}

// rejected is how much was rejected, by kind.
func (c *core) rejected() map[string]uint64 {
	all := make(map[string]uint64, rejections)
	for kind, name := range rejectionNames {
		all[name] = c.stats.rejected[kind].Load()
	}
	return all
}
