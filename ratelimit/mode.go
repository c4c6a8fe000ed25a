package ratelimit

// Mode is how the nodes of a fleet share a limit: a line in the table of modes.
type Mode uint8

const (
	// Leasing spends from tokens leased by the ledger. While that answers, it never over-admits.
	Leasing Mode = iota
	// Routing asks the key's owner. While that answers, it never over-admits.
	Routing
	// Approx may spend a drift share before the ledger has answered.
	Approx
)

// ModeSpec is a mode as configuration, declarations, advice and screens use it. The server
// chooses the limiter of a rule by it (cmd/sluice, modes.go).
type ModeSpec struct {
	Name    string
	Promise string   // a sentence without its subject, for people who choose one
	Fields  []string // of a coordination, that rules of no other mode read
	// Owned has one node decide on a key, its owner.
	Owned bool
	// Drifts has a node admit a share of a drift budget before the ledger has answered.
	Drifts bool
}

// modes is the table. Mode is an index of it, which peers send each other: add a mode at the end.
var modes = []ModeSpec{
	Leasing: {
		Name:    "leasing",
		Promise: "never admits more than the limit while the store answers, and spends leased tokens without waiting",
	},
	Routing: {
		Name:    "routing",
		Promise: "never admits more than the limit while the owner of a key answers, and asks that owner", Owned: true,
	},
	Approx: {
		Name:    "approx",
		Promise: "admits at most its drift budget beyond the limit, and waits less",
		Fields:  []string{"drift_budget", "check_timeout"}, Drifts: true,
	},
}

// Spec returns the mode's line in the table. It is shared: do not change it.
func (m Mode) Spec() *ModeSpec { return &modes[m] }

// KnownMode reports whether a number that a peer sent is a mode.
func KnownMode(n uint32) bool { return int(n) < len(modes) }

// String is the name that a config may use.
func (m Mode) String() string { return modes[m].Name }

// ModeNames are the names that a config may use, by value.
func ModeNames() []string {
	names := make([]string, len(modes))
	for i := range modes {
		names[i] = modes[i].Name
	}
	return names
}
