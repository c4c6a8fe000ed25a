package ledger

import (
	"bufio"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A server that answers a subscription with what makes no sense breaks it, and nothing
// else: the client would panic.
func TestSubscriptionThatMakesNoSense(t *testing.T) {
	for _, reply := range []string{
		"*3\r\n:5\r\n$1\r\na\r\n:1\r\n",
		"*3\r\n$9\r\nsubscribe\r\n:1\r\n$1\r\nx\r\n",
		"*1\r\n$7\r\nmessage\r\n",
		"*3\r\n$7\r\nmessage\r\n:1\r\n:2\r\n",
		"*0\r\n",
		":7\r\n",
	} {
		server, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := server.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					for lines := bufio.NewScanner(c); lines.Scan(); {
						switch strings.ToLower(lines.Text()) {
						case "hello", "client", "ping":
							_, _ = c.Write([]byte("-ERR no\r\n"))
						case "subscribe":
							_, _ = c.Write([]byte(reply))
						}
					}
				}()
			}
		}()
		client := redis.NewClient(&redis.Options{Addr: server.Addr().String(), Protocol: 2, DisableIdentity: true})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_ = NewRedis(client, "").listen(ctx, []string{"a"}, func(account string) { t.Errorf("%q: recalled %q", reply, account) })
		if ctx.Err() != nil {
			t.Errorf("%q: the subscription goes on", reply)
		}
		cancel()
		client.Close()
		server.Close()
	}
}

// A subscription that broke begins anew, and what is recalled then is heard.
func TestRecallsAreHeardAgain(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	ctx, cancel := context.WithCancel(t.Context())
	heard, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		NewRedis(client, "p:").Recalls(ctx, []ratelimit.Holder{7}, func(account string) {
			select {
			case heard <- account:
			default:
			}
		})
	}()
	for round := range 2 {
		for end := time.Now().Add(20 * time.Second); ; { // until it has subscribed
			if n, _ := client.Publish(ctx, RecallChannel(7), "p:account").Result(); n > 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("round %d: nobody listens", round)
			}
			time.Sleep(time.Millisecond)
		}
		select {
		case account := <-heard:
			if account != "account" {
				t.Errorf("recalled %q", account)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("round %d: it was not heard", round)
		}
		if round == 0 {
			server.Kill()
			server.Run()
		}
	}
	cancel()
	<-ended
}
