package audit

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

var replaySeeds = flag.Uint64("replays", 2000, "how many histories TestReplayTellsWhatTheLedgerHas plays")

const begins = ratelimit.LedgerTime(1_700_000_000_000_000)

// node is an honest holder: it spends what it owns, and tells all.
type node struct {
	slot                 ratelimit.Window // of its lease of a bucket
	told                 tokens           // spent of earlier leases
	name                 ratelimit.Holder
	taken, spent, booked tokens
	draws                bool // the ledger has its total, and it may draw
	seq                  uint64
}

// history is some nodes on one account of a ledger, with their true usage.
type history struct {
	*testing.T
	*rand.Rand
	ledger *account.Memory
	now    ratelimit.LedgerTime
	rule   ratelimit.Rule
	nodes  []node
	left   []node
	events []Event
	lossy  bool // accounts are lost. Otherwise what is taken is exactly what was granted and not given back
	truth  Totals
	cut    tokens // of refunds
	// may is the maximum of admissions beyond the limit: the limit for each lost account.
	may tokens
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{T: t, Rand: rand.New(rand.NewPCG(seed, 30)), now: begins, nodes: make([]node, 4)}
	h.rule = ratelimit.Rule{Domain: "d", Path: "rule", Coordination: ratelimit.DefaultCoordination()}
	h.rule.Coordination.Audit = true
	h.rule.Limit = ratelimit.Limit{
		Algorithm: ratelimit.Algorithm(seed % 3), Unit: ratelimit.Hour, Requests: []tokens{3, 50, 1000}[h.IntN(3)],
	}
	h.rule.Limit.Burst = h.rule.Limit.Requests
	h.lossy = seed%5 == 1 && h.rule.Limit.Algorithm != ratelimit.TokenBucket
	h.ledger = account.NewMemory(func() ratelimit.LedgerTime { return h.now })
	for i := range h.nodes {
		h.nodes[i] = h.newNode()
	}
	return h
}

func (h *history) newNode() node { return node{name: ratelimit.Holder(1 + h.Uint64N(1<<40))} }

func (h *history) window() ratelimit.Window {
	if h.rule.Limit.Algorithm == ratelimit.TokenBucket {
		return 0
	}
	return h.rule.Limit.WindowAt(begins)
}

func (h *history) some() tokens { return tokens(h.Int64N(2 + int64(h.rule.Limit.Requests)/2)) }

func (h *history) play() {
	for range 60 {
		h.now = h.now.Add(time.Duration(h.Int64N(int64(30 * time.Millisecond))))
		n := &h.nodes[h.IntN(len(h.nodes))]
		switch h.IntN(9) {
		case 8:
			if n.draws && n.taken == n.booked && !h.lossy && h.rule.Limit.Algorithm != ratelimit.TokenBucket {
				h.draw(n, 1+h.some())
			}
		case 0, 1:
			if n.taken > n.spent {
				n.spent += 1 + tokens(h.Int64N(int64(n.taken-n.spent)))
			}
		case 2: // charged after the fact
			if !h.lossy {
				n.spent += h.some()
			}
		case 3:
			back := h.some()
			switch {
			case h.lossy || h.IntN(2) == 0:
			case h.rule.Limit.Algorithm == ratelimit.TokenBucket:
				n.spent -= back
			default:
				n.taken, n.spent = n.taken-back, n.spent-back
			}
		case 4:
			n.taken = min(n.taken, n.spent) // given back
		case 5:
			if h.lossy && h.IntN(3) == 0 {
				h.may += h.rule.Limit.Requests
				h.ledger.Evict("k", h.window())
				if h.IntN(2) == 0 {
					h.claim(&h.nodes[0], h.some()) // before the others tell what they have
				}
				for i := range h.nodes {
					h.claim(&h.nodes[i], 0)
				}
			}
		case 6:
			if h.IntN(4) == 0 {
				n.taken = min(n.taken, n.spent)
				h.claim(n, 0)
				h.left = append(h.left, *n)
				*n = h.newNode()
			}
		default:
			h.claim(n, h.some())
		}
	}
	for i := range h.nodes {
		n := &h.nodes[i]
		h.claim(n, 0)
	}
}

