package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Redactor hides values of descriptors. Each value becomes a mark, which stays the same while the process runs, so
// that keys can still be told apart. A secret prevents guesses of values elsewhere. A nil Redactor hides nothing.
type Redactor struct{ secret [32]byte }

// NewRedactor makes one with its own secret, which ends with the process.
func NewRedactor() *Redactor {
	r := &Redactor{}
	_, _ = rand.Read(r.secret[:]) // it never fails
	return r
}

// mark has 32 bits: enough to tell the keys of a page apart, and too few to find a value by trying.
func (r *Redactor) mark(value string) string {
	h := hmac.New(sha256.New, r.secret[:])
	h.Write([]byte(value))
	return "#" + hex.EncodeToString(h.Sum(nil)[:4])
}

// account hides the values in the name of an account: the text after its unit and domain, and after each "=". The name
// is as console and metrics print it: UNIT|DOMAIN|KEY=VALUE|KEY=VALUE. A text of another form is hidden as a whole.
func (r *Redactor) account(name string) string {
	if r == nil {
		return name
	}
	parts := strings.Split(name, "|")
	if len(parts) < 3 {
		return r.mark(name)
	}
	for i := 2; i < len(parts); i++ {
		if key, value, ok := strings.Cut(parts[i], "="); ok {
			parts[i] = key + "=" + r.mark(value)
		} else {
			parts[i] = r.mark(parts[i])
		}
	}
	return strings.Join(parts, "|")
}

// Accounts hides the values in names of accounts. It is safe for concurrent use.
func (r *Redactor) Accounts(names []string) []string {
	hidden := slices.Clone(names)
	for i := range hidden {
		hidden[i] = r.account(hidden[i])
	}
	return hidden
}

// hottest is a copy with hidden values, so the limiter's own list stays as it is.
func (r *Redactor) hottest(keys []ratelimit.HotKey) []ratelimit.HotKey {
	hidden := slices.Clone(keys)
	for i := range hidden {
		hidden[i].Account = r.account(hidden[i].Account)
	}
	return hidden
}
