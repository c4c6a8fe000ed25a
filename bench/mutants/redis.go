package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"
)

// loadable tells which of the scripts Redis can load: the others are no Lua.
func loadable(ctx context.Context, temp string, scripts map[*mutant]string, texts map[string]string) (map[*mutant]error, error) {
	if len(scripts) == 0 {
		return nil, nil
	}
	dir, err := os.MkdirTemp(temp, "redis")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "s")
	cmd := exec.CommandContext(ctx, "redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("faults in Lua need a redis-server (make deps): %w", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if err = client.Ping(ctx).Err(); err == nil {
			break
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return nil, fmt.Errorf("redis-server on %s does not answer: %w", socket, err)
		}
	}
	bad := map[*mutant]error{}
	for m := range scripts {
		_, text := m.scriptText(texts)
		if err := client.ScriptLoad(ctx, text).Err(); err != nil {
			bad[m] = err
		}
	}
	return bad, ctx.Err()
}