func (h *history) claim(n *node, need tokens) {
	if h.rule.Limit.Algorithm == ratelimit.TokenBucket {
		h.lease(n, need)
		return
	}
	n.seq++
	c := account.Claim{
		Key: "k", Window: h.window(), Limit: h.rule.Limit, Holder: n.name, Seq: n.seq, Taken: n.taken, Spent: n.spent,
		Need: need, Want: need,
	}
	g := h.settle(c)
	cut := g.Cut(&c)
	h.cut += cut
	h.truth.Granted += g.Granted
	h.truth.Charged += max(0, n.spent-max(n.taken, n.booked))
	n.booked, n.draws = g.Total, g.Sum <= h.rule.Limit.Requests*7/8
	if h.IntN(6) == 0 && cut == 0 {
		n.draws = false
		return // the answer is lost
	}
	n.taken += g.Granted + cut + max(0, c.Spent-c.Taken-max(0, g.Sum-c.Limit.Capacity()))
	n.spent += cut
}

// lease claims of a bucket.
func (h *history) lease(n *node, need tokens) {
	n.seq++
	c := account.Claim{
		Key: "k", Window: n.slot, Limit: h.rule.Limit, Holder: n.name, Seq: n.seq, Taken: n.taken, Spent: n.spent,
		Need: need, Want: need + h.some(),
	}
	g := h.settle(c)
	charged, refunded := max(0, c.Spent-max(0, c.Taken)), max(0, -c.Spent)
	h.truth.Granted += g.Granted
	h.truth.Charged += charged
	n.booked += g.Granted + charged - refunded
	n.told += max(0, c.Spent)
	n.slot, n.taken, n.spent = account.BucketSlotAt(g.At, &c.Limit), g.Total, 0
}

// draw draws while there is plenty. A part beyond the limit goes back with the next claim.
func (h *history) draw(n *node, want tokens) {
	c := account.Claim{Key: "k", Window: h.window(), Limit: h.rule.Limit, Holder: n.name, Want: want}
	g := h.settle(c)
	owned := g.Owned(want, &c.Limit)
	h.truth.Granted += owned
	n.booked, n.draws = g.Total-want+owned, g.Sum <= h.rule.Limit.Requests*7/8
	n.taken += owned
}

func (h *history) settle(c account.Claim) account.Grant {
	h.Helper()
	var g [1]account.Grant
	if _, _, err := h.ledger.Settle(h.Context(), []account.Claim{c}, g[:]); err != nil || g[0].Err != nil {
		h.Fatal(err, g[0].Err)
	}
	if c.Holder != auditor {
		h.events = append(h.events, NewEvent(&h.rule, &c, &g[0]))
	}
	return g[0]
}

// auditor looks at the account, and is on no record.
const auditor = 1 << 50

// Random histories: the record equals the ledger, and the holders' totals. Usage beyond the limit has a cause: a late
// charge, or a grant after a loss.
func TestReplayTellsWhatTheLedgerHas(t *testing.T) {
	met := map[string]int{}
	for seed := range *replaySeeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			h := newHistory(t, seed)
			h.play()
			all := Replay(h.events)
			if len(all) != 1 {
				h.Fatalf("%d windows", len(all))
			}
			w := all[0]
			// In any order, and some of it twice.
			again := slices.Concat(h.events, h.events[len(h.events)/2:])
			h.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
			if d := cmp.Diff(w, Replay(again)[0], cmpopts.IgnoreUnexported(Window{})); d != "" {
				h.Error(d)
			}
			last := h.settle(account.Claim{
				Key: "k", Window: h.window(), Limit: h.rule.Limit, Holder: auditor, Seq: 1,
			})
			limit := h.rule.Limit.Capacity()
			var taken, spent tokens
			for _, n := range append(h.left, h.nodes...) {
				taken, spent = taken+n.booked, spent+n.told+n.spent
			}
			bucket := w.Window == 0
			if w.Granted != h.truth.Granted || w.Charged != h.truth.Charged || w.Sum != last.Sum {
				h.Errorf("%+v, want %+v, sum %d", w.Totals, h.truth, last.Sum)
			}
			if w.Taken != taken || w.Spent != spent {
				h.Errorf("%+v, and holders took %d and spent %d", w.Totals, taken, spent)
			}
			if !h.lossy && !bucket && w.Taken != last.Sum {
				h.Errorf("%d were taken, the ledger has %d", w.Taken, last.Sum)
			}
			if !h.lossy && (w.Over != 0 || w.Beyond != max(0, last.Sum-limit) || w.Debt != w.Beyond || !w.Held()) {
				h.Errorf("%+v of %d, and the ledger has %d", w.Totals, limit, last.Sum)
			}
			// What was drawn in vain stays taken if it cannot be given back, because refunds have taken the sum to 0.
			adds := w.Granted + w.Charged - w.Refunded - w.Returned
			if !h.lossy && (adds > w.Taken || w.Taken-adds > h.cut) {
				h.Errorf("%+v, which adds up to %d", w.Totals, adds)
			}
			// What was admitted beyond the limit is over-admission: nothing was charged, or refunded.
			if h.lossy && (w.Over < w.Spent-limit || w.Over > h.may || w.Debt != 0) {
				h.Errorf("%+v of %d, and %d may be over", w.Totals, limit, h.may)
			}
			for kind, is := range map[string]bool{
				"debt": w.Debt > 0, "lost": w.Over > 0 && h.lossy,
				"refunded": w.Refunded > 0, "returned": w.Returned > 0, "bucket": bucket,
				"draws": slices.ContainsFunc(h.events, func(e Event) bool { return e.Kind == WasDraw }),
			} {
				if is {
					met[kind]++
				}
			}
		})
	}
	t.Log(met)
	for _, kind := range []string{"debt", "lost", "refunded", "returned", "bucket", "draws"} {
		if met[kind] < 10 && *replaySeeds >= 1000 {
			t.Errorf("%q came %d times", kind, met[kind])
		}
	}
}

