package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestBadSettings(t *testing.T) {
	busy := serve(t, nil)
	_, port, _ := strings.Cut(busy.http, ":")
	for name, c := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"port in use":  {nil, []string{"--host=127.0.0.1", "--port=" + port}, "cannot open the HTTP (HOST, PORT) port: listen tcp 127.0.0.1:" + port},
		"no such path": {nil, []string{"--config=/no/such"}, "/no/such: no such file"},
		"a bad port":   {[]string{"PORT=http"}, nil, "PORT"},
		"a bad mode":   {[]string{"COORDINATION_MODE=gossip"}, nil, `COORDINATION_MODE: mode: "gossip" is not one of leasing, routing, approx`},
		"a bad ttl":    {[]string{"COORDINATION_LEASE_TTL=1ms"}, nil, "lease.ttl is 1ms, must be between 100ms and 1h0m0s"},
		"a bad ratio":  {[]string{"NEAR_LIMIT_RATIO=7"}, nil, "NEAR_LIMIT_RATIO is 7, must be between 0 and 1"},
		"persecond":    {[]string{"REDIS_PERSECOND=true"}, nil, "REDIS_PERSECOND is set, and REDIS_PERSECOND_URL"},
		"redis type":   {[]string{"REDIS_URL=localhost:1", "REDIS_TYPE=RING"}, nil, `REDIS_TYPE is "RING", must be SINGLE, SENTINEL or CLUSTER`},
		"redis url":    {[]string{"REDIS_URL=nowhere"}, nil, `REDIS_URL has the address "nowhere", must be host:port`},
		"redis secret": {[]string{"REDIS_URL=redis://:hunter2@x:99999999"}, nil, "REDIS_URL"},
		"redis cert":   {[]string{"REDIS_URL=localhost:1", "REDIS_TLS=true", "REDIS_TLS_CACERT=/no/such"}, nil, "REDIS_TLS_CACERT: open /no/such"},
		"config type":  {[]string{"CONFIG_TYPE=ETCD"}, nil, `CONFIG_TYPE is "ETCD", must be FILE or GRPC_XDS_SOTW`},
		"xds":          {[]string{"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/no/such"}, nil, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT: open /no/such"},
		"tls":          {[]string{"GRPC_SERVER_USE_TLS=true"}, nil, "GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY must name"},
		"tags":         {[]string{"EXTRA_TAGS=prod"}, nil, `EXTRA_TAGS is "prod", must be like env:prod`},
		"log level":    {[]string{"LOG_LEVEL=loud"}, nil, `LOG_LEVEL is "loud", must be debug, info, warn or error`},
		"max keys":     {nil, []string{"--max-keys=-1"}, "MAX_KEYS is -1, must be 0"},
		"max wait":     {[]string{"MAX_WAIT=1us"}, nil, "MAX_WAIT is 1µs, must be 0 (never shed) or between 1ms and 1m"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"serve", "--port=0", "--grpc-port=0", "--debug-port=0"}, c.args...)
			out, err := command(c.env, args...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) || strings.Contains(string(out), "hunter2") {
				t.Errorf("%v, want %q:\n%s", err, c.want, out)
			}
		})
	}
}

func TestHelpNamesEverySetting(t *testing.T) {
	var out bytes.Buffer
	if code := run([]string{"serve", "--help"}, streams{&out, &out}); code != 0 {
		t.Fatal(code)
	}
	for _, name := range []string{"RUNTIME_ROOT", "GRPC_PORT", "COORDINATION_ON_DENY", "LIMIT_RESET_HEADER", "MAX_KEYS", "LOG_FORMAT"} {
		if !strings.Contains(out.String(), "$"+name) {
			t.Errorf("no %s in the help", name)
		}
	}
}

// The table of docs/migrating.md says of each name what the binary does with it,
// and of no name that the binary lacks.
func TestMigratingNamesEverySetting(t *testing.T) {
	var help bytes.Buffer
	if code := run([]string{"serve", "--help"}, streams{&help, &help}); code != 0 {
		t.Fatal(code)
	}
	ours := map[string]bool{}
	for _, m := range regexp.MustCompile(`\$([A-Z0-9_]+)`).FindAllStringSubmatch(help.String(), -1) {
		ours[m[1]] = true
	}
	names := 0
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z0-9_ ]+)` \\| (same|different|ignored)").FindAllStringSubmatch(read(t, "docs/migrating.md"), -1) {
		for name := range strings.FieldsSeq(row[1]) {
			names++
			if ignored := slices.Contains(withoutEffect, name); ours[name] == ignored || ignored != (row[2] == "ignored") {
				t.Errorf("%s is said to be %s; a flag: %t, logged as without effect: %t", name, row[2], ours[name], ignored)
			}
		}
	}
	if names != 114 {
		t.Errorf("the table has %d names, want 114", names)
	}
}
