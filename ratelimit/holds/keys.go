package holds

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Keys are the keys that a fleet shares. The first makes holds, and all verify them. The zero Keys have none.
// They may be replaced at any time, and are safe for concurrent use.
type Keys struct{ all atomic.Pointer[[]*key] }

// MaxKeys is the largest number of keys at a time, and MinKey the least length of one, in bytes.
const (
	MaxKeys = 4
	MinKey  = 16
)

// key is a secret, as the hashes that it keys.
type key struct{ macs sync.Pool }

// newKey derives the key of holds from a secret.
func newKey(secret []byte) *key {
	// The secret may serve others, too (PEER_SECRET): none can be taken for what the others sign.
	derived := hmac.New(sha256.New, secret)
	_, _ = derived.Write([]byte("sluice holds 1"))
	own := derived.Sum(nil)
	return &key{sync.Pool{New: func() any { return hmac.New(sha256.New, own) }}}
}

// sum appends the hash of texts to b, of which the first says what it is for.
func (k *key) sum(b []byte, use byte, texts ...[]byte) []byte {
	mac := k.macs.Get().(hash.Hash)
	defer k.macs.Put(mac)
	mac.Reset()
	_, _ = mac.Write([]byte{use})
	for _, text := range texts {
		_, _ = mac.Write(text)
	}
	return mac.Sum(b)
}

// Errors of Set.
var (
	ErrNoKeys  = errors.New("there is no key")
	ErrManyKey = fmt.Errorf("there are more than %d keys", MaxKeys)
	ErrShort   = fmt.Errorf("a key is shorter than %d bytes; make one with: openssl rand -base64 32", MinKey)
)

// Set reads keys from a text, separated by commas or white space. If there is anything wrong with one, the keys of
// before stay.
func (k *Keys) Set(text string) error {
	secrets := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) })
	switch {
	case len(secrets) == 0:
		return ErrNoKeys
	case len(secrets) > MaxKeys:
		return ErrManyKey
	case slices.ContainsFunc(secrets, func(s string) bool { return len(s) < MinKey }):
		return ErrShort
	}
	all := make([]*key, len(secrets))
	for i, secret := range secrets {
		all[i] = newKey([]byte(secret))
	}
	k.all.Store(&all)
	return nil
}

// SetOne has one secret be the key, whatever bytes it has.
func (k *Keys) SetOne(secret []byte) { k.all.Store(&[]*key{newKey(secret)}) }

// get is the keys; nil: there are none.
func (k *Keys) get() []*key {
	if all := k.all.Load(); all != nil {
		return *all
	}
	return nil
}
