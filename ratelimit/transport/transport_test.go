package transport

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pretended is a holder of so many bytes since an instant.
type pretended struct {
	budget *Budget
	bytes  int64
	since  int64
	over   bool
}

func (p *pretended) holds(since int64) (now, long int64) {
	if p.since <= since {
		long = p.bytes
	}
	return p.bytes, long
}

func (p *pretended) end() {
	p.budget.charge(-p.bytes)
	p.bytes, p.over = 0, true
}

// Who holds most for longer than a moment goes first: the young stay, however much they hold, as long as the others
// hold an eighth. A few calls that a busy node has made wait are not what fills a budget: who does is ended, though he
// has begun just now.
func TestHeaviestIsWhoFillsTheBudget(t *testing.T) {
	young, old := nanotime()+int64(time.Hour), nanotime()-int64(2*moment)
	for _, c := range []struct {
		holders []pretended
		more    int64
		ended   []bool
	}{
		{
			[]pretended{{bytes: 600, since: young}, {bytes: 130, since: old}, {bytes: 270, since: old}},
			1,
			[]bool{false, false, true},
		},
		{[]pretended{{bytes: 600, since: young}, {bytes: 130, since: old}}, 700, []bool{true, true}},
		{[]pretended{{bytes: 100, since: old}, {bytes: 900, since: young}}, 1, []bool{false, true}},
	} {
		b := NewBudget(1000)
		left, ended := c.more, uint64(0)
		for i := range c.holders {
			p := &c.holders[i]
			p.budget = b
			b.join(p)
			b.charge(p.bytes)
		}
		b.charge(c.more)
		for i, p := range c.holders {
			if left += p.bytes; p.over != c.ended[i] {
				t.Errorf("%+v", p)
			}
			if p.over {
				ended++
			}
		}
		if b.Held() != left || b.Heaviest.Load() != ended {
			t.Errorf("%d bytes are held, must be %d, and %d were counted", b.Held(), left, b.Heaviest.Load())
		}
	}
}

// passing is a holder whose end lets another take as much.
type passing struct {
	pretended
	to *pretended
}

func (p *passing) end() {
	p.to.bytes += p.bytes
	p.budget.held.Add(p.bytes)
	p.pretended.end()
}

// A caller that holds little does not end for others that grow while the heaviest ends.
func TestLightHoldersOutlastThoseThatGrow(t *testing.T) {
	b, now := NewBudget(1000), nanotime()
	light, next := &pretended{budget: b, since: now, bytes: 10}, &pretended{budget: b, since: now}
	heavy := &passing{pretended{budget: b, since: now, bytes: 800}, next}
	for _, h := range []holder{heavy, light, next} {
		b.join(h)
	}
	b.charge(810)
	b.charge(200)
	if !heavy.over || !next.over || light.over {
		t.Errorf("ended: the heaviest %t, one that grew %t, a light one %t", heavy.over, next.over, light.over)
	}
}

// ready is a listener that has any number of connections ready.
type ready struct {
	net.Listener
	left int
}

func (r *ready) Accept() (net.Conn, error) {
	if r.left--; r.left < 0 {
		return nil, net.ErrClosed
	}
	c, _ := net.Pipe()
	return c, nil
}

// Each connection of thousands that are opened at once begins before the next is taken,
// so that those that wait are not in the scheduler's queue, before everybody's calls.
func TestListenerTakesOneAfterTheOther(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := Listen(&ready{left: 1000}, 0, nil)
	var waiting, most atomic.Int32
	var all sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		most.Store(max(most.Load(), waiting.Add(1)))
		all.Go(func() {
			waiting.Add(-1)
			c.Close()
		})
	}
	all.Wait()
	if n := most.Load(); n > 10 {
		t.Errorf("%d connections of 1000 were taken and had not begun", n)
	}
}

// One connection too many closes the one that has been silent longest.
func TestListenerClosesTheSilent(t *testing.T) {
	raw := listens(t)
	budget := NewBudget(1)
	l := Listen(raw, 3, budget)
	defer l.Close()
	var there, here []net.Conn
	dial := func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		a, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		there, here = append(there, c), append(here, a)
	}
	for range 3 {
		dial()
	}
	one := make([]byte, 1)
	for _, i := range []int{0, 2} { // the second says nothing
		if _, err := there[i].Write(one); err != nil {
			t.Fatal(err)
		}
		if _, err := here[i].Read(one); err != nil {
			t.Fatal(err)
		}
	}
	dial()
	if _, err := there[1].Read(one); err == nil {
		t.Error("the silent one is open")
	}
	for _, i := range []int{0, 2, 3} {
		if _, err := here[i].Write(one); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if len(l.conns) != 3 || budget.Crowded.Load() != 1 {
		t.Errorf("%d are open, %d were closed", len(l.conns), budget.Crowded.Load())
	}
	for i := range here {
		here[i].Close()
		there[i].Close()
	}
	if len(l.conns) != 0 {
		t.Errorf("%d are open", len(l.conns))
	}
}

// A body in flight counts until it is let go, and one that has held most for long is ended for others.
func TestBodies(t *testing.T) {
	b := NewBudget(100 << 10)
	ended := 0
	slow := b.Body(func() { ended++ })
	slow.since -= int64(2 * moment)
	if !slow.Grow(50 << 10) {
		t.Fatal("it may not grow")
	}
	quick := b.Body(func() { t.Error("the wrong one was ended") })
	if !quick.Grow(40<<10) || ended != 1 || slow.Grow(1) || !slow.Ended() {
		t.Errorf("%d were ended", ended)
	}
	slow.Close()
	quick.Close()
	if b.Held() != 0 {
		t.Errorf("%d bytes are left", b.Held())
	}
	var none *Budget
	v := none.Body(func() {})
	if !v.Grow(1 << 30) {
		t.Error("without a budget there is no bound")
	}
	v.Close()
}
