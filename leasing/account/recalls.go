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

// nodeDigits is the number of digits of that part. A node has many names, which differ in the last seven digits, and
// one channel for all of them.
const nodeDigits = 16 - namesOfANode/4

// recallsOf is the channel of a holder's node.
func recallsOf(holder string) string { return recallChannel + holder[:min(nodeDigits, len(holder))] }

// Times of a subscription: after recallSilence without a message it is pinged. Without an answer for as long again,
// it is opened again after recallRest. It is also pinged after recallsAnswered messages: the client's connection may
// bound the answers to a command.
const (
	recallSilence   = 3 * time.Second
	recallRest      = time.Second
	recallsAnswered = 1000
)

// Recalls calls recalled with each account whose tokens in hand the holder's node must give back, until ctx is done. It
// blocks, and subscribes again when its subscription breaks. Then it calls recalled without a key, because recalls may
// have been missed. In a Cluster, each master passes on what is published at any other, so one subscription receives
// all recalls.
func (l *Redis) Recalls(ctx context.Context, h ratelimit.Holder, recalled func(key string, w ratelimit.Window)) {
	channel := recallsOf(HolderName(h))
	follow(ctx, l.prefix, recalled, func(ready func(), received func(string)) error {
		return l.listen(ctx, channel, ready, received)
	})
}

// follow calls listen again and again until ctx is done, and passes on the names of accounts. A name of another prefix
// is left out: several fleets can share a Redis and its channels.
func follow(
	ctx context.Context, prefix string, recalled func(string, ratelimit.Window),
	listen func(ready func(), received func(string)) error,
) {
	// Before the first subscription, this node has hardly any tokens to give back.
	again := false
	ready := func() {
		if again {
			recalled("", 0)
		}
		again = true
	}
	received := func(name string) {
		if key, w, ours := ParseName(prefix, name); ours {
			recalled(key, w)
		}
	}
	rest := time.NewTicker(recallRest)
	defer rest.Stop()
	// After an attempt that failed before it was ready, recalls may have been missed, too.
	for ; ; again = true {
		if err := listen(ready, received); errors.Is(err, redis.ErrClosed) {
			return // the client was closed for good
		}
		select {
		case <-ctx.Done():
			return
		case <-rest.C: // for a store that refuses, without a loop
		}
	}
}

// recalled is a recall on its way to the store.
type recalled struct {
	node ratelimit.Holder
	name string
}

const (
	// recallsMost bounds those that wait: more are left out. recallsSent is the number in one message.
	recallsMost, recallsSent = 1 << 10, 100
	recallTime               = time.Second // of a message
)

// recall recalls holders of an account. It does not wait for the store: a recall is outside of the change that causes
// it, because PostgreSQL commits transactions with notifications one after the other.
func (l *CAS) recall(name string, holders []ratelimit.Holder) {
	for _, h := range holders {
		if l.OnRecall != nil {
			key, w, _ := ParseName(l.prefix, name)
			l.OnRecall(h, key, w)
			continue
		}
		select {
		case l.recalls <- recalled{NodeOf(h), name}:
		// The queue is full, and the recall is left out. The sender of the claim waits, and claims again.
		default:
		}
	}
}

// Recalls is like [Redis.Recalls], and sends this node's recalls. A store that is no [Messenger] has none.
func (l *CAS) Recalls(ctx context.Context, h ratelimit.Holder, recalled func(key string, w ratelimit.Window)) {
	s, ok := l.store.(Messenger)
	if !ok {
		<-ctx.Done()
		return
	}
	go l.pass(ctx, s)
	follow(ctx, l.prefix, recalled, func(ready func(), received func(string)) error {
		return s.Listen(ctx, NodeOf(h), ready, received)
	})
}

// pass sends recalls until ctx is done, all that wait in one message. A name may come several times in a message, which
// costs its node a second look.
func (l *CAS) pass(ctx context.Context, s Messenger) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-l.recalls:
			names := map[ratelimit.Holder][]string{r.node: {r.name}}
			for n, more := 1, true; more && n < recallsSent; n++ {
				select {
				case r := <-l.recalls:
					names[r.node] = append(names[r.node], r.name)
				default:
					more = false
				}
			}
			bounded, cancel := context.WithTimeout(ctx, recallTime)
			_ = s.Send(bounded, names) // a recall may be lost
			cancel()
		}
	}
}

// listen reads recalls until the subscription breaks, and returns its error. asked means that a ping is under way. A
// silence after that is a broken connection.
func (l *Redis) listen(ctx context.Context, channel string, ready func(), received func(string)) error {
	from := l.subscribe(ctx, channel)
	closed := context.AfterFunc(ctx, func() { _ = from.Close() }) // ends the wait
	defer func() {
		closed()
		_ = from.Close() // it only ends
	}()
	for asked, n := false, 0; ; {
		m, err := receive(ctx, from)
		var late net.Error
		switch {
		case err == nil:
			asked = false
			switch m := m.(type) {
			case *redis.Subscription: // the client may subscribe again by itself
				ready()
			case *redis.Message:
				received(m.Payload)
				n++
				if n%recallsAnswered == 0 {
					_ = from.Ping(ctx) // an error breaks the subscription
				}
			}
		// A connection whose other end is gone may stay silent for hours.
		case asked, !errors.As(err, &late), !late.Timeout(), from.Ping(ctx) != nil:
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

// receive reads the next message directly. The client's channel would panic at an invalid message in its own
// goroutine, which ends the process.
func receive(ctx context.Context, from *redis.PubSub) (m any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrAnswer, r)
		}
	}()
	return from.ReceiveTimeout(ctx, recallSilence)
}
