package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/server"
)

// redacts tells whether values are hidden on the debug port: where others than this machine reach it, unless the setting
// says otherwise.
func (s *flags) redacts() bool {
	if s.ConsoleRedact != nil {
		return *s.ConsoleRedact
	}
	ip := net.ParseIP(s.DebugHost)
	return s.DebugHost != "localhost" && (ip == nil || !ip.IsLoopback())
}

// descriptorArgs name one descriptor on a command line.
type descriptorArgs struct {
	Domain  string   `arg:"" help:"Domain of the rules."`
	Entries []string `arg:"" help:"Entries of the descriptor, key=value, in order."`
}

func (d *descriptorArgs) query() string {
	return url.Values{"domain": {d.Domain}, "entry": d.Entries}.Encode()
}

// debugGet reads JSON from a node's debug port.
func debugGet(address, path string, into any) error {
	return debugCall(http.MethodGet, address, path, "", into)
}

// debugClient keeps the connections of an import.
var debugClient = &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: importAtOnce}}

func debugCall(method, address, path, token string, into any) error {
	code, body, err := debugAsk(method, address, path, token, nil, 5*time.Second)
	if err != nil {
		return err
	}
	return debugAnswer(address, code, body, into)
}

// debugAsk asks a node's debug port, and reads the answer. headers are names and values by turns; those with an empty
// value are left out.
func debugAsk(method, address, path, token string, body io.Reader, patience time.Duration, headers ...string) (code int, text []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, body)
	if err != nil {
		return 0, nil, fmt.Errorf("--debug %s: %w", address, err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	answer, err := debugClient.Do(r)
	if err != nil {
		return 0, nil, fmt.Errorf("the debug port (--debug, DEBUG_PORT of the node) does not answer: %w", err)
	}
	defer answer.Body.Close()
	if text, err = io.ReadAll(io.LimitReader(answer.Body, 64<<20)); err != nil {
		return 0, nil, fmt.Errorf("%s: %w", address, err)
	}
	return answer.StatusCode, text, nil
}

// debugAnswer reads what was answered: JSON, or a refusal.
func debugAnswer(address string, code int, body []byte, into any) error {
	if code != http.StatusOK {
		var refusal struct{ Error string }
		if err := json.Unmarshal(body, &refusal); err != nil || refusal.Error == "" {
			refusal.Error = fmt.Sprint(code, " ", http.StatusText(code))
		}
		return fmt.Errorf("%s: %s", address, refusal.Error)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s is not a debug port of sluice: %w", address, err)
	}
	return nil
}

func (s *flags) debugOptions() server.DebugOptions {
	o := server.DebugOptions{Unnamed: []string{"/metrics"}}
	for name := range strings.SplitSeq(s.DebugHosts, ",") {
		if name = strings.TrimSpace(name); name != "" {
			o.Hosts = append(o.Hosts, name)
		}
	}
	return o
}
