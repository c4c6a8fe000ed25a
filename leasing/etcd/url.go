package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// parsed is the content of a URL. compacts means that this program may compact the data (compact=true, as by default).
type parsed struct {
	config   clientv3.Config
	compacts bool
}

const (
	scheme = "etcd://"
	// form is the form of URLs in errors.
	form = "etcd://user:password@host:port,host:port?tls=true&cacert=FILE&cert=FILE&key=FILE&compact=false"
)

// parse reads a URL. [url.Parse] takes only one host. Errors never contain the password. The parts are cut from the
// outside: parameters behind the first question mark, and a user before the last @.
func parse(rawURL string) (p parsed, err error) {
	rest, ok := strings.CutPrefix(rawURL, scheme)
	if !ok {
		return p, fmt.Errorf("it must begin with %s: %s", scheme, form)
	}
	rest, query, _ := strings.Cut(rest, "?")
	user := ""
	// A password may contain an @, and a host cannot.
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, rest = rest[:at], rest[at+1:]
	}
	p.config, err = configOf(rest)
	if err != nil {
		return p, err
	}
	if err := p.credentials(user); err != nil {
		return p, err
	}
	return p, p.settings(query)
}

// Keepalive, which finds dead connections: etcd allows one ping each five seconds.
const (
	aliveEvery  = 5 * time.Second
	aliveAnswer = 2 * time.Second
)

// configOf reads the hosts, each with its port. Errors go to callers, so the client has no log.
func configOf(hosts string) (clientv3.Config, error) {
	c := clientv3.Config{
		DialKeepAliveTime: aliveEvery, DialKeepAliveTimeout: aliveAnswer,
		// Callers get the errors.
		Logger: zap.NewNop(),
	}
	for _, host := range strings.Split(strings.TrimSuffix(hosts, "/"), ",") {
		name, port, err := net.SplitHostPort(host)
		n, failed := strconv.ParseUint(port, 10, 16)
		if err != nil || failed != nil || name == "" || n == 0 {
			return c, fmt.Errorf("%q is not a host with a port, such as etcd-1:2379: %s", host, form)
		}
		c.Endpoints = append(c.Endpoints, host)
	}
	return c, nil
}

// credentials reads user:password. Both are escaped as in any URL, so that they can contain a colon or a slash.
func (p *parsed) credentials(user string) error {
	if user == "" {
		return nil
	}
	name, password, _ := strings.Cut(user, ":")
	var err1, err2 error
	p.config.Username, err1 = url.PathUnescape(name)
	p.config.Password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return errors.New("its user or password has a % that is not an escape: write %25 for a %")
	}
	if p.config.Username == "" || p.config.Password == "" {
		return fmt.Errorf("it has a user or a password alone: %s", form)
	}
	return nil
}

// settings reads the parameters after the question mark.
func (p *parsed) settings(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("%q after the question mark is invalid: %w", query, err)
	}
	secure, files := false, map[string]string{}
	p.compacts = true
	// The last one of several counts.
	for name, all := range values {
		value := all[len(all)-1]
		switch name {
		case "cacert", "cert", "key":
			files[name] = value
		case "tls":
			secure, err = boolOf(name, value)
		case "compact":
			p.compacts, err = boolOf(name, value)
		default:
			err = fmt.Errorf("it has the setting %q, must be one of tls, cacert, cert, key and compact", name)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case secure:
		p.config.TLS, err = tlsOf(files["cacert"], files["cert"], files["key"])
	case len(files) > 0:
		err = errors.New("it names files for TLS: add tls=true")
	}
	return err
}

// boolOf reads true or false, and names the parameter in its error.
func boolOf(name, value string) (bool, error) {
	yes, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("%s is %q, must be true or false", name, value)
	}
	return yes, nil
}

// tlsOf reads files. A client's certificate is read again for each connection, so that it can be renewed. The cacert is
// read once: a new authority needs a restart.
func tlsOf(cacert, cert, key string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if cacert != "" {
		text, err := os.ReadFile(cacert)
		if err != nil {
			return nil, fmt.Errorf("cacert: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("cacert: %s has no certificate in the form of PEM", cacert)
		}
	}
	if (cert == "") != (key == "") {
		return nil, fmt.Errorf("cert is %q and key is %q: a certificate and its key come together", cert, key)
	}
	if cert != "" {
		read := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				return nil, fmt.Errorf("cert and key: %w", err)
			}
			return &pair, nil
		}
		// Wrong files are an error at start, and not at the first connection.
		if _, err := read(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return c, nil
}
