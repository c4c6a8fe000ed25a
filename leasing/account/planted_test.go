package account

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/bench/plant"
	"github.com/sluice-gate/sluice/leasing/redistest"
)

// planted are faults in the Go code, each of which a test must notice that needs no Redis.
var planted = []struct{ file, name, right, wrong string }{
	{"account.go", "an overtaken claim is settled", "r != nil && c.Seq <= r.seq", "r != nil && c.Seq < r.seq"},
	{"account.go", "the holder's total is not booked", "a.sum += total - had", "a.sum += max(0, total-had)"},
	{
		"account.go", "what was charged is not booked",
		"total := max(clamped(c.Taken), clamped(c.Spent))",
		"total := clamped(c.Taken)",
	},
	{"account.go", "more is granted than is free", "max(0, min(free, want,", "max(0, min(free+1, want,"},
	{"account.go", "what is needed is not granted whole", "max(need, free/", "max(1, free/"},
	{"account.go", "a grant is in the sum only", "r.taken += n", "r.taken += 0"},
	{"account.go", "a draw is in the record only", "a.sum += c.Want", "a.sum += 0"},
	{
		"account.go", "a refund below nothing is credited",
		"cut = min(max(0, had-total-a.sum)",
		"cut = min(0, min(0, had-total-a.sum)",
	},
	{"account.go", "a refund is cut while the account learns", "if now >= a.learns {", "if now >= 0 {"},
	{
		"account.go", "what is below nothing is granted",
		"free := limit - max(0, a.sum) - before",
		"free := limit - a.sum - before",
	},
	{
		"account.go", "an account that lost a record does not learn",
		"until = max(until, now.Add(Learn))",
		"until = max(until, now)",
	},
	{
		"account.go", "it learns for as long as a clock was set back",
		"until = min(until, now.Add(Learn))",
		"until = min(until, lastTime)",
	},
	{"account.go", "it grants a twentieth to each claim", "a.learned += n", "a.learned = n"},
	{"account.go", "a lease is credited before it is over", "r != but && r.expires <= now", "r != but"},
	{
		"account.go", "a safe lease is credited",
		"if r.expires <= safe {\n\t\t\tcontinue",
		"if r.expires < safe {\n\t\t\tcontinue",
	},
	{
		"account.go", "a credited lease is not closed",
		"r.taken, r.expires = r.spent, closed",
		"r.taken, r.expires = r.spent, safe",
	},
	{
		"account.go", "a fence comes twice",
		"a.fence = max(a.fence+1, ratelimit.Fence(now))",
		"a.fence = max(a.fence, ratelimit.Fence(now))",
	},
	{"recall.go", "holders are asked at once again", "if since >= 0 && since < a.pause {", "if since < 0 {"},
	{"recall.go", "holders are asked as often while nothing comes", "pause := 2 * a.pause", "pause := a.pause"},
	{"span.go", "an early claim sees nothing of the window before", "case now < s.begins:", "case now < s.opens:"},
	{"span.go", "the window before is rounded down", "return (n + d - 1) / d", "return n / d"},
	{"span.go", "an account is kept for ever", "return s.opens <= now && now < s.over", "return s.opens <= now"},
	{
		"bucket.go", "a bucket fills beside what is leased",
		"return int64(max(-mostBurst, burst-b.hand-b.old)) * Micro",
		"return int64(burst) * Micro",
	},
	{
		"bucket.go", "a bucket in debt fills beside what is leased",
		"return int64(max(-mostBurst, burst-b.hand-b.old)) * Micro",
		"return int64(max(0, burst-b.hand-b.old)) * Micro",
	},
	{"bucket.go", "a late lease counts as live", "case b.turn-r.expires <= 1:", "case true:"},
	{"bucket.go", "a lease is over with its slot", "b.turn+1, b.hand, 0,", "b.turn+1, 0, 0,"},
	{
		"bucket.go", "a lost bucket is full",
		"b.level, b.carry, b.ends = min(0, b.level), 0,",
		"b.level, b.carry, b.ends = b.level, 0,",
	},
	{
		"bucket.go", "a lost bucket fills at once",
		"b.hand, b.old, b.records = 0, burst, nil",
		"b.hand, b.old, b.records = 0, 0, nil",
	},
	{
		"bucket.go", "a lost bucket keeps its records",
		"b.hand, b.old, b.records = 0, burst, nil",
		"b.hand, b.old = 0, burst",
	},
	{"bucket.go", "a slot shrinks under live leases", "} else if b.hand+b.old == 0 {", "} else {"},
	{"refill.go", "a refill is rounded down", "level + int64(added), int64(rest)", "level + int64(added), 0 * int64(rest)"},
	{"kept.go", "a lease that goes on is on record as credited", "r.expires == closed {", "r.expires != 0 {"},
	{"cas.go", "what came too late is on no record", "if claim.Audit != \"\" {", "if claim.Audit != \"\" && g.Err == nil {"},
	{"event.go", "a refusal is on record as a charge", "case e.Granted < e.Need:", "case e.Granted < e.Need-1000:"},
	{"account.go", "a debt is carried twice", "max(debt-r.taken,", "max(debt,"},
	{"account.go", "what others have in hand has the debt", "a.spent+more", "a.spent"},
	{"account.go", "refunded debt pays for others", "max(debt-r.taken, min(0, -a.sum))", "debt - r.taken"},
	{"account.go", "a debt that is not known is forgotten", "if debt < 0 || debt == 0 && r", "if debt <= 0 && r"},
	{"kept.go", "what fits is carried", "max(0, k.sum-c.Limit.Capacity())", "max(0, k.sum)"},
	{"span.go", "a debt is kept for a day", "l.Algorithm == ratelimit.FixedWindow && !l.Carries", "l.Algorithm == ratelimit.FixedWindow"},
	{"storemem.go", "accounts are never dropped", "return r.until <= before", "return false"},
	{"wire.go", "a grant of more than was wanted is believed", "g.Granted > most ||", "g.Granted > most+1<<60 ||"},
	{
		"wire.go", "a number that is none is read",
		"if n != math.Trunc(n) || math.Abs(n) > 1<<53",
		"if math.Abs(n) > 1<<60",
	},
}

