package store

import (
	"cmp"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// Redis says where the shared Redis is. Names and forms are envoyproxy/ratelimit's. Some fields also hold for other
// stores: KeyPrefix, and StartupMaxElapsed.
type Redis struct {
	URL          string        `env:"REDIS_URL" name:"redis-url" placeholder:"URL" help:"Address of Redis: host:port, a socket path or a redis:// URI. With REDIS_TYPE=CLUSTER: host:port,host:port,... With SENTINEL: master,host:port,... Default: the memory of this process."`
	Type         string        `env:"REDIS_TYPE" name:"redis-type" default:"SINGLE" help:"Kind of Redis: SINGLE, SENTINEL or CLUSTER."`
	SocketType   string        `env:"REDIS_SOCKET_TYPE" name:"redis-socket-type" default:"tcp" help:"Network: tcp, or unix for a socket path."`
	Auth         string        `env:"REDIS_AUTH" name:"redis-auth" placeholder:"PASS" help:"Password of Redis: pass or user:pass."`
	SentinelAuth string        `env:"REDIS_SENTINEL_AUTH" name:"redis-sentinel-auth" placeholder:"PASS" help:"Password of the sentinels: pass or user:pass."`
	PoolSize     int           `env:"REDIS_POOL_SIZE" name:"redis-pool-size" default:"10" help:"Connections to each server."`
	Timeout      time.Duration `env:"REDIS_TIMEOUT" name:"redis-timeout" default:"1s" help:"Maximum time to connect. The wait of a decision is store_deadline, a field of its rule."`
	TLS          bool          `env:"REDIS_TLS" name:"redis-tls" help:"Use TLS to Redis."`
	TLSCert      string        `env:"REDIS_TLS_CLIENT_CERT" name:"redis-tls-client-cert" placeholder:"FILE" help:"File with the client certificate. It is read for each connection."`
	TLSKey       string        `env:"REDIS_TLS_CLIENT_KEY" name:"redis-tls-client-key" placeholder:"FILE" help:"File with the key of the client certificate."`
	TLSCACert    string        `env:"REDIS_TLS_CACERT" name:"redis-tls-cacert" placeholder:"FILE" help:"File with the trusted certificates. Default: those of the system."`
	TLSSkip      bool          `env:"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION" name:"redis-tls-skip-hostname-verification" help:"Skip the check of the server's name."`
	KeyPrefix    string        `env:"CACHE_KEY_PREFIX" name:"cache-key-prefix" help:"Prefix of all names in the store. Fleets with different prefixes share no limits."`

	StartupMaxElapsed time.Duration `env:"REDIS_STARTUP_MAX_ELAPSED_TIME" name:"redis-startup-max-elapsed-time" default:"0s" help:"Maximum wait for the store at start, whichever it is. Then the process ends with an error. 0: no limit."`

	HealthCheck bool `env:"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION" name:"redis-health-check-active-connection" help:"Fail health checks while Redis does not answer. The setting changes no decision: on_store_failure applies as always."`

	urlSetting string // that has its URL: "" means REDIS_URL
	log        *slog.Logger
}

// URLSetting is the setting that has its URL.
func (f *Redis) URLSetting() string { return cmp.Or(f.urlSetting, "REDIS_URL") }

// options are a client's, whose connections dial makes. It opens nothing, but reads files of certificates. An error
// names the setting, its value without a password, and its bounds.
func (f *Redis) options(pool *metrics.Pool) (*redis.UniversalOptions, error) {
	// A retry would be a second draw of the same tokens, so there are none. ContextTimeoutEnabled ends a command at its
	// store_deadline. DisableIdentity and the disabled notifications save two commands of the library on each new
	// connection.
	o := &redis.UniversalOptions{
		MaxRetries: -1, ContextTimeoutEnabled: true, // the renewer claims again by itself
		DialTimeout: f.Timeout, DialerRetries: 1, MinIdleConns: min(f.PoolSize, 4), ReadTimeout: f.Timeout, WriteTimeout: f.Timeout, PoolSize: f.PoolSize,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if f.PoolSize < 1 || f.Timeout < 0 {
		return nil, fmt.Errorf("REDIS_POOL_SIZE is %d, must be at least 1, and REDIS_TIMEOUT is %v, must not be negative", f.PoolSize, f.Timeout)
	}
	// Sentinels have credentials of their own. Those of the servers are never sent to them.
	_, o.Username, o.Password = f.credentials()
	o.SentinelUsername, o.SentinelPassword = userAndPassword(f.SentinelAuth)
	var err error
	if f.Secure() {
		o.TLSConfig, err = f.tls()
		if err != nil {
			return nil, err
		}
	}
	switch strings.ToUpper(f.Type) {
	case "SINGLE":
		err = f.single(o)
	case "CLUSTER":
		o.Addrs, o.IsClusterMode = strings.Split(f.URL, ","), true
	case "SENTINEL":
		// The form is that of envoyproxy/ratelimit: mymaster,sentinel1:26379,sentinel2:26379.
		parts := strings.Split(f.URL, ",")
		if len(parts) < 2 {
			return nil, fmt.Errorf("%s is %q, and REDIS_TYPE SENTINEL needs the name of the master before the addresses, separated by commas", f.URLSetting(), shown(f.URL))
		}
		o.MasterName, o.Addrs = parts[0], parts[1:]
	default:
		return nil, fmt.Errorf("REDIS_TYPE is %q, must be SINGLE, SENTINEL or CLUSTER", f.Type)
	}
	if err != nil {
		return nil, err
	}
	// With a dialer of its own the client leaves TLS to it.
	o.Dialer = bounded(redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig}), pool)
	return o, f.checkAddresses(o.Addrs)
}

