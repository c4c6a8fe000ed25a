package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest/etcdtest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The user of the guide, with the keys below sluice/, can do all that a node does.
func TestUserOfTheGuideSuffices(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	server.With(func(ctx context.Context, c *clientv3.Client) error {
		if _, err := c.RoleAdd(ctx, "sluice"); err != nil {
			return err
		}
		end, both := clientv3.GetPrefixRangeEnd("sluice/"), clientv3.PermissionType(clientv3.PermReadWrite)
		if _, err := c.RoleGrantPermission(ctx, "sluice", "sluice/", end, both); err != nil {
			return err
		}
		if _, err := c.UserAdd(ctx, "sluice", "password"); err != nil {
			return err
		}
		_, err := c.UserGrantRole(ctx, "sluice", "sluice")
		return err
	})
	server.Protect("secret")
	s := prepared(t, strings.Replace(server.URL(), "://", "://sluice:password@", 1)+"?compact=false")
	ctx := t.Context()
	check := func(of string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", of, err)
		}
	}
	l := account.NewCAS(s, "t:")
	c := claim("k", 1, 1, 0, 6)
	g, _ := settle(t, l, c)
	check("a claim", g.Err)
	check("a recall", s.Send(ctx, map[ratelimit.Holder][]string{1: {"name"}}))
	check("the registry", s.Register(ctx, "node", "text", time.Minute, func(string, string, time.Duration) {}))
	check("the registry", s.Register(ctx, "node", "", time.Minute, func(string, string, time.Duration) {}))
	_, _, err := s.Drop(ctx, 0)
	check("a sweep", err)
	listening, cancel := context.WithCancel(ctx)
	check("recalls", s.Listen(listening, 1, cancel, func(string) {}))
	s.history = history{revision: 1}
	if _, _, err = s.Drop(ctx, 0); !errors.Is(err, ErrCompact) {
		t.Errorf("a compaction by that user: %v", err)
	}
}
