package main

import (
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

	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/cmd/sluice/sizing"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/routing"
)

// A node refuses impossible settings at its start, with their names and reasons, and without a secret. That
// includes settings that would leave a ring open, or give nodes of a fleet different keys for holds.
func TestBadSettings(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a.yaml"), rules(1))
	holds := filepath.Join(t.TempDir(), "holds.yaml")
	writeFile(t, holds, heldRules)
	held := []string{"--config", holds}
	_, port, _ := net.SplitHostPort(listens(t).Addr().String())
	const pushed, usual = "CONFIG_TYPE=GRPC_XDS_SOTW", "REDIS_URL=localhost:6379"
	i := redistest.NewAuthority(t)
	i.Leaf("server", time.Hour, "localhost")
	i.Leaf("old", -time.Hour, "localhost")
	i.Leaf("other", time.Hour, "localhost")
	writeFile(t, i.File("empty"), "")
	secured := func(cert, key string, more ...string) []string {
		return append([]string{"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + cert, "GRPC_SERVER_TLS_KEY=" + key}, more...)
	}
	cert, key := i.File("server.crt"), i.File("server.key")
	for name, c := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"port in use":            {nil, []string{"--host=127.0.0.1", "--port=" + port}, "cannot open the HTTP (HOST, PORT) port: listen tcp 127.0.0.1:" + port},
		"no such path":           {nil, []string{"--config=/no/such"}, "/no/such: no such file"},
		"a bad time":             {[]string{"DRAIN_TIME=soon"}, nil, "DRAIN_TIME"},
		"a bad mode":             {[]string{"COORDINATION_MODE=gossip"}, nil, `COORDINATION_MODE: mode: "gossip" is not one of leasing, routing, approx`},
		"a bad ratio":            {[]string{"NEAR_LIMIT_RATIO=7"}, nil, "NEAR_LIMIT_RATIO is 7, must be between 0 and 1"},
		"no number":              {[]string{"NEAR_LIMIT_RATIO=NaN", "TRACING_SAMPLING_RATE=NaN"}, nil, "NEAR_LIMIT_RATIO is NaN, must be between 0 and 1\nTRACING_SAMPLING_RATE is NaN, must be between 0 and 1"},
		"no such store":          {[]string{"STORE_URL=mysql://host/db"}, nil, `STORE_URL begins with "mysql", must begin with one of redis, rediss, postgres, `},
		"a store's address":      {[]string{"STORE_URL=host:6379"}, nil, `begins with "host:6379"`},
		"a store's port":         {[]string{"STORE_URL=redis://host:port"}, nil, "STORE_URL"},
		"a database's port":      {[]string{"STORE_URL=postgres://h:port/d"}, nil, "not a valid PostgreSQL URL"},
		"two stores":             {[]string{"STORE_URL=postgres://localhost/db", usual}, nil, "both set"},
		"no collector":           {[]string{"TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=::4318"}, nil, `OTEL_EXPORTER_OTLP_ENDPOINT is "::4318", must be a URL such as http://collector:4318`},
		"pushed, no number":      {[]string{pushed, "XDS_CLIENT_BACKOFF_RANDOM_FACTOR=NaN"}, nil, "XDS_CLIENT_BACKOFF_RANDOM_FACTOR NaN"},
		"pushed, factor":         {[]string{pushed, "XDS_CLIENT_BACKOFF_RANDOM_FACTOR=2"}, nil, "XDS_CLIENT_BACKOFF_RANDOM_FACTOR 2"},
		"pushed, retry":          {[]string{pushed, "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=0s"}, nil, "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL is 0s"},
		"pushed, metadata":       {[]string{pushed, "CONFIG_GRPC_XDS_NODE_METADATA={"}, nil, "CONFIG_GRPC_XDS_NODE_METADATA is"},
		"pushed, headers":        {[]string{pushed, "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=s3cret"}, nil, "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS must be"},
		"pushed, certificate":    {[]string{pushed, "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/nowhere"}, nil, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT /nowhere"},
		"pushed, authority":      {[]string{pushed, "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/nowhere"}, nil, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT: open /nowhere"},
		"pushed, additions":      {[]string{pushed, "CONFIG_GRPC_XDS_ADDITIONS=/nowhere"}, nil, "CONFIG_GRPC_XDS_ADDITIONS"},
		"TLS, out of date":       {secured(i.File("old.crt"), i.File("old.key")), nil, "old.crt is good from"},
		"TLS, another key":       {secured(cert, i.File("other.key")), nil, "GRPC_SERVER_TLS_KEY " + i.File("other")},
		"TLS, no certificate":    {secured("", key), nil, "must name the certificate"},
		"TLS, no file":           {secured("/nowhere", key), nil, "/nowhere: no such file"},
		"TLS, no authority":      {secured(cert, key, "GRPC_CLIENT_TLS_CACERT="+i.File("empty")), nil, "GRPC_CLIENT_TLS_CACERT: " + i.File("empty")},
		"TLS, any client":        {secured(cert, key, "GRPC_CLIENT_TLS_SAN=envoy"), nil, "any client can claim the name"},
		"no TLS":                 {[]string{"GRPC_CLIENT_TLS_CACERT=" + i.File("ca.crt")}, nil, "clients would not be checked"},
		"a path of metrics":      {[]string{"PROMETHEUS_PATH=metrics"}, nil, `PROMETHEUS_PATH is "metrics", must begin with /`},
		"a header without name":  {[]string{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_RESET_HEADER="}, nil, `LIMIT_RESET_HEADER is "", must be the name of a header`},
		"a header of two words":  {[]string{"LIMIT_REQUEST_HEADERS_ENABLED=true", "LIMIT_LIMIT_HEADER=The Limit"}, nil, `LIMIT_LIMIT_HEADER is "The Limit", must be the name of a header`},
		"redis list":             {[]string{"REDIS_URL=main,s1:26379"}, nil, `REDIS_URL is "main,s1:26379", a list, and REDIS_TYPE is SINGLE: set it to CLUSTER, or to SENTINEL with the name of the master first in the list`},
		"redis url":              {[]string{"REDIS_TYPE=SENTINEL", "REDIS_URL=main,redis://:secret@s1:26379"}, nil, `REDIS_URL has the address "...@s1:26379", must be host:port; a password belongs in REDIS_AUTH, and one of sentinels in REDIS_SENTINEL_AUTH`},
		"redis option":           {[]string{"REDIS_URL=redis://x:1/2?db=3&pool_size=9"}, nil, `REDIS_URL has the option "pool_size", and only db and skip_verify have an effect`},
		"redis cert":             {[]string{"REDIS_URL=localhost:1", "REDIS_TLS=true", "REDIS_TLS_CACERT=/no/such"}, nil, "REDIS_TLS_CACERT: open /no/such"},
		"config type":            {[]string{"CONFIG_TYPE=ETCD"}, nil, `CONFIG_TYPE is "ETCD", must be FILE or GRPC_XDS_SOTW`},
		"pushed rules and files": {[]string{"CONFIG_TYPE=GRPC_XDS_SOTW"}, held, "CONFIG_TYPE is GRPC_XDS_SOTW, and --config is \"" + holds},
		"additions to files":     {[]string{"CONFIG_GRPC_XDS_ADDITIONS=/nowhere"}, nil, `CONFIG_GRPC_XDS_ADDITIONS is "/nowhere", and CONFIG_TYPE is not GRPC_XDS_SOTW`},
		"memcache":               {[]string{"BACKEND_TYPE=memcache"}, nil, "BACKEND_TYPE is memcache, and memcached cannot store accounts: each replica would count alone"},
		"backend":                {[]string{"BACKEND_TYPE=etcd"}, nil, `BACKEND_TYPE is "etcd", must be redis or memcache`},
		"local cache":            {[]string{"LOCAL_CACHE_SIZE_IN_BYTES=-1"}, nil, "LOCAL_CACHE_SIZE_IN_BYTES is -1, must be 0 (off) or more"},
		"deadline":               {[]string{"COORDINATION_STORE_DEADLINE=50ms"}, nil, "write coordination: {store_deadline: 50ms} at the root of each file of rules"},
		"tags":                   {[]string{"EXTRA_TAGS=prod"}, nil, `EXTRA_TAGS is "prod", must be like env:prod`},
		"max keys":               {nil, []string{"--max-keys=-1"}, "MAX_KEYS is -1, must be 0"},
		"max wait":               {[]string{"MAX_WAIT=1us"}, nil, "MAX_WAIT is 1µs, must be 0 (never shed) or between 1ms and 1m"},
		"peers 1":                {[]string{"PEERS=static:a:1", "PEER_ADDR=127.0.0.1:1"}, nil, "without PEER_SECRET or PEER_TLS_CERT"},
		"peers 2":                {[]string{"PEERS=static:a:1", "PEER_SECRET=sixteen-bytes-or-more"}, nil, `PEER_ADDR is ""`},
		"peers of no address":    {[]string{"PEERS=static:a:1", "PEER_SECRET=sixteen-bytes-or-more", "PEER_ADDR=0.0.0.0:1"}, nil, `PEER_ADDR is "0.0.0.0:1", and with PEERS it must be the HOST:PORT of this node as peers see it`},
		"peers 3":                {[]string{"PEERS=zookeeper:a:1", "PEER_SECRET=sixteen-bytes-or-more", "PEER_ADDR=127.0.0.1:1"}, nil, `PEERS is "zookeeper:a:1"`},
		"peers 5":                {[]string{"PEERS=static:a:1", "PEER_ADDR=127.0.0.1:1", "PEER_TLS_CERT=/nowhere"}, nil, "PEER_TLS_CERT"},
		"peers 6":                {[]string{"PEERS=static:a:1", "PEER_ADDR=127.0.0.1:1", "PEER_SECRET=s3cret"}, nil, "PEER_SECRET has 6 bytes, must have at least 16"},
		"holds, a store":         {[]string{"REDIS_URL=127.0.0.1:1"}, held, "set HOLD_KEYS at all nodes"},
		"holds, short":           {[]string{"HOLD_KEYS=short"}, held, "HOLD_KEYS: a key is shorter than 16 bytes"},
		"holds, no file":         {[]string{"HOLD_KEYS=@/nowhere"}, held, "HOLD_KEYS: open /nowhere"},
		"holds, no keys":         {[]string{"HOLD_KEYS=@/dev/null"}, held, "there is no key"},
		"holds, too many":        {[]string{"HOLD_KEYS=" + strings.Repeat("0123456789abcdef,", 5)}, held, "more than 4 keys"},
		"holds, no secret":       {[]string{"PEERS=static:127.0.0.1:2", "PEER_ADDR=127.0.0.1:1"}, held, "HOLD_KEYS"},
		"a copy among the rules": {[]string{"CONFIG_LAST_GOOD_FILE=" + filepath.Join(dir, "copy")}, []string{"--config", dir}, "put it elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			if said := refused(t, c.env, c.args...); !strings.Contains(said, c.want) {
				t.Errorf("want %q:\n%s", c.want, said)
			}
		})
	}
}

// refused starts a node in this process, which must refuse its settings, and returns what it says. No password is in it.
func refused(t *testing.T, env []string, args ...string) (said string) {
	t.Helper()
	for _, setting := range env {
		name, value, _ := strings.Cut(setting, "=")
		t.Setenv(name, value)
	}
	serves := time.AfterFunc(patience, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGINT) })
	defer serves.Stop()
	code, out, errs := runLine(append([]string{"serve", "--port=0", "--grpc-port=0", "--debug-port=0"}, args...)...)
	said = out + errs
	if want := exitCode(said); code != want || strings.Contains(said, "hunter") || strings.Contains(said, "s3cret") {
		t.Errorf("%v: %d\n%s", env, code, said)
	}
	return said
}

// exitCode is that of a setting, or of what it names: a port in use, or rules.
func exitCode(said string) int {
	if strings.Contains(said, "cannot open") || strings.Contains(said, "the first rules") {
		return 1
	}
	return 2
}

// No error about a store's settings has a password of its URL, whatever the fault is.
func TestWrongURLsKeepTheirPassword(t *testing.T) {
	for _, env := range []string{
		"REDIS_URL=user:hunter2@r:6379",
		"REDIS_URL=redis://user:hunter2/x@r:6379",
		"REDIS_URL=redis://user:hunter2#x@r:6379",
		"REDIS_URL=redis://user:%hunter2@r:6379",
		"REDIS_URL=http://user:hunter2@r:6379",
		"REDIS_TYPE=CLUSTER REDIS_URL=redis://:hunter2@a:6379,redis://:hunter2@b:6379",
		"REDIS_TYPE=SENTINEL REDIS_URL=redis://:hunter2@a:6379",
		"REDIS_TYPE=SENTINEL REDIS_URL=master,redis://:hunter2@a:6379",
		"REDIS_SOCKET_TYPE=unix REDIS_URL=user:hunter2@r:6379",
		"STORE_URL=user:hunter2@db:5432",
		"STORE_URL=host=db&password=hunter2",
		"STORE_URL=postgres://user:hunter2/x@db/limits",
		"STORE_URL=postgres://user:hunter2@db:port/limits",
		"STORE_URL=postgres://db/limits?password=hunter2&pool_max_conns=x",
		"STORE_URL=postgres://db/limits?password=hunter2&sslmode=x",
		"STORE_URL=postgres://user:hunter2@db/limits?connect_timeout=x",
		"STORE_URL=etcd://user:hunter2@e",
		"STORE_URL=etcd://user:hunter2@e:2379?tls=x",
		"STORE_URL=etcd://hunter2@e:2379",
	} {
		t.Run(env, func(t *testing.T) { refused(t, strings.Fields(env)) })
	}
}

// A setting of an earlier release is refused with the advice for it, unless it is empty; and none that exists is.
func TestReplacedSettings(t *testing.T) {
	set := map[string]string{"COORDINATION_RECLAIM": "eager", "HTTP_MAX_CONNECTIONS": "", "GRPC_MAX_CONNECTIONS": "9"}
	err := settings.Refused(func(name string) (string, bool) { v, ok := set[name]; return v, ok })
	for _, want := range []string{
		"write coordination: {reclaim: eager} at the root of each file of rules", `GRPC_MAX_CONNECTIONS is "9"`, "MAX_MEMORY",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "HTTP_MAX_CONNECTIONS") {
		t.Errorf("an empty one is refused: %v", err)
	}
	_, help, _ := runLine("serve", "--help-all")
	every := settings.Refused(func(string) (string, bool) { return "x", true })
	for _, m := range regexp.MustCompile(`(?m)^(\w+) is "x", .* does not have it: (.*)$`).FindAllStringSubmatch(every.Error(), -1) {
		if strings.Contains(help, "$"+m[1]+")") || strings.Contains(help, "$"+m[1]+",") || m[2] == "" {
			t.Errorf("%s is a setting, or has no advice", m[1])
		}
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

// A node whose PEER_ADDR is not of its machine, as behind a NAT, listens on all addresses.
func TestListensBehindANAT(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:7": "127.0.0.1:7", "192.0.2.1:7": "0.0.0.0:7", "nowhere.invalid:7": "nowhere.invalid:7",
	} {
		if got := (&peerFlags{Addr: addr}).listens(); got != want {
			t.Errorf("%s: it listens on %s, want %s", addr, got, want)
		}
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

// An IPv6 address may stand without brackets, as in fields of Kubernetes, or with them.
func TestHostsMayBeIPv6(t *testing.T) {
	for host, want := range map[string]string{
		"::1": "[::1]:7", "[::1]": "[::1]:7", "::": "[::]:7", "127.0.0.1": "127.0.0.1:7", "localhost": "localhost:7", "": ":7",
	} {
		f := &flags{Host: host, Port: 7, GRPCHost: host, GRPCPort: 7, DebugHost: host, DebugPort: 7}
		if o := f.serverOptions(sizing.Budgets{}); o.HTTP != want || o.GRPC != want || o.Debug != want {
			t.Errorf("%q: HTTP on %q, gRPC on %q, debug on %q, want %q", host, o.HTTP, o.GRPC, o.Debug, want)
		}
	}
	for _, addr := range []string{"[fd00::1]:8082", "[10.0.0.1]:8082"} { // the chart writes [$(POD_IP)]:8082
		f := &peerFlags{Peers: "static:a:1", Secret: "sixteen-bytes-or-more", Addr: addr}
		host, port, _ := net.SplitHostPort(addr)
		if o, _, err := f.options(nil); err != nil || o.Addr != net.JoinHostPort(host, port) || f.Addr != o.Addr {
			t.Errorf("PEER_ADDR=%s: its name is %q (%q), %v", addr, o.Addr, f.Addr, err)
		}
	}
}
