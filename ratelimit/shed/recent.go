package shed

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// periods are how many a recent count goes back.
const periods = 8

// recent counts recent additions that have not been removed: in the current period, and the seven before it.
type recent struct {
	period time.Duration
	of     [periods]int64
	counts [periods]int
}

func (r *recent) at(then ratelimit.Instant) (number int64, place int) {
	number = int64(then) / int64(r.period)
	return number, int(number % periods)
}

func (r *recent) add(now ratelimit.Instant) {
	number, place := r.at(now)
	if r.of[place] != number {
		r.of[place], r.counts[place] = number, 0
	}
	r.counts[place]++
}

// remove takes back an addition, if it is recent.
func (r *recent) remove(then ratelimit.Instant) {
	if number, place := r.at(then); r.of[place] == number {
		r.counts[place]--
	}
}

func (r *recent) count(now ratelimit.Instant) (n int) {
	latest, _ := r.at(now)
	for i, number := range r.of {
		if latest-number < periods {
			n += r.counts[i]
		}
	}
	return n
}
