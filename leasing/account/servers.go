package account

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// servers are the servers with accounts.
type servers struct {
	one *server // without a Cluster

	mu    sync.Mutex
	all   []*server   // guarded by mu; of a Cluster, as last read
	parts [][]*server // guarded by mu; the servers of each part, likewise
	tags  []uint32    // guarded by mu; a number for each slot of a Cluster that gives a name in it
	stale atomic.Bool // the servers of the Cluster, or their slots, have changed
}

// server is a server with accounts. In a Cluster it is the master of a shard.
type server struct {
	client *redis.Client
	// name is the name of its epoch's key. In a Cluster it is in the lowest of the server's slots. Nodes with an
	// older list of slots read another key of the server, and also notice a loss, because both keys are lost
	// together.
	name string
	// first means that the server existed when this process began. Invariant: it is not written after.
	first bool
	// suspect means that the server may have changed.
	suspect atomic.Bool
	epoch   atomic.Pointer[ratelimit.Epoch] // last read; nil: not yet
}

func (l *Redis) single(c *redis.Client) {
	l.one = &server{client: c, name: l.prefix + EpochName, first: true}
	l.all = []*server{l.one}
	l.parts = [][]*server{l.all}
}

// known returns all servers, and those of each part. For a Cluster it reads them at first, and after each hint of a
// change.
func (l *Redis) known(ctx context.Context) (all []*server, parts [][]*server, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cluster == nil || l.all != nil && !l.stale.Load() {
		return l.all, l.parts, nil
	}
	if l.all != nil {
		l.cluster.ReloadState(ctx)
	}
	l.stale.Store(false)
	all, parts, err = l.readLocked(ctx)
	if err != nil {
		l.stale.Store(true)
		return nil, nil, err
	}
	l.all, l.parts = all, parts
	return all, parts, nil
}

// readLocked finds the masters of all slots, in the client's list. It keeps the state of known masters.
func (l *Redis) readLocked(ctx context.Context) (all []*server, parts [][]*server, failed error) {
	if l.tags == nil {
		l.tags = slotTags(l.prefix)
	}
	parts = make([][]*server, l.Partitions())
	for slot := range l.tags {
		name := l.epochKey(l.tags[slot])
		c, err := l.cluster.MasterForKey(ctx, name)
		if err != nil { // a slot without a master: its claims fail
			if failed = err; ctx.Err() != nil {
				break
			}
			continue
		}
		i := slices.IndexFunc(all, func(s *server) bool { return s.client == c })
		if i < 0 {
			i, all = len(all), append(all, l.keptLocked(c, name))
		}
		if part := &parts[slot*len(parts)/clusterSlots]; !slices.Contains(*part, all[i]) {
			*part = append(*part, all[i])
		}
	}
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("redis: no server of the Cluster was found: %w", failed)
	}
	return all, parts, nil
}

func (l *Redis) keptLocked(c *redis.Client, name string) *server {
	for _, s := range l.all {
		if s.client == c && s.name == name {
			return s
		}
	}
	return &server{client: c, name: name, first: l.all == nil}
}

// partitions is the number of parts of a Cluster's slots.
const partitions = 16

// Partitions is the number of parts that fail separately: one, except in a Cluster. A part's slots are contiguous,
// and so mostly at one or two servers. A prefix with a brace may put all accounts into one slot.
func (l *Redis) Partitions() int {
	if l.cluster == nil || strings.Contains(l.prefix, "{") {
		return 1
	}
	return partitions
}

// Partition is the part of a key's accounts, below Partitions.
func (l *Redis) Partition(key string) int {
	n := l.Partitions()
	if n == 1 {
		return 0
	}
	tag, _, _ := strings.Cut(key, "}")
	return int(slotOf(tag)) * n / clusterSlots
}

func (l *Redis) epochKey(tag uint32) string {
	return l.prefix + EpochName + "{" + strconv.FormatUint(uint64(tag), 36) + "}"
}

// clusterSlots is the number of slots of a Cluster.
const clusterSlots = 16384

// slotTags finds for each slot, by trial, a number whose name is in it. A prefix with a {tag} has all accounts in one
// slot; then one name is enough. It takes some milliseconds.
func slotTags(prefix string) []uint32 {
	if open := strings.IndexByte(prefix, '{'); open >= 0 && strings.IndexByte(prefix[open:], '}') > 1 {
		return []uint32{1}
	}
	tags, found := make([]uint32, clusterSlots), 0
	for n := uint32(1); found < clusterSlots; n++ {
		if at := slotOf(strconv.FormatUint(uint64(n), 36)); tags[at] == 0 {
			tags[at] = n
			found++
		}
	}
	return tags
}

// slotOf is the slot of a {tag}: CRC-16 as in XMODEM, from the Cluster's specification.
func slotOf(tag string) uint16 {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % clusterSlots
}

// serverOf is the server of a Cluster for a name, in the client's list. It must be one of those of its part:
// otherwise the part's epoch would not show a loss of its data.
func (l *Redis) serverOf(ctx context.Context, part []*server, name string) (*server, error) {
	c, err := l.cluster.MasterForKey(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	for _, s := range part {
		if s.client == c {
			return s, nil
		}
	}
	l.stale.Store(true)
	return nil, fmt.Errorf("redis: %w", errMoved)
}

var errMoved = errors.New("the slots of the Cluster have moved")