// event is one of an account of 10,000 a minute, by a holder's name and totals.
func event(fence ratelimit.Fence, holder string, taken, spent, need, granted, sum tokens) Event {
	return Event{
		Kind: WasReport, Rule: "llm.key", Key: "k", Holder: holder, Algorithm: "fixed_window",
		At: ratelimit.LedgerTime(fence), Window: 7, Ends: 6e7, Fence: fence, Taken: taken, Spent: spent, Need: need,
		Granted: granted, Total: max(taken, spent) + granted, Limit: 10_000, Sum: sum,
	}
}

// Grants beyond the limit are found, also behind late charges. They may be declared. No other event counts as one. A
// part of a draw beyond the limit is not used, until its holder gives it back. Tokens without a record show as such.
func TestReplayJudges(t *testing.T) {
	whole, tooMany := event(1, "a", 0, 0, 10_000, 10_000, 10_000), event(2, "b", 0, 0, 5, 5, 10_005)
	declared, lowered, overtaken := tooMany, event(2, "a", 10_000, 9000, 5, 0, 10_000), event(0, "a", 20_000, 20_000, 0, 5, 0)
	declared.Bound, lowered.Limit, overtaken.Kind = 5, 6000, WasOvertaken
	draw := event(0, "b", 0, 0, 20, 10, 10_010)
	draw.Kind, draw.At, draw.Total, draw.InHand = WasDraw, 2, 20, -1
	most, charge := event(1, "a", 0, 0, 9990, 9990, 9990), event(3, "a", 9990, 10_090, 0, 0, 10_110)
	back := event(4, "b", 10, 10, 0, 0, 10_100)
	for name, row := range map[string]struct {
		events []Event
		held   bool
		want   Totals // of these Over, Beyond, Debt, Taken and Unrecorded
	}{
		"a grant too many":               {[]Event{whole, tooMany}, false, Totals{Over: 5, Beyond: 5, Taken: 10_005}},
		"a grant too many, and declared": {[]Event{whole, declared}, true, Totals{Over: 5, Beyond: 5, Taken: 10_005}},
		"beside a charge that does not fit": {
			[]Event{event(1, "a", 0, 12_000, 0, 0, 12_000), event(2, "b", 0, 0, 6000, 6000, 18_000)},
			false,
			Totals{Over: 6000, Beyond: 8000, Debt: 2000, Taken: 18_000},
		},
		"a limit that was lowered": {[]Event{whole, lowered}, true, Totals{Taken: 10_000}},
		"messages that changed nothing": {
			[]Event{event(1, "a", 0, 10, 0, 0, 10), overtaken}, true, Totals{Taken: 10},
		},
		"a draw in vain":                     {[]Event{most, draw, charge}, true, Totals{Beyond: 100, Debt: 100, Taken: 10_100}},
		"a draw in vain that was given back": {[]Event{most, draw, charge, back}, true, Totals{Beyond: 100, Debt: 100, Taken: 10_100}},
		"a draw in vain, and a missing file": {[]Event{draw, back}, true, Totals{Beyond: 100, Taken: 10, Unrecorded: 10_090}},
	} {
		w := Replay(row.events)[0]
		is := Totals{Over: w.Over, Beyond: w.Beyond, Debt: w.Debt, Taken: w.Taken, Unrecorded: w.Unrecorded}
		if is != row.want || w.Held() != row.held {
			t.Errorf("%s: %+v, held %t, want %+v", name, w.Totals, w.Held(), row)
		}
	}
	if all := Replay([]Event{overtaken}); len(all) != 0 {
		t.Errorf("a window of nothing: %+v", all[0])
	}
}

