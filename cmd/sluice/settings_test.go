package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/sluicetest"
	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
)

// A node refuses impossible settings at its start, with their names and reasons, and without a secret. That
// includes settings that would leave a ring open, or give nodes of a fleet different keys for holds.
func TestBadSettings(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a.yaml"), rules(1))
	holds := rulesFile(t, "domain: d\ndescriptors: [{key: llm, hold: {amount: 900}, rate_limit: {unit: day, requests_per_unit: 1000000}}]\n")
	_, port, _ := net.SplitHostPort(listens(t).Addr().String())
	i := redistest.NewAuthority(t)
	i.Leaf("server", time.Hour, "localhost")
	i.Leaf("old", -time.Hour, "localhost")
	i.Leaf("other", time.Hour, "localhost")
	writeFile(t, i.File("empty"), "")
	vars := map[string]string{"DIR": dir, "HOLDS": holds, "PORT": port, "CERTS": filepath.Dir(i.File("ca.crt"))}
	for line := range strings.Lines(read(t, "cmd/sluice/testdata/refused.txt")) {
		line, want, is := strings.Cut(strings.TrimSpace(line), " => ")
		if !is {
			continue
		}
		t.Run(line, func(t *testing.T) {
			env, args := settingsOf(strings.Fields(os.Expand(line, func(name string) string { return vars[name] })))
			want := os.Expand(want, func(name string) string { return vars[name] })
			for _, setting := range env {
				name, value, _ := strings.Cut(setting, "=")
				t.Setenv(name, value)
			}
			serves := time.AfterFunc(patience, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGINT) })
			defer serves.Stop()
			code, out, errs := runLine(append([]string{"serve", "--port=0", "--grpc-port=0", "--debug-port=0"}, args...)...)
			said, wrong := out+errs, 2 // 1 is of what a setting names: a port in use, or rules
			if strings.Contains(said, "cannot open") || strings.Contains(said, "the first rules") {
				wrong = 1
			}
			if code != wrong || strings.Contains(said, "hunter") || strings.Contains(said, "s3cret") {
				t.Errorf("%d, or a secret is shown:\n%s", code, said)
			}
			if !strings.Contains(strings.ReplaceAll(said, "\n", `\n`), want) {
				t.Errorf("want %q:\n%s", want, said)
			}
		})
	}
}

// The table of docs/guides/migrating.md says of each name what the binary does with it, and of no name that the binary lacks.
func TestMigratingNamesEverySetting(t *testing.T) {
	_, help, _ := runLine("serve", "--help-all")
	ours := map[string]bool{}
	for _, m := range regexp.MustCompile(`\$([A-Z0-9_]+)`).FindAllStringSubmatch(help, -1) {
		ours[m[1]] = true
	}
	names := 0
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z0-9_ ]+)` \\| (same|different|ignored)").FindAllStringSubmatch(read(t, "docs/guides/migrating.md"), -1) {
		for name := range strings.FieldsSeq(row[1]) {
			names++
			if ignored := len(settings.WithoutEffect(func(other string) (string, bool) { return "x", other == name })) > 0; ours[name] == ignored || ignored != (row[2] == "ignored") {
				t.Errorf("%s is said to be %s; a flag: %t, logged as without effect: %t", name, row[2], ours[name], ignored)
			}
		}
	}
	if names != 128 {
		t.Errorf("the table has %d names, want 128", names)
	}
}

// Each setting that the chart, the manifests and the compose file give a node is one that it has.
func TestDeployedSettingsExist(t *testing.T) {
	_, help, _ := runLine("serve", "--help-all")
	set := regexp.MustCompile(`(?m)(?:name: |^  |list ")([A-Z][A-Z0-9]*_[A-Z0-9_]+)\b`)
	seen := 0
	for _, file := range []string{"helm/sluice/templates/_env.tpl", "kubernetes/sluice.yaml", "kubernetes/secret.yaml", "compose/compose.yaml"} {
		text := read(t, "deploy/"+file)
		if before, _, named := strings.Cut(text, "PEER_ADDR"); file != "kubernetes/secret.yaml" && (!named || strings.Contains(before, "peers.enabled")) {
			t.Errorf("a node of deploy/%s has no address by which others find its debug port", file)
		}
		for _, m := range set.FindAllStringSubmatch(text, -1) {
			name := m[1]
			seen++
			if name != "POD_IP" && !strings.Contains(help, "$"+name+")") {
				t.Errorf("deploy/%s sets %s, which no node has", file, name)
			}
		}
	}
	if seen < 30 {
		t.Errorf("%d settings were found in what is deployed", seen)
	}
}

// A loss of a node's usage is logged, also right after a failure of a peer.
func TestLossesAreLogged(t *testing.T) {
	var log strings.Builder
	report := peerLog(slog.New(slog.NewTextHandler(&log, nil)))
	report("10.0.0.2:8082", net.ErrClosed)
	report("", fmt.Errorf("3 accounts: %w", routing.ErrLost))
	if lines := strings.Split(log.String(), "\n"); len(lines) != 3 || !strings.Contains(lines[1], `msg="3 accounts: `+routing.ErrLost.Error()) {
		t.Errorf("it logs:\n%s", log.String())
	}
}

