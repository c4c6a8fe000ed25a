// Package tabletest has the common tests of all stores of a [table.Table], on real servers.
//
// Guarantee: each store merges, orders and finds changes as the table in memory does, loses nothing of concurrent
// writers, and gets back from its nodes what it lost.
package tabletest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// Server is a store's server. Its data is empty.
type Server struct {
	// Open connects to it, as another node does.
	Open func(testing.TB) table.Store
	// Restart ends and starts it, with its data; nil: it cannot.
	Restart func()
	// Lose loses its data; nil: it cannot.
	Lose func()
}

// Run tests a store.
func Run(t *testing.T, s Server) {
	t.Run("words", func(t *testing.T) { words(t, s.Open(t)) })
	t.Run("writers", func(t *testing.T) { writers(t, s) })
	for name, lose := range map[string]func(){"restart": s.Restart, "loss": s.Lose} {
		if lose != nil {
			t.Run(name, func(t *testing.T) { loss(t, s, lose) })
		}
	}
	t.Run("many", func(t *testing.T) { many(t, s) })
}

// node is a node of a store. The test makes it step.
type node struct {
	*table.Node
	testing.TB
}

func newNode(t testing.TB, s Server, seed uint64) *node {
	began := time.Now()
	clock := func() ratelimit.LedgerTime {
		return ratelimit.LedgerTime(began.Add(time.Since(began)).UnixMicro())
	}
	return &node{table.NewNode(table.New(nil), s.Open(t), clock, seed), t}
}

// settles steps until nothing is left to do. The server may be away for a while.
func (n *node) settles() {
	n.Helper()
	var last error
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		ctx, cancel := context.WithTimeout(n.Context(), 5*time.Second)
		more, err := n.Step(ctx)
		cancel()
		if err == nil && !more {
			return
		}
		last = err
		if err != nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
	n.Fatalf("a node does not settle: %v", last)
}

func (n *node) sets(key, value string) table.Record {
	n.Helper()
	for until := time.Now().Add(time.Minute); ; n.settles() {
		r, err := n.Set(n.Context(), table.Record{Key: key, Value: value}, table.Any)
		if err == nil {
			return r
		}
		if time.Now().After(until) {
			n.Fatal(err)
		}
	}
}

func (n *node) has(what string, want map[string]string) {
	n.Helper()
	have := map[string]string{}
	for _, r := range n.After("") {
		have[r.Key] = r.Value
	}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		n.Errorf("%s a node has %v, must have %v", what, have, want)
	}
}