// granted is a line of AUDIT_FILE: a holder is granted more of a limit of 100 until the year 2100.
func granted(t *testing.T, holder string, more, sum int64) string {
	t.Helper()
	line, err := json.Marshal(map[string]any{
		"kind": WasGrant, "rule": "d.k", "key": "year|d|k=x", "holder": holder, "at_us": sum, "window": 1, "ends_us": int64(4e15),
		"fence": sum, "total": more, "granted": more, "need": more, "limit": 100, "sum": sum,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(line) + "\n"
}

// A full file of audits moves aside, and the file before goes.
func TestAuditFileIsBounded(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit")
	f, err := openRecord(name, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"first 6\n", "second\n", "third\n"} {
		if _, err := f.write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	now, _ := os.ReadFile(name)
	before, _ := os.ReadFile(name + ".1")
	if string(now) != "third\n" || string(before) != "second\n" {
		t.Errorf("the file has %q, and the one before %q", now, before)
	}
	// An operator moves it: the record continues in a new file, and the last lines of the old one stay where it is.
	if err := os.Rename(name, name+".moved"); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"fourth\n", "fifth\n"} {
		if _, err := f.write([]byte(line)); err != nil {
			t.Fatalf("after the file was moved: %v", err)
		}
	}
	if now, _ = os.ReadFile(name); string(now) != "fifth\n" {
		t.Errorf("after the file was moved, its place has %q", now)
	}
}

// The record goes on where it cannot be moved aside: in a pipe to a collector, and over a mount.
func TestAuditFileThatStays(t *testing.T) {
	pipe, mount := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "mount")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.MkdirAll(mount+".1/full", 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, mount} {
		f, err := openRecord(name, 10)
		if err != nil {
			t.Fatal(err)
		}
		reader, _ := os.OpenFile(name, os.O_RDWR, 0)
		for _, line := range []string{"first 6\n", "second\n", "third\n"} {
			if n, err := f.write([]byte(line)); n != len(line) || err != nil && name == pipe {
				t.Errorf("%s: %v", name, err)
			}
		}
		got := make([]byte, 100)
		if n, _ := reader.Read(got); string(got[:n]) != "first 6\nsecond\nthird\n" {
			t.Errorf("%s has %q", name, got[:n])
		}
	}
}

// A line that a full disk or a crash has cut off costs an audit that event, and the audit says so.
func TestAuditReadsOnAfterACutLine(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit")
	one, two := granted(t, "a", 1, 1), granted(t, "b", 1, 2)
	if err := os.WriteFile(name, []byte(one+two[:20]+strings.Repeat("\x00", 1<<17)), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := openRecord(name, mostBytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, holder := range []string{"c", "d"} {
		if _, err := f.write([]byte(granted(t, holder, 1, 3))); err != nil {
			t.Fatal(err)
		}
	}
	all, missing, err := ReadFile(name)
	if err != nil || len(missing) != 1 || !strings.HasPrefix(missing[0], name+":2 is not an event") {
		t.Errorf("%q %v", missing, err)
	}
	if windows := Replay(all); len(windows) != 1 || windows[0].Holders != 3 {
		t.Errorf("%+v", windows)
	}
}

// recorded is a limiter of one node whose decisions are recorded, and its replay.
type recorded struct {
	*Decisions
	*testing.T
	name string
	rule *ratelimit.Rule
	now  ratelimit.Instant
}

func newRecorded(t *testing.T, l ratelimit.Limit) *recorded {
	r := &recorded{T: t, name: filepath.Join(t.TempDir(), "audit"), now: ratelimit.Instant(time.Second)}
	file, err := OpenRecord(r.name, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	wall := time.Unix(1_800_000_000, 0)
	r.rule = &ratelimit.Rule{Domain: "d", Path: "k", Limit: l, Coordination: ratelimit.DefaultCoordination()}
	r.rule.Coordination.Audit = true
	local := local.New(100, r.now, wall)
	r.Decisions = NewDecisions(local, file, 7, local.LedgerNow)
	return r
}

func (r *recorded) asks(kind ratelimit.Kind, cost ratelimit.Tokens) ([]ratelimit.Ask, []ratelimit.Verdict) {
	a, v := []ratelimit.Ask{{Rule: r.rule, Key: []byte("key"), Kind: kind, Cost: cost}}, make([]ratelimit.Verdict, 1)
	r.Decide(context.Background(), r.now, a, v)
	return a, v
}

// windows are what the replay has.
func (r *recorded) windows() []*Window {
	r.Write()
	all, _, err := ReadFile(r.name)
	if err != nil {
		r.Fatal(err)
	}
	return Replay(all)
}

// Requests that are refused do not count as admitted, and those that were charged all the same are shown. What is given
// back, charged later, or refused by another limit of the request is subtracted.
func TestDecisionsAreRecorded(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		for _, deny := range []ratelimit.OnDeny{ratelimit.DenyCharges, ratelimit.DenyRefunds} {
			r := newRecorded(t, ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Year, Requests: 90, Burst: 90})
			r.rule.Coordination.OnDeny = deny
			for range 98 {
				r.asks(ratelimit.Spend, 3)
			}
			charged := map[ratelimit.OnDeny]ratelimit.Tokens{ratelimit.DenyCharges: 204}[deny]
			want := Decided{Admitted: 90, Refused: 204, RefusedCharged: charged}
			if all := r.windows(); len(all) != 1 || all[0].Decided != want || all[0].Limit != 90 || !all[0].Held() {
				t.Fatalf("%v, deny %v: %+v", r.rule.Limit, deny, all[0])
			}
			r.asks(ratelimit.Refund, 10)
			r.asks(ratelimit.Peek, 0)
			r.asks(ratelimit.Charge, 4)
			want.Admitted -= 6
			if deny == ratelimit.DenyRefunds { // another limit refuses the request
				a, v := r.asks(ratelimit.Spend, 2)
				r.Undo(r.now, a, v)
				want.Refused += 2
			}
			if all := r.windows(); all[0].Decided != want {
				t.Errorf("%v, deny %v: %+v, must be %+v", r.rule.Limit, deny, all[0].Decided, want)
			}
		}
	}
}

// However many tokens callers give back, they admit none by that.
func TestDecisionsDoNotOverflow(t *testing.T) {
	r := newRecorded(t, ratelimit.Limit{Unit: ratelimit.Year, Requests: 90})
	for range 2 {
		for range 2 {
			r.asks(ratelimit.Refund, ratelimit.MaxTokens)
		}
		if all := r.windows(); len(all) != 1 || all[0].Admitted != -ratelimit.MaxTokens {
			t.Errorf("%+v", all[0].Decided)
		}
	}
}

// Each window has its own line, and a rule without an audit has none.
func TestDecisionsOfWindows(t *testing.T) {
	r := newRecorded(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 5})
	for range 3 {
		for range 7 {
			r.asks(ratelimit.Spend, 1)
		}
		r.now = r.now.Add(time.Minute)
	}
	r.rule.Coordination.Audit = false
	r.asks(ratelimit.Spend, 1)
	all := r.windows()
	if len(all) != 3 {
		t.Fatalf("%d windows", len(all))
	}
	for _, w := range all {
		if w.Decided != (Decided{Admitted: 5, Refused: 2, RefusedCharged: 2}) || w.Ends.Second() != 0 {
			t.Errorf("%+v", w)
		}
	}
}

// Any number of keys is recorded, in bounded memory.
func TestDecisionsAreBounded(t *testing.T) {
	r := newRecorded(t, ratelimit.Limit{Unit: ratelimit.Year, Requests: 5})
	for i := range mostOpen + 5 {
		a := []ratelimit.Ask{{Rule: r.rule, Key: fmt.Append(nil, "key", i), Cost: 1}}
		r.Decide(context.Background(), r.now, a, make([]ratelimit.Verdict, 1))
		if len(r.open) >= mostOpen {
			t.Fatalf("%d are open", len(r.open))
		}
	}
	if all := r.windows(); len(all) != mostOpen+5 {
		t.Errorf("%d windows are recorded of %d", len(all), mostOpen+5)
	}
}