// An IPv6 address may stand without brackets, as in fields of Kubernetes, or with them. With a debug port for other
// machines, values are hidden. A node whose PEER_ADDR is not of its machine, as behind a NAT, listens on all addresses.
func TestAddresses(t *testing.T) {
	for host, want := range map[string]string{
		"::1": "[::1]:7", "[::1]": "[::1]:7", "::": "[::]:7", "127.0.0.1": "127.0.0.1:7", "localhost": "localhost:7", "": ":7", "10.1.2.3": "10.1.2.3:7",
	} {
		f := &flags{Host: host, Port: 7, GRPCHost: host, GRPCPort: 7, DebugHost: host, DebugPort: 7}
		if o := f.serverOptions(settings.Budgets{}); o.HTTP != want || o.GRPC != want || o.Debug != want {
			t.Errorf("%q: HTTP on %q, gRPC on %q, debug on %q, want %q", host, o.HTTP, o.GRPC, o.Debug, want)
		}
		if others := host == "::" || host == "" || host == "10.1.2.3"; f.redacts() != others {
			t.Errorf("%q: values are hidden: %t", host, !others)
		}
	}
	for _, addr := range []string{"[fd00::1]:8082", "[10.0.0.1]:8082"} { // the chart writes [$(POD_IP)]:8082
		f := &peerFlags{Peers: "static:a:1", Secret: "sixteen-bytes-or-more", Addr: addr}
		host, port, _ := net.SplitHostPort(addr)
		if o, _, err := f.options(nil); err != nil || o.Addr != net.JoinHostPort(host, port) || f.Addr != o.Addr {
			t.Errorf("PEER_ADDR=%s: its name is %q (%q), %v", addr, o.Addr, f.Addr, err)
		}
	}
	for addr, want := range map[string]string{
		"127.0.0.1:7": "127.0.0.1:7", "192.0.2.1:7": "0.0.0.0:7", "nowhere.invalid:7": "nowhere.invalid:7",
	} {
		if got := (&peerFlags{Addr: addr}).listens(); got != want {
			t.Errorf("%s: it listens on %s, want %s", addr, got, want)
		}
	}
}

// The ring's own budgets for outages follow the wall clock, as the base's do.
func TestClockOfANodeInARing(t *testing.T) {
	now, wall := ratelimit.Instant(time.Hour), time.Unix(1_800_000_000, 0)
	clock := func() ratelimit.Instant { return now }
	base := local.New(100, now, wall)
	r := newByMode(base, routing.New(base, routing.Options{Addr: "a:1"}, clock, wall), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()                 // there is no wait for a ring without this node
	rule := &ratelimit.Rule{ // it admits one token of each minute at a node while nothing answers: a tenth of ten
		Domain: "d", Path: "k", Limit: ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10},
		Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{},
	}
	rule.Coordination.OnStoreFailure, rule.Coordination.Mode = ratelimit.FailLocal, ratelimit.Routing
	for _, x := range []struct {
		ahead time.Duration
		over  bool
	}{{0, false}, {0, true}, {time.Minute, false}, {time.Minute, true}} {
		r.SyncClock(now, wall.Add(x.ahead))
		v := make([]ratelimit.Verdict, 1)
		r.Decide(ctx, now, []ratelimit.Ask{{Rule: rule, Key: []byte("k"), Cost: 1}}, v)
		if v[0].OverLimit != x.over || v[0].Reason != ratelimit.FallbackPeer {
			t.Errorf("%v later: %+v, want over limit %v", x.ahead, v[0], x.over)
		}
	}
}

// broken is a limiter that fails, and counts what is taken back.
type broken struct {
	ratelimit.Limiter
	undone ratelimit.Tokens
}

func (b *broken) Undo(_ ratelimit.Instant, asks []ratelimit.Ask, _ []ratelimit.Verdict) {
	for _, a := range asks {
		b.undone += a.Cost
	}
}

// A limiter that fails, fails the request, and no more. What is taken back, is by the limiter that decided it.
func TestLimitersAreApart(t *testing.T) {
	odd, even := &broken{}, &broken{}
	s := &split{of: func(a *ratelimit.Ask) ratelimit.Limiter { return []ratelimit.Limiter{even, odd}[a.Cost%2] }}
	asks, verdicts := []ratelimit.Ask{{Cost: 1}, {Cost: 2}, {Cost: 3}}, make([]ratelimit.Verdict, 3)
	if s.Undo(0, asks, verdicts); odd.undone != 4 || even.undone != 2 {
		t.Errorf("of the odd %d are undone, and of the even %d", odd.undone, even.undone)
	}
	defer func() {
		if recover() == nil {
			t.Error("the request does not fail")
		}
	}()
	s.Decide(t.Context(), 0, asks, verdicts)
}

// Each command says what it is for, and has examples that are command lines of it.
func TestEachCommandHasExamples(t *testing.T) {
	t.Setenv("ADMIN_TOKEN", "x")
	sluicetest.Examples(t, "sluice", new(commands), programOptions()...)
}

func TestCalledAsRatelimit(t *testing.T) {
	for line, want := range map[string]string{"/bin/ratelimit": "serve", "/sluice check x": "check x"} {
		if got := strings.Join(arguments(strings.Fields(line)), " "); got != want {
			t.Errorf("%s: %s", line, got)
		}
	}
}
