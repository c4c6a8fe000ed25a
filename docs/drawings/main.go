// Command drawings writes the drawings of the pages, for readers with a light or a dark theme:
//
//	go run ./docs/drawings docs/drawings
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// drawings are the files by their names.
var drawings = map[string]func() *drawing{
	"fleet.svg": fleet, "window.svg": window, "outage.svg": outage, "hold.svg": hold, "ring.svg": ring, "regions.svg": regions, "house.svg": house,
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./docs/drawings DIRECTORY")
		os.Exit(2)
	}
	for name, draw := range drawings {
		if err := os.WriteFile(filepath.Join(os.Args[1], name), []byte(draw().svg()), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// fleet is the parts of a deployment, and the messages between them.
func fleet() *drawing {
	d := &drawing{width: 760, height: 250, says: "Three Envoys ask three nodes of Sluice for each request. " +
		"Nodes answer from leases in memory, and send the store one message for many requests."}
	for i := range 3 {
		y := 20 + 75*i
		d.box(20, y, 110, 50, "Envoy")
		d.box(300, y, 170, 50, fmt.Sprint("Sluice node ", i+1), "leases, in memory")
		d.arrow(130, y+25, 298, y+25, "each request")
		d.arrow(470, y+25, 618, 95+(y+25-120)/4+25, "")
	}
	d.box(620, 70, 120, 100, "Store", "Redis, Valkey,", "PostgreSQL, etcd")
	d.text(600, 214, "soft", "one message for many requests")
	return d
}

// window is a limit of 1,000 with its leases.
func window() *drawing {
	d := &drawing{width: 760, height: 230, says: "A limit of 1,000 early in a window, near its end, and used up: " +
		"leases shrink as the rest of the limit does."}
	rows := []struct {
		when string
		a, b int // spent by nodes A and B
		ha   int // in hand of A
		hb   int // in hand of B
		note string
	}{
		{"early", 210, 160, 50, 50, "large leases: they last until the window ends"},
		{"near the end", 420, 380, 40, 30, "small leases, by demand; others are asked to give back"},
		{"used up", 560, 440, 0, 0, "nodes refuse alone, without a message"},
	}
	for i, r := range rows {
		x, y := 110, 24+70*i
		d.text(55, y+21, "", r.when)
		for _, part := range []struct {
			n     int
			class string
			label string
		}{
			{r.a, "blue", fmt.Sprint("A spent ", r.a)},
			{r.ha, "green", fmt.Sprint(r.ha)},
			{r.b, "blue", fmt.Sprint("B spent ", r.b)},
			{r.hb, "green", fmt.Sprint(r.hb)},
			{1000 - r.a - r.b - r.ha - r.hb, "free", fmt.Sprint("free ", 1000-r.a-r.b-r.ha-r.hb)},
		} {
			w := part.n * 63 / 100
			if w > 0 {
				d.bar(x, y, w, part.class, part.label)
			}
			x += w
		}
		d.text(425, y+52, "soft", r.note)
	}
	return d
}

// outage is a time line of a store that fails and returns.
func outage() *drawing {
	d := &drawing{width: 760, height: 190, says: "The store fails: nodes spend their leases, then on_store_failure " +
		"decides. When the store is back, nodes report all that they admitted."}
	d.bar(30, 50, 170, "blue", "leases, claims")
	d.bar(200, 50, 130, "green", "leases in hand")
	d.bar(330, 50, 240, "red", "on_store_failure")
	d.bar(570, 50, 160, "blue", "leases, claims")
	d.mark(200, "the store fails")
	d.mark(570, "it is back")
	d.text(265, 106, "soft", "no request waits")
	d.text(450, 106, "soft", "closed: nothing passes")
	d.text(450, 124, "soft", "local: the node's part of the limit")
	d.text(450, 142, "soft", "open: everything passes")
	d.text(650, 106, "soft", "nodes report admissions;")
	d.text(650, 124, "soft", "they count in the window")
	d.arrow(30, 165, 730, 165, "")
	d.text(60, 182, "soft", "time")
	return d
}

// hold is a request to a language model whose cost is known at its end.
func hold() *drawing {
	d := &drawing{width: 760, height: 260, says: "A request holds 500 tokens, its answer takes the hold along, and at " +
		"the end Envoy reports the cost of 320: 180 tokens return."}
	d.lifeline(100, "Envoy")
	d.lifeline(400, "Sluice, any node")
	d.lifeline(670, "model")
	d.arrow(100, 85, 398, 85, "may this pass? about 500 tokens")
	d.arrow(400, 115, 102, 115, "yes, with a hold of 500 (signed)")
	d.arrow(100, 150, 668, 150, "")
	d.text(535, 143, "soft", "request")
	d.arrow(670, 180, 102, 180, "")
	d.text(535, 173, "soft", "response: 320 tokens")
	d.arrow(100, 215, 398, 215, "the hold, and its cost: 320")
	d.text(560, 219, "soft", "180 tokens return to the budget")
	return d
}

// ring is a node that leaves.
func ring() *drawing {
	d := &drawing{width: 760, height: 240, says: "Each key has one owner on a ring of nodes. When node B leaves, its " +
		"keys go to the next node, with their usage. Other keys stay."}
	for _, side := range []struct {
		x    int
		name string
		all  []string
	}{{180, "before", []string{"A", "B", "C"}}, {560, "after B has left", []string{"A", "", "C"}}} {
		d.add(`<circle cx="%d" cy="125" r="75" class="line"/>`, side.x)
		d.text(side.x, 130, "soft", side.name)
		for i, at := range [][2]int{{0, -75}, {65, 38}, {-65, 38}} {
			if side.all[i] == "" {
				continue
			}
			d.box(side.x+at[0]-22, 125+at[1]-16, 44, 32, side.all[i])
		}
	}
	d.text(285, 130, "soft", "key 7")
	d.text(108, 66, "soft", "key 3")
	d.text(488, 66, "soft", "key 3")
	d.text(446, 168, "soft", "key 7")
	d.arrow(320, 120, 430, 120, "B sends key 7")
	d.text(375, 138, "soft", "and its usage to C")
	return d
}

// regions are rings that share a far store.
func regions() *drawing {
	d := &drawing{width: 760, height: 250, says: "Three regions have two nodes each. In each region, one node owns a " +
		"key: it leases from one store that is 80 ms away, and the other node asks it."}
	for i, name := range []string{"us", "eu", "asia"} {
		y := 10 + 80*i
		d.add(`<rect x="20" y="%d" width="480" height="70" rx="6" class="line" stroke-dasharray="4 4"/>`, y)
		d.text(55, y+40, "", name)
		d.box(95, y+15, 90, 40, "Envoys")
		d.arrow(185, y+35, 233, y+35, "")
		d.box(235, y+15, 90, 40, "node")
		d.arrow(325, y+35, 373, y+35, "< 1 ms")
		d.box(375, y+15, 110, 40, "owner of key")
		d.arrow(485, y+35, 618, 115+(y-90)/4+5, "")
	}
	d.text(560, 40, "soft", "80 ms")
	d.box(620, 80, 120, 80, "Store", "in one region")
	return d
}

// house is the rooms of the code: each stands on those below.
func house() *drawing {
	d := &drawing{width: 760, height: 300, says: "cmd and bench stand above the services of ratelimit and above the modes " +
		"leasing, routing and approx, and all stand on the words of ratelimit."}
	d.box(20, 10, 350, 50, "cmd/sluice", "serve, check, explain, top, admin")
	d.box(390, 10, 350, 50, "cmd/sluicelab, bench", "demo, benchmarks, simulator")
	d.box(20, 80, 230, 130, "ratelimit/...", "transport, server: ports", "rls, rlqs: protocols", "config, xds: rules",
		"console, metrics: views")
	d.box(270, 80, 150, 50, "routing", "a ring of owners")
	d.box(440, 80, 120, 50, "approx", "drift budgets")
	d.box(580, 80, 160, 50, "leasing/limit", "for programs")
	d.box(270, 150, 150, 60, "leasing", "a node of a fleet")
	d.box(440, 150, 140, 60, "leasing/account", "ledgers; Redis")
	d.box(600, 150, 140, 60, "postgres, etcd", "further stores")
	d.box(20, 230, 720, 50, "ratelimit", "words: limit, rule, key, ask, verdict, bounds")
	return d
}
