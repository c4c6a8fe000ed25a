package main

import (
	"crypto/x509"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/cmd/sluice/clienttls"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

func freePort(t *testing.T) string {
	t.Helper()
	ports, err := freeport.Find(1)
	if err != nil {
		t.Fatal(err)
	}
	return ports[0]
}

// Passwords, users, TLS and client certificates reach Redis as the settings say; where one of them is wrong, decisions
// are fallbacks, and the log says why without the secret.
func TestRedisSettings(t *testing.T) {
	dir := t.TempDir()
	servers, clients := redistest.NewAuthority(t), redistest.NewAuthority(t)
	servers.Sign("server", &x509.Certificate{DNSNames: []string{"server"}, NotAfter: time.Now().Add(time.Hour)}) // not for 127.0.0.1
	servers.Leaf("client", time.Hour)
	clients.Leaf("client", time.Hour)
	clientCert, clientKey, stranger := clients.File("client.crt"), clients.File("client.key"), servers.File("client.crt")
	tlsPort := freePort(t)
	socket := filepath.Join(dir, "redis.sock")
	r := redistest.Start(t, "--tls-port", tlsPort, "--tls-cert-file", servers.File("server.crt"), "--tls-key-file", servers.File("server.key"),
		"--tls-ca-cert-file", clients.File("ca.crt"), "--tls-auth-clients", "yes", "--unixsocket", socket)
	r.Do("ACL", "SETUSER", "me", "on", ">hunter3", "~*", "&*", "+@all")
	r.Do("ACL", "SETUSER", "default", "on", "resetpass", ">hunter2")
	rules := rulesFile(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1000}}]\n")
	tlsEnv := []string{
		"REDIS_TLS=true", "REDIS_TLS_CACERT=" + servers.File("ca.crt"), "REDIS_TLS_CLIENT_CERT=" + clientCert, "REDIS_TLS_CLIENT_KEY=" + clientKey,
		"REDIS_AUTH=hunter2",
	}
	for name, c := range map[string]struct {
		env  []string
		sees string // in the log; "" means that the store works
	}{
		"password":     {[]string{"REDIS_URL=" + r.Addr, "REDIS_AUTH=hunter2"}, ""},
		"user":         {[]string{"REDIS_URL=" + r.Addr, "REDIS_AUTH=me:hunter3"}, ""},
		"uri":          {[]string{"REDIS_URL=redis://me:hunter3@" + r.Addr + "/0"}, ""},
		"socket":       {[]string{"REDIS_URL=" + socket, "REDIS_SOCKET_TYPE=unix", "REDIS_AUTH=hunter2"}, ""},
		"tls":          {append([]string{"REDIS_URL=127.0.0.1:" + tlsPort, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"}, tlsEnv...), ""},
		"tls by uri":   {append([]string{"REDIS_URL=rediss://127.0.0.1:" + tlsPort, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"}, tlsEnv[1:]...), ""},
		"bad password": {[]string{"REDIS_URL=" + r.Addr, "REDIS_AUTH=hunter9"}, `check REDIS_AUTH: its user is \"\", and it has a password: true`},
		"a colon":      {[]string{"REDIS_URL=" + r.Addr, "REDIS_AUTH=hunter:9"}, `check REDIS_AUTH: it has a user, of 6 bytes before the first colon`},
		"bad uri":      {[]string{"REDIS_URL=redis://me:hunter9@" + r.Addr, "REDIS_AUTH=hunter2"}, `check REDIS_URL: its user is \"me\", and it has a password: true`},
		"no password":  {[]string{"REDIS_URL=" + r.Addr}, `check REDIS_AUTH: its user is \"\", and it has a password: false`},
		"bad name":     {append([]string{"REDIS_URL=127.0.0.1:" + tlsPort}, tlsEnv...), "check REDIS_URL: the server's certificate is for another name"},
		"stranger":     {append([]string{"REDIS_URL=127.0.0.1:" + tlsPort}, append(tlsEnv, "REDIS_TLS_CACERT="+clients.File("ca.crt"), "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true")...), "check REDIS_TLS_CACERT, which is \\\"" + clients.File("ca.crt")},
		"refused cert": {append([]string{"REDIS_URL=127.0.0.1:" + tlsPort}, append(tlsEnv, "REDIS_TLS_CLIENT_CERT="+stranger, "REDIS_TLS_CLIENT_KEY="+servers.File("client.key"), "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true")...), "check REDIS_TLS_CLIENT_CERT, which is \\\"" + stranger},
		"no TLS there": {append([]string{"REDIS_URL=" + r.Addr}, tlsEnv...), "check REDIS_URL, and REDIS_TLS, which is true"},
		"no cluster":   {[]string{"REDIS_URL=" + r.Addr, "REDIS_AUTH=hunter2", "REDIS_TYPE=CLUSTER"}, `REDIS_TYPE, which is \"CLUSTER\"`},
		"nobody there": {[]string{"REDIS_URL=127.0.0.1:1"}, "check REDIS_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c.env, "--config", rules)
			if got := s.post("k", name); got != 200 {
				t.Errorf("answered %d", got)
			}
			if c.sees != "" {
				s.eventually("the log says why", func() bool {
					s.post("k", name)
					return strings.Contains(s.log(), c.sees)
				})
			} else { // the first request may come before a TLS connection
				s.eventually("the store is used", func() bool {
					s.post("k", name)
					return s.metric(`sluice_decision_sources_total{source="claim"}`) > 0
				})
			}
			if strings.Contains(s.log(), "hunter") {
				t.Errorf("a secret is in the log:\n%s", s.log())
			}
		})
	}
}

// A renewed client certificate is used for the next connection to Redis, and a broken one never.
func TestRedisClientCertificateIsRenewed(t *testing.T) {
	i := redistest.NewAuthority(t)
	i.Leaf("server", time.Hour, "localhost")
	i.Leaf("client", time.Hour)
	var log strings.Builder
	own := &clienttls.Certificate{Cert: i.File("client.crt"), Key: i.File("client.key"), Setting: "OF_", Log: slog.New(slog.NewTextHandler(&log, nil))}
	c, err := own.Client("", "")
	if err != nil {
		t.Fatal(err)
	}
	serial := func() string {
		got, err := c.GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.Leaf.SerialNumber.String()
	}
	first := serial()
	i.Leaf("client", time.Hour)
	second := serial()
	if second == first {
		t.Error("the renewed certificate is not used")
	}
	i.Leaf("client", -time.Minute) // out of date
	if serial() != second || !strings.Contains(log.String(), "OF_CERT "+i.File("client.crt")+" is good from") {
		t.Errorf("a certificate that is out of date is used, or the log does not have it: %s", log.String())
	}
	writeFile(t, i.File("client.key"), "half a fi")
	if _, err := own.Client("", ""); err == nil || !strings.Contains(err.Error(), "OF_CERT "+i.File("client.crt")+" and OF_KEY") {
		t.Errorf("at start: %v", err)
	}
}

// Health follows the store if that is set, and decisions continue.
func TestHealthFollowsTheStore(t *testing.T) { eachStore(t, healthFollows) }

func healthFollows(t *testing.T, store storeServer) {
	s := serve(t, []string{"STORE_URL=" + store.URL(), "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true", "DRAIN_TIME=0s"}, "--log-level=error")
	health := func(want int) func() bool {
		return func() bool { code, _ := s.get(s.http + "/healthcheck"); return code == want }
	}
	s.eventually("healthy", health(200))
	store.Kill()
	s.eventually("unhealthy", health(500))
	if code := s.postBody(exampleRequest); code != 200 {
		t.Errorf("a request while the store is away: %d", code)
	}
	store.Run()
	s.eventually("healthy again", health(200))
}

// Health follows a Redis that answers, but not to what limits need, as a proxy without MULTI.
func TestHealthOfARedisWithoutTransactions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := serve(t, []string{"REDIS_URL=" + server.Addr, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true", "DRAIN_TIME=0s"}, "--log-level=error")
	health := func(want int) func() bool {
		return func() bool { code, _ := s.get(s.http + "/healthcheck"); return code == want }
	}
	s.eventually("healthy", health(200))
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer client.Close()
	if err := client.Do(t.Context(), "ACL", "SETUSER", "default", "-multi").Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.eventually("unhealthy", health(500))
}
