package account

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Both servers of a part lost their data a moment ago. Their clocks differ. A message at either is in a young epoch.
func TestYoungAtServersWhoseClocksDiffer(t *testing.T) {
	for _, ahead := range []time.Duration{0, 300 * time.Millisecond, 3 * time.Second} {
		l, now := &Redis{}, instant(1_800_000_000_000_000)
		var servers []*server
		for _, by := range []time.Duration{0, ahead} {
			s := &server{}
			is := life{run: "a", replid: "b"}
			is.ID, is.Began, is.Ends = 1, now.Add(by), now.Add(by+ratelimit.YoungFor)
			s.life.Store(&is)
			servers = append(servers, s)
		}
		e := l.epochOf(&layout{all: servers, parts: [][]*server{servers}}, []int{0})
		const later = 100 * time.Millisecond
		for _, by := range []time.Duration{0, ahead} {
			if at := now.Add(by + later); !e.Young(at) {
				t.Errorf("the second server is ahead by %v: at one that is ahead by %v, the epoch is not young", ahead, by)
			}
		}
	}
}
