package leasing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A recall is a message of the ledger to a holder: others wait for tokens of this
// account, and there are none left but those that are leased. The holder gives back
// at once what it does not need in the next moment. It is a hint: when it is lost,
// others are refused, and nothing else is wrong (docs/protocol.md, section 4.11).
//
//	claim: 1 waits --> nothing left, 40 leased elsewhere --recall--> other holder
//	                                                                   |
//	asked again after recallPause <-- 38 left <-- claim: 38 returned --'

const (
	// recallPause is how long a node waits before it asks again for what was
	// recalled: about two round trips and some work.
	recallPause = 2 * time.Millisecond
	// recallKeeps is for how long a holder keeps enough for its own demand.
	recallKeeps = 20 * time.Millisecond
)

// recall is what a node knows of recalls of one key.
type recall struct {
	asked     bool    // this node was asked to give back, while a claim was under way
	stretched bool    // the lease was made larger and longer: it is not given back when idle
	recalling bool    // others have been asked to give back, for this node's claim
	resume    instant // until then, what waits does not claim again
	resting   *flight // that ends then
}

// Recalled takes in that others wait for tokens of an account, by its name in the
// ledger. It does not block.
func (f *Fleet) Recalled(account string) {
	key := []byte(account)
	if !f.RawNames {
		var ok bool
		if key, ok = keyOfName(account); !ok {
			return // nothing of this version's
		}
	}
	s, _, h := f.locked(key)
	defer s.mu.Unlock()
	if h == nil {
		return
	}
	if h.flight != nil {
		h.asked = true
		return
	}
	f.giveBackSome(h, 0)
}

// giveBackSome has a claim sent that returns what is not needed, but for keep. The
// caller holds the shard's lock.
func (f *Fleet) giveBackSome(h *held, keep tokens) {
	h.asked = false
	if h.rule == nil || h.lease.unspent() <= 0 && h.lease.spent == h.reported {
		return // the ledger knows it by now
	}
	fl := f.newFlight(h)
	fl.recall, fl.keep = true, keep
	f.launch(h, fl)
}

// giveBack returns what the next moment does not need, but for keep at least.
func (h *held) giveBack(keep tokens) {
	keep = max(keep, tokens(recallKeeps.Seconds()*h.demand.perSec))
	h.lease.returned += max(0, h.lease.unspent()-keep)
	h.stretched = false
}

// untilAgain is a flight that ends when what was recalled may be there.
func (f *Fleet) untilAgain(h *held, now instant) *flight {
	if h.resting == nil || h.resting.ended() {
		fl := &flight{done: make(chan struct{})}
		f.after(h.resume.Sub(now), func() { close(fl.done) })
		h.resting = fl
	}
	return h.resting
}

// recallChannel is where settle.lua publishes what a holder is asked for: the name
// of the account's key in Redis.
func recallChannel(h ratelimit.Holder) string { return "sluice:recall:" + HolderName(h) }

// How a subscription is kept: one of which nothing is heard for recallSilence is asked
// whether it lives, and begun anew, after recallRest, when it says nothing for as long
// again.
const (
	recallSilence = 3 * time.Second
	recallRest    = time.Second
)

// Recalls implements [ratelimit.Recaller] by a subscription, which begins anew whenever
// it breaks.
func (l *Redis) Recalls(ctx context.Context, holders []ratelimit.Holder, recalled func(account string)) {
	channels := make([]string, len(holders))
	for i, h := range holders {
		channels[i] = recallChannel(h)
	}
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
		}
		if err := l.listen(ctx, channels, recalled); errors.Is(err, redis.ErrClosed) {
			return // the client was closed, and will not open again
		}
		rest.Reset(recallRest)
	}
}

// listen takes in recalls until the subscription breaks, and says why it did.
func (l *Redis) listen(ctx context.Context, channels []string, recalled func(account string)) error {
	heard := l.client.Subscribe(ctx, channels...)
	closed := context.AfterFunc(ctx, func() { _ = heard.Close() }) // ends what is waited for
	defer func() {
		closed()
		_ = heard.Close() // it only ends
	}()
	for asked := false; ; {
		m, err := received(ctx, heard)
		var late net.Error
		switch {
		case err == nil:
			asked = false
			if m, ok := m.(*redis.Message); ok {
				if account, ours := strings.CutPrefix(m.Payload, l.prefix); ours {
					recalled(account)
				}
			}
		case asked, !errors.As(err, &late), !late.Timeout(), heard.Ping(ctx) != nil:
			return err
		default:
			asked = true
		}
	}
}

// received is the next message of a subscription, waited for as long as recallSilence. It
// is received here, and not through the client's channel: the client panics at a message
// that makes no sense, and in a goroutine of its own that would end the process.
func received(ctx context.Context, heard *redis.PubSub) (m any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrLedgerAnswer, r)
		}
	}()
	return heard.ReceiveTimeout(ctx, recallSilence)
}

var _ ratelimit.Recaller = (*Redis)(nil)