// Each planted fault is noticed. It builds the tests once, with all faults in them.
func TestPlanted(t *testing.T) {
	if os.Getenv(plant.Variable) != "" || testing.Short() {
		t.Skip("this is a run with a fault, or one that is to be short")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bugs := make([]plant.Bug, len(planted))
	for i, p := range planted {
		bugs[i] = plant.Bug{Name: p.name, File: "leasing/account/" + p.file, Right: p.right, Wrong: p.wrong}
	}
	tests, err := plant.Tests(t.Context(), root, "leasing/account", t.TempDir(), bugs)
	if err != nil {
		t.Fatal(err)
	}
	const short = "^Test(Events|Grants|Totals|Draws|Overtaken|Fences|Refunds|Nothing|Learning|Eager|Recall|" +
		"Sliding|When|Memory|Loss|Debt|Answers|Bucket)[A-Za-z]*$"
	// A Redis takes longer to start than all of them.
	noticed := func(name string) bool {
		return tests.Command(t.Context(), name, "-test.failfast", "-test.short", "-test.run", short, "-test.skip", "ThroughRedis|OnACluster").Run() != nil
	}
	if noticed("") {
		t.Fatal("a test fails without a fault")
	}
	for _, p := range planted {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			if !noticed(p.name) {
				t.Error("NOT NOTICED")
			}
		})
	}
}

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
	{"if not got[1] or Carries == 1 then redis.call('PEXPIREAT'", "if false then redis.call('PEXPIREAT'"},
	{"turn - claimedIn <= 1", "turn - claimedIn <= 2"},
	{"if Seq < ANSWERED then paid = paid + min(0, taken) end", ""},
	{"seq, told, had = 0, 0, 0", ""},
	{"elseif hand + old == 0 then", "else"},
	{"if r.fence <= last then", "if r.fence < last then"},
	{"carry = part % Seconds", "carry = 0"},
	{"if was and Carries == 1 then", "if Carries == 1 then\n  was = was or '0'"},
	{"integer(was) - Limit, MOST", "integer(was), MOST"},
	{"sum, spent = sum + more, spent + more", "sum = sum + more"},
	{"max(debt - owed, min(0, -sum))", "debt - owed"},
	{"if debt ~= owed then redis", "if debt > owed then redis"},
	{"if Stream then", "if Stream and Kind ~= LEAVES then"},
	{"Carries >= 0 and now < Ends", "KEYS[2] and now < Ends"},
	{"answered(string.sub(set[i], 3), EXPIRED", "answered(ARGV[1], EXPIRED"},
	{"for i = 1, #set, 4 do\n", "for i = 5, #set, 4 do\n"},
	{"redis.call('PEXPIRE', Stream, KEPT)", ""},
}

func TestPlantedScripts(t *testing.T) {
	if os.Getenv(plant.Variable) != "" || testing.Short() {
		t.Skip("this is a run with a fault, or one that is to be short")
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
