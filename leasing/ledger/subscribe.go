package ledger

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

// RecallChannel is where settle.lua publishes what a holder is asked for: the name
// of the account's key in Redis.
func RecallChannel(h ratelimit.Holder) string { return "sluice:recall:" + HolderName(h) }

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
		channels[i] = RecallChannel(h)
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
		// A Redis that refuses is not asked in a loop: a recall that is missed meanwhile costs refusals,
		// and nothing else.
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
		// A connection whose other end is gone may say nothing for hours. After a silence it is asked
		// whether it lives; after a second one it is given up.
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