// Secure reports whether connections use TLS.
func (f *Redis) Secure() bool {
	scheme, _, _ := strings.Cut(f.URL, "://")
	return f.TLS || strings.EqualFold(scheme, "rediss")
}

// single reads a host:port, the path of a socket, or a URI. Only the URI may have a database and credentials. A list
// here is an error with advice: as one address, it would fail at the first dial with a less useful text.
func (f *Redis) single(o *redis.UniversalOptions) error {
	if strings.Contains(f.URL, ",") && !strings.Contains(f.URL, "://") {
		return fmt.Errorf("%s is %q, a list, and REDIS_TYPE is SINGLE: set it to CLUSTER, or to SENTINEL with the name of the master first in the list",
			f.URLSetting(), shown(f.URL))
	}
	if !strings.Contains(f.URL, "://") {
		o.Addrs = []string{f.URL}
		if f.SocketType == "unix" && !strings.HasPrefix(f.URL, "/") {
			return fmt.Errorf("%s is %q, and REDIS_SOCKET_TYPE unix needs a path", f.URLSetting(), shown(f.URL))
		}
		return nil
	}
	parsed, err := redis.ParseURL(f.URL)
	if err != nil {
		if strings.Contains(f.URL, "@") { // the error may quote a password
			err = errors.New("its scheme, port, database or an option is wrong; write / ? # % @ of a password as %2F %3F %23 %25 %40")
		}
		return fmt.Errorf("%s is not a valid URI: %w", f.URLSetting(), err)
	}
	u, _ := url.Parse(f.URL) // as ParseURL has
	// The library would apply its options, such as max_retries, and break the two requirements above. So options
	// without an effect here are refused.
	for option := range u.Query() {
		if option != "db" && option != "skip_verify" {
			return fmt.Errorf("%s has the option %q, and only db and skip_verify have an effect: remove it", f.URLSetting(), option)
		}
	}
	o.Addrs, o.DB = []string{parsed.Addr}, parsed.DB
	// Only rediss:// sets TLSConfig, so Secure was true, and o.TLSConfig is not nil.
	if parsed.TLSConfig != nil && parsed.TLSConfig.InsecureSkipVerify { // ?skip_verify=true
		o.TLSConfig.InsecureSkipVerify = true
	}
	return nil
}

// checkAddresses finds wrong addresses before the first dial. A frequent one is pass@host:port, as other clients take
// it: the error hides the password, and names its setting.
func (f *Redis) checkAddresses(addresses []string) error {
	for _, a := range addresses {
		if strings.HasPrefix(a, "/") {
			continue
		}
		_, port, err := net.SplitHostPort(a)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return fmt.Errorf("%s has the address %q, must be host:port; a password belongs in REDIS_AUTH, and one of sentinels in REDIS_SENTINEL_AUTH", f.URLSetting(), shown(a))
		}
	}
	return nil
}

// credentials are those of the URL, or else of the setting for them, and the setting that has them.
func (f *Redis) credentials() (setting, user, password string) {
	if parsed, err := redis.ParseURL(f.URL); err == nil && parsed.Password != "" {
		return f.URLSetting(), parsed.Username, parsed.Password
	}
	user, password = userAndPassword(f.Auth)
	return "REDIS_AUTH", user, password
}

// userAndPassword divides at the first colon: in user:a:b, the password is a:b. A password with a colon and no user
// needs default: before it.
func userAndPassword(auth string) (user, password string) {
	user, password, both := strings.Cut(auth, ":")
	if !both {
		return "", auth
	}
	return user, password
}

// tls reads the certificates, and fails if one is missing or out of date. With REDIS_TLS_SKIP_HOSTNAME_VERIFICATION,
// the library's check is off as a whole, so the chain is checked here. skip_verify of a URI checks neither.
func (f *Redis) tls() (*tls.Config, error) {
	own := settings.Certificate{Cert: f.TLSCert, Key: f.TLSKey, Setting: "REDIS_TLS_CLIENT_", Log: f.log}
	c, err := own.Client(f.TLSCACert, "REDIS_TLS_CACERT")
	if err != nil {
		return nil, err
	}
	if f.TLSSkip {
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(state tls.ConnectionState) error { return settings.VerifyChain(c.RootCAs, state) }
	}
	return c, nil
}

// AdviseCredentials says what a refused setting has. A user of REDIS_AUTH may be half of a password with a colon.
func (f *Redis) AdviseCredentials() string {
	setting, user, password := f.credentials()
	if user != "" && setting == "REDIS_AUTH" {
		return fmt.Sprintf("check %s: it has a user, of %d bytes before the first colon, and a password; for a password with a colon, "+
			"write default:PASS", setting, len(user))
	}
	return fmt.Sprintf("check %s: its user is %q, and it has a password: %t", setting, user, password != "")
}

// CredentialsSetting is the setting that has the credentials.
func (f *Redis) CredentialsSetting() string {
	setting, _, _ := f.credentials()
	return setting
}

// MostReply is the largest reply of a server, in bytes.
func (*Redis) MostReply() int { return mostReply }

//go:embed redisadvice.txt
var adviceText string

var advice = settings.ReadAdvice(adviceText)

// advise names the settings behind an error of Redis, with their values; passwords are left out. Replies get a mark in
// their text: the advice file has no other way to tell a server that refuses from one that is away.
func (f *Redis) advise(err error) string {
	text := err.Error()
	if _, replied := errors.AsType[redis.Error](err); replied { // MOVED, CLUSTERDOWN, MISCONF, LOADING and others
		text += " (a reply)"
	}
	return advice.On(text, f)
}
