package routing

import (
	"sync/atomic"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/moved"
)

// A parcel leaves when it is full, or when a request waits for it and no earlier one is to be sent. It is sent
// again on a new stream, until there is a receipt.
func TestOutbox(t *testing.T) {
	o := outbox{numbers: new(atomic.Uint64)}
	add := func(k int) { o.add(1, uint64(k), &moved.Entry{Key: keyOf(k)}) }
	add(1)
	if o.next() != nil {
		t.Error("nobody is in a hurry")
	}
	o.urgent = true
	first := o.next()
	if first == nil || first.number != 1 || o.urgent {
		t.Fatalf("%+v", o)
	}
	add(2)
	o.urgent = true
	if o.next() != first {
		t.Error("the first is not sent yet")
	}
	o.unsent++
	second := o.next()
	if second == nil || second.number != 2 {
		t.Fatalf("%+v", second)
	}
	o.unsent++
	if o.next() != nil {
		t.Error("all is sent")
	}
	if o.received(3) != nil || o.received(2) != second || o.received(2) != nil || o.unsent != 1 {
		t.Errorf("%+v", o)
	}
	o.again()
	if o.next() != first {
		t.Error("there is a new stream, and no receipt")
	}
	add(3)
	if got := o.empties(); len(got) != 2 || got[0] != first || got[1].number != 3 || o.unsent != 0 || o.urgent || o.next() != nil {
		t.Errorf("%+v", o)
	}
	for range parcelsAtOnce {
		if !o.roomForOne() {
			t.Errorf("%d parcels are on their way, and there is no room for what is waited for", len(o.sealed))
		}
		add(4)
		o.seal()
	}
	if o.room() || !o.roomForOne() {
		t.Error("what somebody waits for may be put to what is sent then")
	}
	o.fullParcel()
	if o.room() || o.roomForOne() || len(o.sealed) != parcelsAtOnce+1 {
		t.Error("it has no room")
	}
	o.received(o.sealed[parcelsAtOnce].number)
	add(5)
	if o.urgent = true; o.unsent != 0 {
		t.Fatal(o.unsent)
	}
	o.unsent = len(o.sealed)
	if o.next() != nil {
		t.Error("as many are on their way as may be")
	}
}

// fullParcel adds accounts until a parcel is full.
func (o *outbox) fullParcel() {
	for n := len(o.sealed); len(o.sealed) == n; {
		o.add(1, 1, &moved.Entry{Key: make([]byte, ratelimit.MaxKeyLen)})
	}
}
