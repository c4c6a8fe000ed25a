package store

import (
	"fmt"
	"strings"
	"testing"
)

// No error about a store's settings has a password of its URL, whatever the fault is.
func TestWrongURLsKeepTheirPassword(t *testing.T) {
	redis := func(kind, url string) Flags {
		f := Flags{Redis: few}
		f.Redis.URL, f.Redis.Type = url, kind
		return f
	}
	perSecond := redis("SINGLE", "")
	perSecond.Redis.PerSecond = RedisPerSecond{Use: true, URL: "redis://:hunter2@r:6379"}
	socket := redis("SINGLE", "user:hunter2@r:6379")
	socket.Redis.SocketType = "unix"
	for i, f := range []Flags{
		redis("SINGLE", "user:hunter2@r:6379"),
		redis("SINGLE", "redis://user:hunter2/x@r:6379"),
		redis("SINGLE", "redis://user:hunter2#x@r:6379"),
		redis("SINGLE", "redis://user:%hunter2@r:6379"),
		redis("SINGLE", "http://user:hunter2@r:6379"),
		redis("CLUSTER", "redis://:hunter2@a:6379,redis://:hunter2@b:6379"),
		redis("SENTINEL", "redis://:hunter2@a:6379"),
		redis("SENTINEL", "master,redis://:hunter2@a:6379"),
		socket, perSecond,
		{URL: "user:hunter2@db:5432", Redis: few},
		{URL: "host=db password=hunter2", Redis: few},
		{URL: "postgres://user:hunter2/x@db/limits", Redis: few},
		{URL: "postgres://user:hunter2@db:port/limits", Redis: few},
		{URL: "postgres://db/limits?password=hunter2&pool_max_conns=x", Redis: few},
		{URL: "postgres://db/limits?password=hunter2&sslmode=x", Redis: few},
		{URL: "postgres://user:hunter2@db/limits?connect_timeout=x", Redis: few},
		{URL: "etcd://user:hunter2@e", Redis: few},
		{URL: "etcd://user:hunter2@e:2379?tls=x", Redis: few},
		{URL: "etcd://hunter2@e:2379", Redis: few},
	} {
		s, err := Open(Options{Flags: f})
		if s != nil {
			s.Close()
		}
		if err == nil {
			_, err = PerSecond(Options{Flags: f})
		}
		if said := fmt.Sprint(err); err == nil || strings.Contains(said, "hunter") {
			t.Errorf("%d: %s%s: %s", i, f.URL, f.Redis.URL, said)
		}
	}
}