// words compares each answer of a store with that of the table in memory.
func words(t *testing.T, s table.Store) {
	ctx := t.Context()
	first, err := s.Since(ctx, "", 0, 10)
	if err != nil || first.Life == "" || len(first.Records) != 0 || first.More || first.Now == 0 {
		t.Fatalf("an empty store answers %+v, %v", first, err)
	}
	twin, now := table.New(nil), first.Now
	merge := func(records ...table.Record) {
		t.Helper()
		if err := s.Merge(ctx, first.Life, records); err != nil {
			t.Fatal(err)
		}
		twin.Merge(records, now)
	}
	same := func() {
		t.Helper()
		p, err := s.Since(ctx, first.Life, 0, 100)
		if want, _, _ := twin.Since(0, 100); err != nil || !slices.Equal(p.Records, want) {
			t.Errorf("the store has %v, must have %v (%v)", p.Records, want, err)
		}
	}
	odd := table.Record{Key: "\x00|'\xff\n ", Version: 7, Value: "v \x00\xff\n'"}
	merge(table.Record{Key: "a", Version: 5, Value: "x"}, odd)
	same()
	for _, r := range []table.Record{
		{Key: "a", Version: 4, Value: "z"},
		{Key: "a", Version: 5, Value: "w"},
		{Key: "a", Version: 5, Value: "X"},
		{Key: "a", Version: 5, Value: "xa"},
		{Key: "a", Version: 5, Value: "x\xff"},
		{Key: "a", Version: 5, Ends: 1 << 50, Value: "b"},
		{Key: "a", Version: 5, Ends: 1<<50 - 1, Value: "zz"},
		{Key: "a", Version: 6},
		{Key: "a", Version: 6, Value: "back"},
		{Key: "b", Version: 1 << 52, Value: "ahead of the clock"},
	} {
		merge(r)
		same()
	}
	set := func(key, value string, ends ratelimit.LedgerTime, expected table.Expected, fails error) table.Record {
		t.Helper()
		r, err := s.Set(ctx, first.Life, table.Record{Key: key, Value: value, Ends: ends}, expected)
		if !errors.Is(err, fails) || fails == nil && err != nil {
			t.Fatalf("setting %s to %q gives %v, %v, must give %v", key, value, r, err, fails)
		}
		if err == nil {
			twin.Merge([]table.Record{r}, now)
			same()
		}
		return r
	}
	if r := set("c", "1", 0, table.None, nil); r.Version <= 1<<52 || r.Key != "c" || r.Value != "1" {
		t.Errorf("%+v has no version above all", r)
	}
	was := set("c", "2", 0, table.None, table.ErrChanged)
	set("c", "2", 0, was.Version-1, table.ErrChanged)
	set("c", "2", 0, was.Version, nil)
	set("c", "2", 0, was.Version, table.ErrChanged)
	set("c", "", 0, table.Any, nil)
	set("c", "3", 1, table.None, nil) // it has ended
	set("c", "4", 0, table.None, nil)
	set("d", "", 0, table.Any, nil)
	page, err := s.Since(ctx, first.Life, 0, 1)
	if err != nil || !page.More || len(page.Records) != 1 {
		t.Errorf("a page of one is %+v, %v", page, err)
	}
	for i := 0; page.More && i < 100; i++ {
		page, err = s.Since(ctx, first.Life, page.Place, 1)
		if err != nil {
			t.Fatal(err)
		}
	}
	again, err := s.Since(ctx, first.Life, page.Place, 10)
	if err != nil || len(again.Records) > 0 || again.Place != page.Place {
		t.Errorf("behind the last page is %+v, %v", again, err)
	}
	if p, err := s.Since(ctx, "another", page.Place, 100); err != nil || len(p.Records) != 5 || p.Life != first.Life {
		t.Errorf("from another life it answers %+v, %v", p, err)
	}
	if err := s.Drop(ctx, "another", []table.Record{was}); !errors.Is(err, table.ErrLife) {
		t.Errorf("another life may drop: %v", err)
	}
	gone := twin.Record("d")
	for _, drop := range []table.Record{{Key: "a", Version: 1}, gone, {Key: "none", Version: 7}} {
		if err := s.Drop(ctx, first.Life, []table.Record{drop}); err != nil {
			t.Fatal(err)
		}
	}
	twin.Drop([]table.Record{gone})
	same()
	set("e", "1", 0, table.None, nil)
	if err := s.Merge(ctx, "another", []table.Record{was}); !errors.Is(err, table.ErrLife) {
		t.Errorf("another life may write: %v", err)
	}
	if _, err := s.Set(ctx, "another", was, table.Any); !errors.Is(err, table.ErrLife) {
		t.Errorf("another life may set: %v", err)
	}
	// An older copy, restored in place, has lower places than this node has read.
	p, err := s.Since(ctx, first.Life, page.Place+1000, 100)
	if want, _, _ := twin.Since(0, 100); err != nil || p.Life == first.Life || !slices.Equal(p.Records, want) {
		t.Errorf("after a place that was not yet it answers %+v, %v", p, err)
	}
}

