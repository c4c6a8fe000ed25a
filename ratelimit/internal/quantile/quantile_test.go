package quantile

import (
	"fmt"
	"sync"
	"testing"
)

// A key goes by its own costs once it has enough, and by the rule's before; the newest costs count.
func TestQuantile(t *testing.T) {
	var c Costs
	small, large, fresh := []byte("small"), []byte("large"), []byte("new")
	if _, ok := c.Quantile(small, 0.5); ok {
		t.Error("there is a quantile of nothing")
	}
	for i := range int64(costsLeast) {
		c.Observe(small, 10+i)
		c.Observe(large, 1000+i)
	}
	for _, x := range []struct {
		key  []byte
		q    float64
		want int64
	}{{small, 0.5, 18}, {large, 0.5, 1008}, {small, 1, 25}, {large, 0, 1000}, {fresh, 0.25, 18}, {fresh, 0.75, 1008}} {
		if got, ok := c.Quantile(x.key, x.q); !ok || got != x.want {
			t.Errorf("%s, %v: %d (%v), want %d", x.key, x.q, got, ok, x.want)
		}
	}
	for range costsKept {
		c.Observe(small, 7)
	}
	if got, _ := c.Quantile(small, 0.99); got != 7 {
		t.Errorf("old costs count: %d", got)
	}
}

// Keys are bounded, and costs come and go at once.
func TestManyKeys(t *testing.T) {
	var c Costs
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 1000 {
				key := fmt.Appendf(nil, "%d-%d", n, i)
				c.Observe(key, int64(i))
				c.Quantile(key, 0.9)
			}
		})
	}
	all.Wait()
	if len(c.keys) != costKeys {
		t.Errorf("%d keys have costs of their own, want %d", len(c.keys), costKeys)
	}
}
