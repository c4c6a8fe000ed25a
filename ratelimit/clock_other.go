//go:build !linux

package ratelimit

import "time"

// leastSleep is the least advance of the wall clock that counts as a suspension. Corrections of that clock are usually
// smaller. A larger one makes leases expire early, which costs a claim each.
const leastSleep = time.Second

// sinceBoot stands for the time since the boot of the machine, with suspensions: only differences of it count. Here it
// is the wall clock.
func sinceBoot() time.Duration { return time.Duration(time.Now().UnixNano()) }
