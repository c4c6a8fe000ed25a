//go:build !linux

package ratelimit

import "time"

// leastSleep is the shortest suspension that is taken for one: the wall clock is
// also corrected, by less than this as a rule. A larger correction has leases
// expire early, which costs a claim each.
const leastSleep = time.Second

// sinceBoot is the wall clock, which counts on while the machine is suspended.
func sinceBoot() time.Duration { return time.Duration(time.Now().UnixNano()) }
