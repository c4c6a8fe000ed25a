package account

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// recallChannel is where claim.lua publishes what a node is asked for: the account's name in Redis. Behind it comes
// what all names of the node begin with.
const recallChannel = "sluice:recalled:"

// nodeDigits are those of a holder's name that all names of its node have.
const nodeDigits = 16 - namesOfANode/4

// How a subscription is kept: one of which nothing is heard for recallSilence is asked whether it lives, and begun
// anew, after recallRest, when it says nothing for as long again.
const (
	recallSilence = 3 * time.Second
	recallRest    = time.Second
)

// Recalls calls recalled with an account of which the node of a holder is asked to give back what it has in hand,
// until ctx is done. It blocks, and subscribes anew whenever its subscription breaks. Then it calls recalled with no
// key: some may have been missed.
func (l *Redis) Recalls(ctx context.Context, h ratelimit.Holder, recalled func(key string, w ratelimit.Window)) {
	rest, channel := time.NewTimer(0), recallChannel+hexOf(h)
	channel = channel[:min(len(recallChannel)+nodeDigits, len(channel))]
	defer rest.Stop()
	for again := false; ; again = true {
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
		}
		if err := l.listen(ctx, channel, again, recalled); errors.Is(err, redis.ErrClosed) {
			return // the client was closed, and will not open again
		}
		rest.Reset(recallRest) // a Redis that refuses is not asked in a loop
	}
}

// listen takes in recalls until the subscription breaks, and says why it did.
func (l *Redis) listen(
	ctx context.Context, channel string, again bool, recalled func(string, ratelimit.Window),
) error {
	heard := l.subscribe(ctx, channel)
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
			switch m := m.(type) {
			case *redis.Subscription:
				if again {
					recalled("", 0)
				}
				again = true // the client may subscribe anew by itself
			case *redis.Message:
				if key, w, ours := ParseName(l.prefix, m.Payload); ours {
					recalled(key, w)
				}
			}
		// A connection whose other end is gone may say nothing for hours.
		case asked, !errors.As(err, &late), !late.Timeout(), heard.Ping(ctx) != nil:
			return err
		default:
			asked = true
		}
	}
}

func (l *Redis) subscribe(ctx context.Context, channel string) *redis.PubSub {
	if l.cluster != nil {
		return l.cluster.Subscribe(ctx, channel)
	}
	return l.one.client.Subscribe(ctx, channel)
}

// received is the next message. It is received here, and not through the client's channel: the client panics at a
// message that makes no sense, and in a goroutine of its own that would end the process.
func received(ctx context.Context, heard *redis.PubSub) (m any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrAnswer, r)
		}
	}()
	return heard.ReceiveTimeout(ctx, recallSilence)
}