// writers raise a number at once, each by compare and set: no change is lost, and a reader meets each key.
func writers(t *testing.T, s Server) {
	const nodes, times = 4, 25
	var all sync.WaitGroup
	for i := range nodes {
		n := newNode(t, s, uint64(i))
		n.settles()
		all.Go(func() {
			for k := range times {
				for _, key := range []string{fmt.Sprint("w", i, ".", k), "any"} {
					if _, err := n.Set(t.Context(), table.Record{Key: key, Value: "own"}, table.Any); err != nil {
						t.Error(err)
						return
					}
				}
				for {
					is := n.Record("sum")
					count, _ := strconv.Atoi(is.Value)
					_, err := n.Set(t.Context(), table.Record{Key: "sum", Value: strconv.Itoa(count + 1)}, is.Version)
					if err == nil {
						break
					}
					if !errors.Is(err, table.ErrChanged) {
						t.Error(err)
						return
					}
					n.settles()
				}
			}
		})
	}
	reader := newNode(t, s, 9)
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	for ended := false; !ended; reader.settles() {
		select {
		case <-done:
			ended = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	if r := reader.Record("sum"); r.Value != fmt.Sprint(nodes*times) {
		t.Errorf("%d changes raised it to %s", nodes*times, r.Value)
	}
	for i := range nodes {
		for k := range times {
			if r := reader.Record(fmt.Sprint("w", i, ".", k)); r.Value != "own" {
				t.Errorf("the reader lacks %d.%d", i, k)
			}
		}
	}
}

// loss has a server lose its data, or perhaps: its nodes have all that was set, and a node that comes later too. What
// was removed stays so.
func loss(t *testing.T, s Server, lose func()) {
	one, other := newNode(t, s, 1), newNode(t, s, 2)
	one.settles()
	other.settles()
	want := map[string]string{}
	for _, r := range one.After("") {
		want[r.Key] = r.Value
	}
	for i := range 700 { // more than a chunk
		key := fmt.Sprint("loss", i)
		if i%7 == 0 {
			one.sets(key, "")
		} else {
			one.sets(key, "x")
			want[key] = "x"
		}
		if i == 350 {
			lose()
		}
	}
	other.settles()
	lose()
	other.settles()
	one.settles()
	late := newNode(t, s, 3)
	late.settles()
	for name, n := range map[string]*node{"the first": one, "the second": other, "a late": late} {
		n.has("after a loss "+name+" node:", want)
	}
}

// many has a table of ten thousand records in the store, and then a full one in the node.
func many(t *testing.T, s Server) {
	n := newNode(t, s, 1)
	n.settles()
	store, ctx := s.Open(t), t.Context()
	page, err := store.Since(ctx, "", 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	const records = 10_000
	before, began := n.Len(), time.Now()
	for i := 0; i < records; {
		var some []table.Record
		for ; i < records && len(some) < 500; i++ {
			some = append(some, table.Record{
				Key: fmt.Sprintf("edge|api_key=customer-%06d", i), Version: page.Now,
				Value: `{"limit":1000,"by":"ann@example.com","why":"ticket 4711"}`,
			})
		}
		if err := store.Merge(ctx, page.Life, some); err != nil {
			t.Fatal(err)
		}
	}
	wrote := time.Since(began)
	began = time.Now()
	n.settles()
	read := time.Since(began)
	if n.Len() != before+records {
		t.Errorf("a node has %d records, must have %d", n.Len(), before+records)
	}
	const beats = 200
	began = time.Now()
	for range beats {
		n.settles()
	}
	t.Logf("%d records: written in %v, read in %v; a beat without a change %v", records,
		wrote.Round(time.Millisecond),
		read.Round(time.Millisecond), time.Since(began)/beats)
	full := make([]table.Record, table.Most)
	for i := range full {
		full[i] = table.Record{Key: fmt.Sprint("full", i), Version: page.Now, Value: "x"}
	}
	alone := &table.Alone{Table: n.Table, Wall: time.Now, Clock: ratelimit.MonotonicClock()}
	for _, of := range []string{"full", "removed", "others, removed"} {
		n.Merge(full, page.Now) // here alone
		for _, at := range []interface {
			Set(context.Context, table.Record, table.Expected) (table.Record, error)
		}{n, alone} {
			_, err := at.Set(ctx, table.Record{Key: "more", Value: "x"}, table.Any)
			has := n.Record("more").Value
			if (err == nil) != (has == "x") || of != "removed" && !errors.Is(err, table.ErrFull) {
				t.Errorf("%s: it has %q, and setting gives %v", of, has, err)
			}
		}
		n.Drop([]table.Record{n.Record("more")})
		for i := range full {
			full[i].Version, full[i].Value = full[i].Version+1, ""
			if of == "removed" {
				full[i].Key = fmt.Sprint("other", i)
			}
		}
	}
}
