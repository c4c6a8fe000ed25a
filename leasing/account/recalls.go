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

// recallChannel is the channel on which claim.lua publishes recalls of a node: the account's name in Redis. After it
// comes the common part of the node's names.
const recallChannel = "sluice:recalled:"

// nodeDigits is the number of digits of that part.
const nodeDigits = 16 - namesOfANode/4

// Times of a subscription: after recallSilence without a message it is pinged. Without an answer for as long again,
// it is opened again after recallRest.
const (
	recallSilence = 3 * time.Second
	recallRest    = time.Second
)

// Recalls calls recalled with each account whose tokens in hand the holder's node must give back, until ctx is done.
// It blocks, and subscribes again when its subscription breaks. Then it calls recalled without a key, because recalls
// may have been missed.
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
			return // the client was closed for good
		}
		rest.Reset(recallRest) // for a Redis that refuses, without a loop
	}
}

// listen reads recalls until the subscription breaks, and returns its error.
func (l *Redis) listen(
	ctx context.Context, channel string, again bool, recalled func(string, ratelimit.Window),
) error {
	heard := l.subscribe(ctx, channel)
	closed := context.AfterFunc(ctx, func() { _ = heard.Close() }) // ends the wait
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
				again = true // the client may subscribe again by itself
			case *redis.Message:
				if key, w, ours := ParseName(l.prefix, m.Payload); ours {
					recalled(key, w)
				}
			}
		// A connection whose other end is gone may stay silent for hours.
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

// received reads the next message directly. The client's channel would panic at an invalid message in its own
// goroutine, which ends the process.
func received(ctx context.Context, heard *redis.PubSub) (m any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrAnswer, r)
		}
	}()
	return heard.ReceiveTimeout(ctx, recallSilence)
}
