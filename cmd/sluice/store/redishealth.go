package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// redisHealth is a Redis server's report on the safety of its data. It serves a warning in the log, metrics and the
// console. Only Evicted changes behaviour: if it grows, nodes state their totals again.
type redisHealth struct {
	// Policy is its maxmemory-policy; "" if it does not report it, as some managed services.
	Policy    string
	MaxMemory uint64 // bytes; 0: no maximum
	Evicted   uint64 // keys since its start; for a Cluster, of all servers
	RDB, AOF  bool   // it saves snapshots, it keeps a log; as far as it reports
	// Saves means that RDB is known: CONFIG may be refused, and INFO lacks it.
	Saves bool
}

// mayEvict reports whether it may drop accounts in use. A policy without a maximum of memory drops nothing.
func (h *redisHealth) mayEvict() bool { return h.Policy != "" && h.Policy != "noeviction" }

// healthOf asks Redis, or each master of a Cluster, and returns the worst. If CONFIG is refused, INFO has a part of it.
func healthOf(ctx context.Context, client redis.UniversalClient) (redisHealth, error) {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return healthOfOne(ctx, client)
	}
	// ForEachMaster calls run at the same time.
	var mu sync.Mutex
	var all []redisHealth
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		h, err := healthOfOne(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			all = append(all, h)
		}
		return err
	})
	// While a server is down, evictions of the others count.
	if len(all) == 0 {
		return redisHealth{}, err
	}
	return worst(all), nil
}

// worst is the report of the servers as one: evicted keys add up, and the rest is that of the least safe server.
func worst(all []redisHealth) redisHealth {
	w := all[0]
	for _, h := range all[1:] {
		// Data is as safe as on the least safe server: all must save, and one that may evict is enough for a warning.
		w.Evicted += h.Evicted
		w.RDB = w.RDB && h.RDB
		w.AOF = w.AOF && h.AOF
		w.Saves = w.Saves && h.Saves
		if h.mayEvict() {
			w.Policy, w.MaxMemory = h.Policy, h.MaxMemory
		}
	}
	return w
}

// healthOfOne sends all questions in one round trip. CONFIG comes first, and INFO supplements it.
func healthOfOne(ctx context.Context, c redis.Cmdable) (redisHealth, error) {
	pipe := c.Pipeline()
	settings := pipe.ConfigGet(ctx, "maxmemory*")
	save := pipe.ConfigGet(ctx, "save")
	info := pipe.Info(ctx, "memory", "persistence", "stats")
	// Managed services refuse CONFIG, and some INFO. One of the two is enough.
	_, err := pipe.Exec(ctx)
	text, infoErr := info.Result()
	if infoErr != nil && settings.Err() != nil {
		return redisHealth{}, fmt.Errorf("redis: %w", errors.Join(err, infoErr))
	}
	h := redisHealth{Policy: settings.Val()["maxmemory-policy"]}
	h.MaxMemory, _ = strconv.ParseUint(settings.Val()["maxmemory"], 10, 64)
	// The setting save is a list of intervals, such as "3600 1 300 100". Empty means that no snapshots are made.
	if saves, err := save.Result(); err == nil {
		h.Saves, h.RDB = true, saves["save"] != ""
	}
	for line := range strings.Lines(text) {
		h.read(strings.TrimSpace(line))
	}
	return h, nil
}

// read reads a line of INFO.
func (h *redisHealth) read(line string) {
	name, value, _ := strings.Cut(line, ":")
	switch name {
	// INFO repeats CONFIG, if that was allowed.
	case "maxmemory_policy":
		h.Policy = value
	case "maxmemory":
		h.MaxMemory, _ = strconv.ParseUint(value, 10, 64)
	case "evicted_keys":
		h.Evicted, _ = strconv.ParseUint(value, 10, 64)
	case "aof_enabled":
		h.AOF = value == "1"
	}
}
