package main

import (
	"crypto/tls"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
	"github.com/sluice-gate/sluice/ratelimit/xds"
)

// configXDS is the CONFIG_TYPE of rules that a management server pushes.
const configXDS = "GRPC_XDS_SOTW"

// xdsFlags are the settings of the management server. Names and defaults are those of envoyproxy/ratelimit,
// except CONFIG_GRPC_XDS_ADDITIONS.
type xdsFlags struct {
	NodeID     string        `env:"CONFIG_GRPC_XDS_NODE_ID" name:"config-grpc-xds-node-id" default:"default" help:"Name by which the management server finds the rules of this node."`
	Metadata   string        `env:"CONFIG_GRPC_XDS_NODE_METADATA" name:"config-grpc-xds-node-metadata" placeholder:"K:V,..." help:"Metadata of this node: k:v or k=v separated by commas, or a JSON object."`
	Server     string        `env:"CONFIG_GRPC_XDS_SERVER_URL" name:"config-grpc-xds-server-url" default:"localhost:18000" help:"Address of the management server, HOST:PORT or dns:///HOST:PORT."`
	Retry      time.Duration `env:"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL" name:"config-grpc-xds-server-connect-retry-interval" default:"3s" help:"Time between two attempts to open the first stream."`
	Headers    string        `env:"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" name:"config-grpc-xds-client-additional-headers" placeholder:"K:V,..." help:"Additional headers of the stream, as name:value separated by commas."`
	UseTLS     bool          `env:"CONFIG_GRPC_XDS_SERVER_USE_TLS" name:"config-grpc-xds-server-use-tls" help:"Use TLS to the management server."`
	Cert       string        `env:"CONFIG_GRPC_XDS_CLIENT_TLS_CERT" name:"config-grpc-xds-client-tls-cert" placeholder:"FILE" help:"File with the client certificate. It is read for each connection."`
	Key        string        `env:"CONFIG_GRPC_XDS_CLIENT_TLS_KEY" name:"config-grpc-xds-client-tls-key" placeholder:"FILE" help:"File with the key of the client certificate."`
	CA         string        `env:"CONFIG_GRPC_XDS_SERVER_TLS_CACERT" name:"config-grpc-xds-server-tls-cacert" placeholder:"FILE" help:"File with the trusted certificates. Default: those of the system."`
	SAN        string        `env:"CONFIG_GRPC_XDS_SERVER_TLS_SAN" name:"config-grpc-xds-server-tls-san" placeholder:"NAME" help:"Required name in the server's certificate. Default: its host."`
	First      time.Duration `env:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" name:"xds-client-backoff-initial-interval" default:"500ms" help:"First pause after the stream ends. Each further pause is twice as long."`
	Longest    time.Duration `env:"XDS_CLIENT_BACKOFF_MAX_INTERVAL" name:"xds-client-backoff-max-interval" default:"1s" help:"Maximum pause after the stream ends."`
	Random     float64       `env:"XDS_CLIENT_BACKOFF_RANDOM_FACTOR" name:"xds-client-backoff-random-factor" default:"0.5" help:"Random part of each pause, 0 to 1."`
	Jitter     bool          `env:"XDS_CLIENT_BACKOFF_JITTER" name:"xds-client-backoff-jitter" default:"true" negatable:"" help:"Randomise each pause."`
	MaxMessage int           `env:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" name:"xds-client-max-msg-size-in-bytes" default:"4194304" help:"Maximum size of a push in bytes."`
	Additions  string        `env:"CONFIG_GRPC_XDS_ADDITIONS" name:"config-grpc-xds-additions" placeholder:"FILE" help:"File with the algorithm, burst, hold and coordination of pushed rules. Pushes have no fields for them."`
}

