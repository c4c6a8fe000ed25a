package debugport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// port is the debug port of a node. The token is that of ADMIN_TOKEN; "" for requests that change nothing.
type port struct{ address, token string }

// patience is for how long an answer may take: the node asks the store, or the owner of the key, for two seconds at
// most.
const patience = 5 * time.Second

// client keeps the connection of an import. All calls of a process use it: an import of 10,000 lines needs no more than
// one connection. HTTP_PROXY of the environment counts.
var client = &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment}}

// refusal is an answer of a node that is not OK. It is a type, so that an import can tell a refused line from a node
// that is away.
type refusal struct {
	address string
	code    int
	why     string
}

// Error says the port and the fault.
func (r *refusal) Error() string { return r.address + ": " + r.why }

// call sends a request with a body of JSON, unless it is nil, and reads the JSON of the answer. headers are names and
// values by turns; those with an empty value are left out. An answer that is not OK is a [refusal]. Its steps: encode,
// send, read at most 64 MB, and decode. An answer that is not JSON with an error of its own is a refusal with the
// status line.
func (p port) call(method, path string, body, into any, headers ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var text []byte
	if body != nil {
		var err error
		text, err = json.Marshal(body)
		if err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+strings.TrimPrefix(p.address, "http://")+path, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("--debug %s: %w", p.address, err)
	}
	if token := strings.TrimSpace(p.token); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	answer, err := client.Do(r)
	if err != nil {
		// errAway marks a node without an answer: an import must not go on without it.
		return fmt.Errorf("%w: %w", errAway, err)
	}
	defer answer.Body.Close()
	// The bound is for an address that is no debug port and sends without an end.
	text, err = io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", p.address, err)
	}
	if answer.StatusCode != http.StatusOK {
		var said struct{ Error string }
		if err := json.Unmarshal(text, &said); err != nil || said.Error == "" {
			said.Error = answer.Status
		}
		return &refusal{p.address, answer.StatusCode, said.Error}
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s is not a debug port of sluice: %w", p.address, err)
	}
	return nil
}

var errAway = errors.New("the debug port (--debug, DEBUG_PORT of the node) does not answer")

// done is the answer to a change. Alone says that each node counts the key by itself.
type done struct {
	Done  string
	Alone bool
}

// descriptorArgs name one descriptor on a command line. Example: edge api_key=alice tier=pro.
type descriptorArgs struct {
	Domain  string   `arg:"" help:"Domain of the rules."`
	Entries []string `arg:"" help:"Entries of the descriptor, key=value, in order."`
}

// query is the descriptor as the debug port reads it: domain=edge&entry=api_key%3Dalice&entry=tier%3Dpro.
func (d *descriptorArgs) query() string {
	return url.Values{"domain": {d.Domain}, "entry": d.Entries}.Encode()
}
