package account_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/ledgertest/specpage"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var rewrite = flag.Bool("rewrite-page", false, "have TestPageExamples write into the page what the ledgers answer")

// playBegins is the start of a day, in the future of a Redis' own clock, by which accounts expire.
const playBegins ratelimit.LedgerTime = 20_834 * 86_400 * 1_000_000

// player sends the messages of an example to both ledgers.
type player struct {
	*testing.T
	limit  ratelimit.Limit
	now    ratelimit.LedgerTime
	memory *account.Memory
	redis  *account.Redis
	server *redistest.Server
	seqs   map[string]uint64
	claim  account.Claim // the last
}

// The examples of the specification are played against both ledgers: each gives the answers of the page.
//
//	go test ./leasing/account -run TestPageExamples -rewrite-page
//
// writes their answers into the page. Then read the sentences of these examples again.
func TestPageExamples(t *testing.T) {
	page, server := specpage.Read(t), redistest.Shared(t)
	played := regexp.MustCompile(`(?s)<!-- play: ([^\n]*) -->\n(.*?)<!-- end -->`)
	text := played.ReplaceAllStringFunc(page.Text, func(all string) string {
		m := played.FindStringSubmatch(all)
		table := newPlayer(t, server, m[1]).play(m[2])
		if table != m[2] && !*rewrite {
			t.Errorf("the page shows\n%s\nand it is\n%s", m[2], table)
		}
		return strings.Replace(all, m[2], table, 1)
	})
	if n := len(played.FindAllString(page.Text, -1)); n < 5 {
		t.Errorf("%d examples", n)
	}
	if *rewrite {
		page.Text = text
		page.Write()
	}
}

var numbers = regexp.MustCompile(`[0-9]+`)

// The numbers in the sentences of an example are in its table.
func TestPageSentencesSayWhatExamplesShow(t *testing.T) {
	for _, section := range strings.Split(specpage.Read(t).Text, "\n### ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		prose, table, ok := strings.Cut(body, "<!-- play: ")
		table, _, _ = strings.Cut(table, "<!-- end -->")
		if !ok {
			t.Errorf("%s has no example", title)
		}
		shown := map[string]bool{}
		for _, n := range numbers.FindAllString(table, -1) {
			shown[n] = true
		}
		for _, n := range numbers.FindAllString(prose, -1) {
			if !shown[n] {
				t.Errorf("%s: the sentences say %s, which the example does not", title, n)
			}
		}
	}
}

// newPlayer reads "100 a minute", or "10 a second, burst 10".
func newPlayer(t *testing.T, server *redistest.Server, rule string) *player {
	p := &player{T: t, now: playBegins, server: server, seqs: map[string]uint64{}}
	var n, burst int64
	var unit string
	if _, err := fmt.Sscanf(strings.ReplaceAll(rule, ",", ""), "%d a %s", &n, &unit); err != nil {
		t.Fatal(err)
	}
	of, ok := ratelimit.ParseUnit(unit)
	if p.limit = (ratelimit.Limit{Unit: of, Requests: ratelimit.Tokens(n)}); !ok {
		t.Fatal(rule)
	}
	if _, text, ok := strings.Cut(rule, "burst "); ok {
		burst, _ = strconv.ParseInt(text, 10, 64)
		p.limit.Algorithm, p.limit.Burst = ratelimit.TokenBucket, ratelimit.Tokens(burst)
	}
	clock := func() ratelimit.LedgerTime { return p.now }
	p.memory = account.NewMemory(clock)
	client := server.Client()
	t.Cleanup(func() { client.Close() })
	server.Do("FLUSHALL")
	var err error
	if p.redis, err = account.NewRedis(client, "page:"); err != nil {
		t.Fatal(err)
	}
	p.redis.GoBy(clock)
	if _, _, err := p.redis.Settle(t.Context(), nil, nil); err != nil { // so that draws are plain ones
		t.Fatal(err)
	}
	return p
}

// play sends what a table has, and returns it with what was answered.
func (p *player) play(table string) string {
	p.Helper()
	lines := strings.SplitAfter(table, "\n")
	for i, row := range specpage.RowsOf(table) {
		after, ok := strings.CutSuffix(row[0], " ms")
		ms, err := strconv.ParseInt(after, 10, 64)
		if !ok || err != nil {
			p.Fatal(row)
		}
		p.now = playBegins.Add(time.Duration(ms) * time.Millisecond)
		answer := ""
		if row[1] == "ledger" {
			p.memory.Lose(nil, "7")
			p.server.Do("FLUSHALL")
		} else {
			answer = p.answered(row[1], row[2])
		}
		lines[i+2] = fmt.Sprintf("| %s | %s | %s | %s |\n", row[0], row[1], row[2], answer)
	}
	return strings.Join(lines, "")
}

// answered is what both ledgers answer to a message.
func (p *player) answered(holder, message string) string {
	p.Helper()
	p.claim = p.read(holder, message)
	var all [2]string
	for i, ledger := range []account.Ledger{p.memory, p.redis} {
		grants := make([]account.Grant, 1)
		if _, _, err := ledger.Settle(context.Background(), []account.Claim{p.claim}, grants); err != nil {
			p.Fatal(err)
		}
		all[i] = p.shown(&grants[0])
	}
	if all[0] != all[1] {
		p.Errorf("%s: %s: memory answers %q, and Redis %q", holder, message, all[0], all[1])
	}
	return all[0]
}

// read reads a message: "draw 5", or "claim taken 5 spent 3 need 1", with more of the same kind.
func (p *player) read(holder, message string) account.Claim {
	p.Helper()
	p.seqs[holder]++
	c := account.Claim{
		Key: "k", Limit: p.limit, Holder: ratelimit.Holder(holder[0]), Seq: p.seqs[holder],
	}
	if p.limit.Algorithm != ratelimit.TokenBucket {
		c.Window = p.limit.WindowAt(p.now)
	}
	words := strings.Fields(strings.ReplaceAll(message, " ms", ""))
	if words[0] == "draw" {
		c.Seq, words = 0, append([]string{"want"}, words[1:]...)
	} else {
		words = words[1:]
	}
	for ; len(words) > 1; words = words[2:] {
		n, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			p.Fatal(message, err)
		}
		switch words[0] {
		case "taken":
			c.Taken = ratelimit.Tokens(n)
		case "spent":
			c.Spent = ratelimit.Tokens(n)
		case "need":
			c.Need, c.Want = ratelimit.Tokens(n), ratelimit.Tokens(n)
		case "want", "lease":
			c.Want = ratelimit.Tokens(n)
		case "unit":
			c.Unit = ratelimit.Tokens(n)
		case "seq":
			c.Seq = uint64(n)
		case "slot":
			c.Window = account.BucketSlotAt(playBegins, &p.limit) + ratelimit.Window(n)
		default:
			p.Fatal(message)
		}
	}
	return c
}

// shown is an answer, as the page has it.
func (p *player) shown(g *account.Grant) string {
	switch {
	case errors.Is(g.Err, account.ErrOvertaken):
		return "overtaken"
	case g.Err != nil:
		p.Fatal(g.Err)
	case p.claim.Draws():
		return fmt.Sprintf("total %d, sum %d: owns %d", g.Total, g.Sum, g.Owned(p.claim.Want, &p.limit))
	}
	text := fmt.Sprintf("granted %d, total %d, sum %d, in hand %d", g.Granted, g.Total, g.Sum, g.InHand)
	if cut := g.Cut(&p.claim); cut != 0 {
		text += fmt.Sprintf(", cut %d", cut)
	}
	if g.Recalling {
		text += ", recalling"
	}
	return text
}
