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
	{"if now < Opens or now >= Over", "if now >= Over"},
	{"before = max(before, Limit)", "before = max(before, 0)"},
	{"+ PARTS - 1) / PARTS)", ") / PARTS)"},
	{"local missing = Taken > had and expires ~= CLOSED", "local missing = Taken > had"},
	{"if latest > now and learns <= now then learned = 0 end", ""},
	{"if now >= learns then cut", "if true then cut"},
	{"if total < had then pause = least end", ""},
	{"if r.expires > SAFE and r.expires <= now then", "if r.expires > SAFE and r.expires < now then"},
	{"r.taken, r.expires = r.spent, CLOSED", "r.taken, r.expires = r.taken, CLOSED"},
	{"if since < 0 or since >= pause then", "if since >= pause then"},
	{"if not got[1] then redis.call('PEXPIREAT'", "if false then redis.call('PEXPIREAT'"},
	{"turn - claimedIn <= 1", "turn - claimedIn <= 2"},
	{"if Seq < ANSWERED then paid = paid + min(0, taken) end", ""},
	{"seq, told, had, latest, last, drops, owed, older = 0, 0, 0, 0, 0, 0, 0, 0", "latest, last, drops, owed, older = 0, 0, 0, 0, 0"},
	{"    owed, older = 0, owed\n", "    older = older + owed\n"},
	{"max(0, others - owed - older)", "hand + old"},
	{"if learns <= now then", "if true then"},
	{"if learns > now and seq == 0 then", "if learns > now then"},
	{"elseif hand + old == 0 then", "else"},
	{"if r.fence <= last then", "if r.fence < last then"},
	{"return added, part % Seconds", "return added, 0"},
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

// noticed tells whether twins differ.
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
