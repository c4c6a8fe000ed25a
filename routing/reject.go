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
	rejectedRegion                        // a node of another region
	rejectedGossip                        // what could not be decrypted, or makes no sense
	rejectedAddress                       // found, and not an address, or one too many
	rejectedFrame                         // more in one than any node sends
	rejectedSent                          // of a ledger whose clock cannot be right
	rejectedAsk
	rejectedReply
	rejectedFetch
	rejectedPresence
	rejectedParcel
	rejectedAccount // in a parcel
	rejectedReceipt
	rejectedBug // what made this node panic
	rejections
)

// rejectionNames are the kinds as metrics have them.
var rejectionNames = [rejections]string{
	rejectedPlain: "plaintext", rejectedTLS: "tls", rejectedIntroduction: "introduction", rejectedVersion: "version",
	rejectedName: "name", rejectedSecret: "secret", rejectedRegion: "region", rejectedGossip: "gossip",
	rejectedAddress: "address",
	rejectedFrame:   "frame", rejectedSent: "sent",
	rejectedAsk: "ask", rejectedReply: "reply", rejectedFetch: "fetch",
	rejectedPresence: "presence", rejectedParcel: "parcel",
	rejectedAccount: "account", rejectedReceipt: "receipt", rejectedBug: "bug",
}
