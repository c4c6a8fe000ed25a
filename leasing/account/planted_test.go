package account

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// plantedScripts are faults in the scripts, which the twins notice.
var plantedScripts = []struct{ right, wrong string }{
	{
		"if Seq <= seq then return nothing(OVERTAKEN) end\nlocal spent",
		"if Seq < seq then return nothing(OVERTAKEN) end\nlocal spent",
	},
	{"if now < Begins or now >= Over", "if now >= Over"},
	{"+ PARTS - 1) / PARTS)", ") / PARTS)"},
	{"if total < had then pause = least end", ""},
	{"- sum + max(0, Taken - Spent))", "- sum)"},
	{"local cut = max(0, had - total - sum + max(0, Taken - Spent))", "local cut = 0"},
	{"if used < Need then used = used - used % Unit end", ""},
	{"total, says = total + grant, says + used", "total, says = total + grant, says"},
	{"spent, fence = sum + grant, spent + used,", "spent, fence = sum + grant, spent,"},
	{"if since < 0 or since >= pause then", "if since >= pause then"},
	{"if not got[1] then redis.call('PEXPIREAT'", "if false then redis.call('PEXPIREAT'"},
	{"elseif Lease == slot - 1 then", "elseif Lease < slot then"},
	{"if Lease == slot or Lease == slot - 1 then\n", "if true then\n"},
	{"local rest = max(0, held - max(0, Spent))", "local rest = max(0, held - Spent)"},
	{"left = max(0, min(rest, Want))", "left = rest"},
	{"if Need <= 0 then left", "if true then left"},
	{"hand, level = hand + left, level", "level = level"},
	{"level + (rest - left) * MICRO", "level"},
	{"level = min(level, room())", ""},
	{"- hand - old) * MICRO))", ") * MICRO))"},
	{"hand, old = 0, hand end", "hand, old = 0, 0 end"},
	{"if hand + old > 0 then stop", "if false then stop"},
	{"if at - now >= WAITS then at = now end", "at = min(at, now)"},
	{"  carry = part % Seconds", "  carry = 0"},
	{"if free < Need then free = free - free % Unit end", ""},
	{"Slides == 1 and now < Ends", "Slides == 1"},
}

func TestPlantedScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Redis, and takes seconds")
	}
	s := redistest.Shared(t)
	claims, buckets := claimScript, bucketScript
	defer func() { claimScript, bucketScript = claims, buckets }()
	for _, p := range plantedScripts {
		claim, bucket := commonLua+claimLua, commonLua+bucketLua
		if strings.Count(commonLua+claimLua+bucketLua, p.right) != 1 {
			t.Errorf("%q is not in the scripts once", p.right)
			continue
		}
		claimScript = redis.NewScript(strings.Replace(claim, p.right, p.wrong, 1))
		bucketScript = redis.NewScript(strings.Replace(bucket, p.right, p.wrong, 1))
		if !noticed(t, s) {
			t.Errorf("NOT NOTICED: %q", p.wrong)
		}
		s.Do("FLUSHALL")
	}
}

// noticed reports whether twins differ.
func noticed(t *testing.T, s *redistest.Server) bool {
	m := newMoved(t, s)
	for seed := range uint64(400) {
		w := newTwins(t, m, seed, map[string]int{})
		if w.differ(150) != "" {
			return true
		}
	}
	return false
}
