package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// Redis keeps the registration of a silent node for a day, of the newest ones only, and none of another form.
func TestSilentNodesAreKept(t *testing.T) {
	server := redistest.Start(t)
	s := started(t, Flags{URL: "redis://" + server.Addr, Redis: few})
	now := time.Now().Unix()
	said := func(name string, ago time.Duration) {
		server.Do("HSET", "sluice:nodes", name, fmt.Sprint(now-int64(ago/time.Second), " {}"))
	}
	said("silent", 3*time.Hour)
	said("forgotten", 25*time.Hour)
	said("ahead", -time.Hour)
	server.Do("HSET", "sluice:nodes", "foreign", "text")
	names := func() (all []string) {
		nodes, err := s.Register(t.Context(), "here", "{}")
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			all = append(all, n.Node)
		}
		return all
	}
	if all := names(); !slices.Equal(all, []string{"here", "silent"}) {
		t.Errorf("listed are %v", all)
	}
	for i := range 3 * mostSilent {
		said(fmt.Sprint(i), 2*time.Hour)
	}
	if all := names(); len(all) != 1+mostSilent || slices.Contains(all, "silent") {
		t.Errorf("%d are listed, of %d silent ones", len(all), 3*mostSilent)
	}
	if n := server.Do("HLEN", "sluice:nodes"); fmt.Sprint(n) != fmt.Sprint(1+mostSilent) {
		t.Errorf("Redis keeps %v", n)
	}
}
