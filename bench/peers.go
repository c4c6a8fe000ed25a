package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// build builds the others' programs in a folder of this run.
func (c *comparison) build(ctx context.Context) (err error) {
	c.programs, err = os.MkdirTemp("", "sluice-peers")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	versions, err := buildPeers(ctx, c.programs)
	c.built = " The others are " + strings.Join(versions, " and ") + ", with their default settings. " +
		"gubernator has no Redis: its accounts end with its nodes."
	return err
}

// ratelimitVersion is the version of envoyproxy/ratelimit: the newest one of 2026-11.
const ratelimitVersion = "github.com/envoyproxy/ratelimit@v1.4.1-0.20260122083618-3fb702589d36"

// buildPeers builds the others' programs, each with the dependencies of its authors: envoyproxy/ratelimit in its own
// module, and gubernator by the module bench/peers, which requires nothing else. It returns their versions. The go
// command must run in Sluice's repository: the module bench/peers is not part of the released program.
func buildPeers(ctx context.Context, dir string) (versions []string, err error) {
	const module = "bench/peers"
	run := func(in string, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = in
		out, err := cmd.Output()
		if err != nil {
			text := err.Error()
			if failed, is := errors.AsType[*exec.ExitError](err); is {
				text = string(failed.Stderr)
			}
			return nil, fmt.Errorf("building other rate limiters: go %s, in %q of Sluice's repository: %s",
				strings.Join(args, " "), in, text)
		}
		return out, nil
	}
	text, err := run(module, "mod", "download", "-json", ratelimitVersion)
	if err != nil {
		return nil, err
	}
	var source struct{ Dir string }
	if err := json.Unmarshal(text, &source); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if _, err := run(source.Dir, "build", "-o", filepath.Join(dir, "ratelimit-server"), "./src/service_cmd"); err != nil {
		return nil, err
	}
	if _, err := run(module, "build", "-o", filepath.Join(dir, "gubernator"), "."); err != nil {
		return nil, err
	}
	text, err = run(module, "list", "-m", "-f", "{{.Path}}@{{.Version}}", "github.com/gubernator-io/gubernator/v2")
	return []string{ratelimitVersion, strings.TrimSpace(string(text))}, err
}

// openRatelimit starts servers of envoyproxy/ratelimit with the row's rule. Their settings are the defaults, except
// that they write no statistics. It reads its rules below RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/config. Its statsd client
// would look for a server that does not exist here.
func openRatelimit(c *comparison, r *row) (*process.Fleet, error) {
	config := filepath.Join(c.programs, "ratelimit", "config")
	if err := os.MkdirAll(config, 0o700); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	text := fmt.Sprintf("domain: %s\ndescriptors:\n  - key: %s\n    rate_limit: {unit: %v, requests_per_unit: %d}\n", domain, entry, r.unit, r.limit)
	if err := os.WriteFile(filepath.Join(config, "bench.yaml"), []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return openOther(func(f *process.Fleet) error {
		for range r.nodes {
			ports, err := freeport.Find(3)
			if err != nil {
				return err
			}
			p, err := process.Start([]string{
				"RUNTIME_ROOT=" + c.programs, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "LOG_LEVEL=error", "DISABLE_STATS=true",
				"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + f.Redis.Addr, "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + ports[0],
				"HOST=127.0.0.1", "PORT=" + ports[1], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + ports[2],
			}, filepath.Join(c.programs, "ratelimit-server"), "127.0.0.1:"+ports[0])
			if err != nil {
				return err
			}
			if err := f.Join(p); err != nil {
				return err
			}
		}
		return nil
	})
}

// openGubernator starts nodes of gubernator, and waits until each has all others as peers. Their tables have room for
// all keys, which by default they have not. The addresses of all nodes are its arguments, so their ports must be found
// before any node starts.
func openGubernator(c *comparison, r *row) (*process.Fleet, error) {
	ports, err := freeport.Find(2 * r.nodes)
	if err != nil {
		return nil, err
	}
	addresses := make([]string, r.nodes)
	for i := range addresses {
		addresses[i] = "127.0.0.1:" + ports[2*i]
	}
	return openOther(func(f *process.Fleet) error {
		for i, address := range addresses {
			http := "127.0.0.1:" + ports[2*i+1]
			p, err := process.Start([]string{
				"GUBER_GRPC_ADDRESS=" + address, "GUBER_ADVERTISE_ADDRESS=" + address, "GUBER_HTTP_ADDRESS=" + http,
				"GUBER_PEER_DISCOVERY_TYPE=none", fmt.Sprintf("GUBER_CACHE_SIZE=%d", maxKeys), "GUBER_LOG_LEVEL=error",
			}, filepath.Join(c.programs, "gubernator"), address, addresses...)
			if err != nil {
				return err
			}
			if err := f.Join(p); err != nil {
				return err
			}
			p.Debug = http
		}
		return process.Until("the nodes of gubernator know each other", func() bool {
			for _, p := range f.Nodes {
				text, err := p.Ask("/v1/HealthCheck")
				if err != nil || !strings.Contains(strings.ReplaceAll(text, " ", ""), fmt.Sprintf(`"peer_count":%d`, r.nodes)) {
					return false
				}
			}
			return true
		})
	})
}

// askGubernator makes a request to gubernator. Its form is that of gubernator.proto: GetRateLimitsReq, RateLimitReq. It
// encodes the message itself: gubernator's module and its dependencies stay out of this one.
func askGubernator(ctx context.Context, node *grpc.ClientConn, r *row, key string) (ok bool, err error) {
	const name, uniqueKey, hits, limit, duration, requests = 1, 2, 3, 4, 5, 1
	var q []byte
	text := func(field protowire.Number, s string) {
		q = protowire.AppendString(protowire.AppendTag(q, field, protowire.BytesType), s)
	}
	number := func(field protowire.Number, n int64) {
		q = protowire.AppendVarint(protowire.AppendTag(q, field, protowire.VarintType), uint64(n)) //nolint:gosec // positive
	}
	text(name, domain)
	text(uniqueKey, key)
	number(hits, 1)
	number(limit, r.limit)
	number(duration, r.window().Milliseconds())
	all := protowire.AppendBytes(protowire.AppendTag(nil, requests, protowire.BytesType), q)
	var answer []byte
	if err := node.Invoke(ctx, "/pb.gubernator.V1/GetRateLimits", all, &answer, grpc.ForceCodecV2(caller.Bytes{})); err != nil {
		return false, err
	}
	return underLimit(answer)
}

var errAnswer = errors.New("the answer is no GetRateLimitsResp with one response")

// underLimit reads GetRateLimitsResp: the status of the only response. Status 0 is UNDER_LIMIT, the default, which
// proto3 leaves out: so an answer without the field is a pass.
func underLimit(answer []byte) (bool, error) {
	const responses, status, failure = 1, 1, 5
	field, kind, n := protowire.ConsumeTag(answer)
	if n < 0 || field != responses || kind != protowire.BytesType {
		return false, errAnswer
	}
	r, n := protowire.ConsumeBytes(answer[n:])
	if n < 0 {
		return false, errAnswer
	}
	ok := true
	for len(r) > 0 {
		field, kind, n := protowire.ConsumeTag(r)
		if n < 0 {
			return false, errAnswer
		}
		value := protowire.ConsumeFieldValue(field, kind, r[n:])
		if value < 0 {
			return false, errAnswer
		}
		switch is := r[n : n+value]; field {
		case status:
			ok = is[0] == 0
		case failure:
			return false, fmt.Errorf("%w: %q", errAnswer, is)
		}
		r = r[n+value:]
	}
	return ok, nil
}
