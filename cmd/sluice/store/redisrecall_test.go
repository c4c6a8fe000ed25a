package store

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// recalling is a Redis that answers a subscription with recalls, a ping with a pong, and all else with an error.
func recalling(c net.Conn, messages int) {
	var mu sync.Mutex
	answer := func(text string) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := io.WriteString(c, text)
		return err
	}
	bulk := func(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
	stream := func(channel string) {
		err := answer("*3\r\n" + bulk("subscribe") + bulk(channel) + ":1\r\n")
		for w := 1; w <= messages && err == nil; w++ {
			err = answer("*3\r\n" + bulk("message") + bulk(channel) + bulk(account.NameOf("", "key", ratelimit.Window(w))))
		}
	}
	for in := bufio.NewReader(c); ; {
		head, err := in.ReadString('\n')
		if err != nil {
			return
		}
		n, _ := strconv.Atoi(strings.Trim(head, "*\r\n"))
		words := make([]string, n)
		for i := range words {
			_, _ = in.ReadString('\n')
			word, _ := in.ReadString('\n')
			words[i] = strings.TrimSpace(word)
		}
		switch words[0] {
		case "subscribe":
			go stream(words[1])
		case "ping":
			go func() { _ = answer("*2\r\n" + bulk("pong") + bulk("")) }()
		default:
			_ = answer("-ERR unknown command\r\n")
		}
	}
}

// Recalls without a pause count as many answers, and not as one beyond the bounds.
func TestManyRecallsKeepTheSubscription(t *testing.T) {
	const messages = 2 * mostReply / 64
	refused := new(atomic.Uint64)
	client := redis.NewClient(&redis.Options{
		MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true, Protocol: 2,
		Dialer: bounded(func(context.Context, string, string) (net.Conn, error) {
			server, client := net.Pipe()
			go recalling(server, messages)
			return client, nil
		}, nil, refused),
	})
	defer client.Close()
	ledger, err := account.NewRedis(client, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := 0
	ledger.Recalls(ctx, account.NewHolder(), func(key string, w ratelimit.Window) {
		if got++; w == messages || key == "" {
			cancel()
		}
	})
	if got != messages || refused.Load() != 0 {
		t.Errorf("of %d recalls %d arrive, and %d connections are closed", messages, got, refused.Load())
	}
}