// client makes the source; it does not connect yet. All faults are collected, so that one start shows them all.
func (f *xdsFlags) client(caps config.Caps, log *slog.Logger) (*xds.Client, error) {
	o := xds.Options{Interval: reloadInterval, Caps: caps, Server: f.Server, NodeID: f.NodeID, MaxMessage: f.MaxMessage, Backoff: f.backoff()}
	var errs [4]error
	o.Metadata, errs[0] = f.metadata()
	o.Headers, errs[1] = parsePairs(f.Headers, ":=")
	if errs[1] != nil {
		errs[1] = fmt.Errorf("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS must be like name:value,name2:value2: %w", errs[1])
	}
	o.Credentials, errs[2] = f.credentials(log)
	if f.Additions != "" {
		o.Additions, errs[3] = xds.ReadAdditions(f.Additions)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	// The factor is compared so that a NaN fails, too.
	if min(f.Retry, f.First, f.Longest) <= 0 || !(f.Random >= 0 && f.Random <= 1) || f.MaxMessage < 1 {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL is %v, XDS_CLIENT_BACKOFF_INITIAL_INTERVAL %v, XDS_CLIENT_BACKOFF_MAX_INTERVAL %v, XDS_CLIENT_BACKOFF_RANDOM_FACTOR %v, XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES %d: they must be positive, and the factor 0 to 1",
			f.Retry, f.First, f.Longest, f.Random, f.MaxMessage)
	}
	// The source calls OnState by one goroutine, so worked needs no lock.
	worked := false
	warn := upkeep.Seldom(10*time.Second, func(err error) {
		log.Warn("the stream of the management server ended: the current rules stay", "CONFIG_GRPC_XDS_SERVER_URL", f.Server, "error", err, "check", f.advise(err, worked))
	})
	o.OnState = func(err error) {
		if err != nil {
			warn(err)
			return
		}
		worked = true
		log.Info("connected to the management server", "from", f.Server)
	}
	return xds.NewClient(o), nil
}

// backoff has no random part if jitter is off, whatever the factor is.
func (f *xdsFlags) backoff() xds.Backoff {
	b := xds.Backoff{Connect: f.Retry, First: f.First, Longest: f.Longest}
	if f.Jitter {
		b.Spread = f.Random
	}
	return b
}

//go:embed xdsadvice.txt
var xdsAdviceText string

var xdsAdvice = settings.ReadAdvice(xdsAdviceText)

// advise names the settings that an error of the connection speaks of. Where a stream had worked, an end without a
// reason is that of the server.
func (f *xdsFlags) advise(err error, worked bool) string {
	text := err.Error()
	if worked {
		text += " (after a push)"
	}
	return xdsAdvice.On(text, f)
}

// metadata reads both forms: "k:v,k2=v2", and a JSON object, which may be nested.
func (f *xdsFlags) metadata() (map[string]any, error) {
	if strings.HasPrefix(strings.TrimSpace(f.Metadata), "{") {
		var m map[string]any
		if err := json.Unmarshal([]byte(f.Metadata), &m); err != nil {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_NODE_METADATA is %q, must be a JSON object: %w", f.Metadata, err)
		}
		return m, nil
	}
	pairs, err := parsePairs(f.Metadata, ":=")
	if err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_NODE_METADATA must be like name:value,name2:value2: %w", err)
	}
	m := make(map[string]any, len(pairs))
	for k, v := range pairs {
		m[k] = v
	}
	return m, nil
}

// With a required name, the library's check of the host is replaced by that of the chain and of this name. Both are in
// VerifyConnection, which also runs for resumed sessions.
func (f *xdsFlags) credentials(log *slog.Logger) (credentials.TransportCredentials, error) {
	if !f.UseTLS {
		return insecure.NewCredentials(), nil
	}
	own := settings.Certificate{Cert: f.Cert, Key: f.Key, Setting: "CONFIG_GRPC_XDS_CLIENT_TLS_", Log: log}
	c, err := own.Client(f.CA, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT")
	if err != nil {
		return nil, err
	}
	if want := f.SAN; want != "" {
		if !strings.Contains(want, "/") { // no URI: the server may choose its certificate by it
			c.ServerName = want
		}
		c.InsecureSkipVerify = true // the chain and the name are checked here
		c.VerifyConnection = func(s tls.ConnectionState) error {
			if err := settings.VerifyChain(c.RootCAs, s); err != nil {
				return err
			}
			return hasName(s.PeerCertificates[0], want, "the management server's", "CONFIG_GRPC_XDS_SERVER_TLS_SAN")
		}
	}
	return credentials.NewTLS(c), nil
}

// reloadInterval is the least time between two loads of rules: faster changes and pushes share one load.
const reloadInterval = 200 * time.Millisecond

// parsePairs reads names and values: "k:v,k2:v2". Each of the separators may be between a name and its value. An error
// has the number of the part and not its text.
func parsePairs(text, separators string) (map[string]string, error) {
	pairs := map[string]string{}
	if text == "" {
		return pairs, nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		at := strings.IndexAny(pair, separators)
		if at < 1 {
			return nil, fmt.Errorf("part %d of it is not a name and a value", len(pairs)+1) // which may be a secret
		}
		pairs[strings.TrimSpace(pair[:at])] = strings.TrimSpace(pair[at+1:])
	}
	return pairs, nil
}
