package main

import (
	"context"
	"encoding/json"
	goflag "flag"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var screens = goflag.String("screens", "", "a directory for the pictures of the console, at all widths, light and dark; unset: a few, that are thrown away")

const screenRules = `domain: d
descriptors:
  - {key: api_key, coordination: {mode: approx, drift_budget: 40%, max_nodes: 4, check_timeout: 0s}, rate_limit: {unit: second, requests_per_unit: 20}}
  - {key: tenant, coordination: {on_store_failure: open}, rate_limit: {unit: second, requests_per_unit: 100}}
  - {key: invoice, coordination: {on_store_failure: closed}, rate_limit: {unit: day, requests_per_unit: 100}}
`

// screened is a fleet under load whose console a browser shows.
type screened struct {
	*browser
	fleet *fleet
}

func newScreened(t *testing.T) *screened {
	b := newBrowser(t)
	s := &screened{b, newFleet(t, 3, setup{rules: screenRules, store: aRedis(t)})}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i, n := range s.fleet.nodes {
		ask := n.overGRPC()
		wg.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				key := []string{"api_key", "tenant", "invoice"}[k%3]
				ask(request(key, fmt.Sprint("key-", (k/3+i)%4)))
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return s
}

// shows waits until the page's text has all of these.
func (s *screened) shows(what string, want ...string) {
	s.Helper()
	list, err := json.Marshal(want)
	if err != nil {
		s.Fatal(err)
	}
	s.eventually(fmt.Sprintf("%s: %q", what, want), string(list)+".every((w) => document.body.innerText.includes(w))")
}

// pictures takes the page at all widths, light and dark, or two of these, and looks whether it fits.
func (s *screened) pictures(scene string) {
	s.Helper()
	dir := *screens
	for _, width := range []int{1280, 768, 400} {
		for _, dark := range []bool{false, true} {
			if *screens == "" {
				if dark != (width == 400) || width == 768 { // two of six
					continue
				}
				dir = s.TempDir()
			}
			name := filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", scene, width, map[bool]string{false: "light", true: "dark"}[dark]))
			s.window(width, 900, dark)
			s.eventually("it is folded on a phone", fmt.Sprintf("[...document.querySelectorAll('details.section')].every((d) => d.open === %t)", width > 640))
			s.shoot(name, width, dark)
			if wide := s.eval("document.documentElement.scrollWidth"); wide != fmt.Sprint(width) {
				s.Errorf("%s: at %d pixels the page is %s wide: it does not fit", scene, width, wide)
			}
			high, _ := strconv.Atoi(s.eval("document.documentElement.scrollHeight"))
			if width == 400 && (high == 0 || high > 5*844) {
				s.Errorf("%s: on a phone the page has %d pixels, more than five screens of 844", scene, high)
			}
			f, err := os.Open(name)
			if err != nil {
				s.Fatal(err)
			}
			picture, err := png.DecodeConfig(f)
			f.Close()
			if err != nil || picture.Width != width || picture.Height < 900 {
				s.Errorf("%s is %d by %d: %v", name, picture.Width, picture.Height, err)
			}
		}
	}
	s.window(1280, 900, false)
}

// The console leads with what is wrong, and what is old does not look new: under
// load, with a node that hangs, a bad file, and a Redis that hangs.
func TestConsoleScreens(t *testing.T) {
	t.Parallel()
	s := newScreened(t)
	s.window(1280, 900, false)
	page := "http://" + s.fleet.nodes[0].debug + "/console"
	s.open(page)
	s.shows("under load", "d.api_key", "20 per second", "(this node)", "3 of 3 nodes respond", "Over-admission of the worst key")
	s.eventually("charts have a line", "document.querySelector('#lead polyline') && document.querySelectorAll('#lead polyline')[0].getAttribute('points').split(' ').length > 4")
	s.order()
	s.pictures("load")

	s.open(page) // again: what was drawn is still there
	s.eventually("a page that is opened anew has the past", "document.querySelector('#lead polyline') && document.querySelectorAll('#lead polyline')[0].getAttribute('points').split(' ').length > 4")

	last := s.fleet.nodes[2]
	_ = last.cmd.Process.Signal(syscall.SIGSTOP)
	_, port, _ := strings.Cut(last.debug, ":")
	s.shows("a node hangs", "1 of 3 nodes are silent", "SILENT, last seen")
	s.eventually("the node that hangs is greyed out", "[...document.querySelectorAll('#nodes tr.gone')].some((r) => r.innerText.includes(':"+port+"'))")
	s.pictures("node-stopped")
	_ = last.cmd.Process.Signal(syscall.SIGCONT)
	s.shows("it goes on", "3 of 3 nodes respond")

	writeFile(t, s.fleet.file, strings.Replace(screenRules, "unit: second", "unit: fortnight", 1))
	s.shows("a bad file", "The current rules are bad", "fortnight")
	s.pictures("bad-file")
	writeFile(t, s.fleet.file, screenRules)
	s.eventually("it is mended", "!document.body.innerText.includes('The current rules are bad')")

	s.fleet.redis.Signal(syscall.SIGSTOP)
	s.shows("Redis hangs", "The store has not answered for", "decisions a second are made without the store", "As of ", "tenant (open)")
	s.pictures("redis-stopped")
	s.fleet.redis.Signal(syscall.SIGCONT)
	s.shows("Redis is back", "3 of 3 nodes respond")
	s.eventually("the store answers", "!document.body.innerText.includes('The store has not answered for')")
	if text := s.eval("document.body.innerText"); strings.Contains(text, "more was admitted than is declared") || strings.Contains(text, "More was admitted than is declared") {
		t.Errorf("what on_store_failure admitted is shown as a broken bound:\n%.2000s", text)
	}

	_ = s.fleet.nodes[0].cmd.Process.Signal(syscall.SIGSTOP)
	s.shows("this node hangs", "This node does not answer", "Last seen at")
	if opacity := s.eval("getComputedStyle(document.querySelector('#cards')).opacity"); opacity == "1" {
		t.Error("what a node said that does not answer any more looks new")
	}
	s.pictures("this-node-stopped")
	_ = s.fleet.nodes[0].cmd.Process.Signal(syscall.SIGCONT)
	s.shows("this node goes on", "d.api_key")
	s.eventually("it is shown as it is now", "document.body.className === ''")

	s.fleet.redis.Kill()
	s.fleet.redis.Run()
	s.shows("Redis lost its data", "The store lost its data, in the last quarter of an hour")
	s.pictures("data-lost")
	s.fullTable()
}

// fullTable shows a node with few places for keys, and requests for many.
func (s *screened) fullTable() {
	s.fleet.env = []string{"MAX_KEYS=64"}
	n := s.fleet.join()
	n.untilHealthy()
	s.open("http://" + n.debug + "/console")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	ask := n.overGRPC()
	wg.Go(func() {
		for k := 0; ctx.Err() == nil; k++ {
			ask(request("invoice", fmt.Sprint("many-", k%500)))
		}
	})
	s.shows("a full table", "The table of keys is full")
	s.pictures("table-full")
	cancel()
	wg.Wait()
}

// eventually waits for an expression on the page to be true.
func (s *screened) eventually(what, expression string) {
	s.Helper()
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if s.eval("Boolean("+expression+")") == "true" {
			return
		}
	}
	s.Errorf("%s: not within a minute:\n%.2000s", what, s.eval("document.body.innerText"))
}

// order looks whether lines of tables keep their places while their figures change.
func (s *screened) order() {
	s.Helper()
	const rules = "[...document.querySelectorAll('#rules tbody tr')].map((r) => r.cells[0].innerText).join()"
	const seen = "document.querySelector('#rules tbody tr').cells[4].innerText + document.querySelector('#cards').innerText"
	first, figures := s.eval(rules), s.eval(seen)
	s.eventually("figures change", seen+" !== "+fmt.Sprintf("%q", figures))
	if now := s.eval(rules); now != first || strings.Count(first, ",") != 2 {
		s.Errorf("the rules were in the order %s, and are in the order %s", first, now)
	}
}
