package main

import (
	"errors"
	"fmt"
)

const memcache = "memcache" // a value of BACKEND_TYPE

// validateBackend refuses memcached: there is no ledger in it, and nodes that each
// count in their own memory would each admit the whole limit.
func (s *flags) validateBackend() error {
	switch {
	case s.BackendType == "redis":
		return nil
	case s.BackendType != memcache:
		return fmt.Errorf("BACKEND_TYPE is %q, must be redis or memcache", s.BackendType)
	case s.Store.Shared() || s.Coordination.MaxNodes == "1":
		return nil
	}
	return errors.New("BACKEND_TYPE is memcache, and memcached cannot store accounts: each replica would count alone, " +
		"and N of them would admit N times the limit; set REDIS_URL, or COORDINATION_MAX_NODES=1 if there is only this one")
}

func (s *flags) validateLocalCache() error {
	if s.LocalCacheSize < 0 {
		return fmt.Errorf("LOCAL_CACHE_SIZE_IN_BYTES is %d, must be 0 (off) or more", s.LocalCacheSize)
	}
	return nil
}
