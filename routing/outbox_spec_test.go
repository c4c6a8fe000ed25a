package routing

import (
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/moved"
)

// A parcel leaves when it is full, or when a request waits for it and no earlier one is to be sent. It is sent
// again on a new stream, until there is a receipt.
func TestOutbox(t *testing.T) {
	var o outbox
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

// The walk fills two parcels at a time, and fetches fill up to six more, one after the other, with later
// fetches together. Neither delays the other.
func TestOutboxHasRoomForBoth(t *testing.T) {
	var o outbox
	for range walkedAtOnce {
		if !o.room() {
			t.Fatalf("the walk has filled %d", len(o.sealed))
		}
		o.fullParcel()
	}
	sends := func() (sent int) {
		for ; o.next() != nil; sent++ {
			o.unsent++
		}
		return sent
	}
	if o.room() || sends() != walkedAtOnce {
		t.Fatalf("the walk may go on %v, with %d of %d parcels sent", o.room(), o.unsent, len(o.sealed))
	}
	for i := range parcelsAtOnce {
		if !o.roomForOne() {
			t.Fatalf("%d that are asked for are on their way, and there is no room for another", i)
		}
		o.add(1, 2, &moved.Entry{Key: keyOf(i)})
		o.urgent = true
		if sent := sends(); (sent == 1) != (i < parcelsAtOnce-walkedAtOnce) {
			t.Errorf("%d that are asked for are on their way, and %d more are sent", i, sent)
		}
	}
	if o.received(1) == nil || !o.room() {
		t.Error("the walk has room for one more, whatever is asked for")
	}
	o.received(2)
	if o.fullParcel(); !o.room() {
		t.Error("one of two is filled")
	}
	if sends() != 1 || o.open != nil {
		t.Error("what was asked for last went with what the walk has found")
	}
	o.add(1, 2, &moved.Entry{Key: keyOf(9)})
	o.urgent = true
	if o.received(3) == nil || sends() != 1 {
		t.Error("there is a receipt for one that was asked for: the next may go")
	}
}

// A parcel counts as full from the size on with which the walk's are sealed.
func TestFullParcels(t *testing.T) {
	for size, full := range map[int]int{parcelBytes - 1: 0, parcelBytes: 1} {
		o := outbox{sealed: []*parcel{{w: &moved.Writer{B: make([]byte, size)}}}}
		if got := o.full(); got != full {
			t.Errorf("a parcel of %d bytes: %d are full", size, got)
		}
	}
}

// A parcel that is full goes as it is.
func TestFullParcelGoes(t *testing.T) {
	var o outbox
	key := make([]byte, ratelimit.MaxKeyLen)
	n := 0
	for ; len(o.sealed) == 0 && n < parcelBytes; n++ {
		o.add(1, uint64(n), &moved.Entry{Key: key})
	}
	if len(o.sealed) != 1 || o.open != nil || len(o.sealed[0].w.B) < parcelBytes || len(o.sealed[0].hashes) != n {
		t.Errorf("%d accounts, %d sealed", n, len(o.sealed))
	}
}

// A receipt for a parcel that is to be sent again, and was not yet, leaves the next
// one to be sent.
func TestReceiptBeforeItIsSentAgain(t *testing.T) {
	var o outbox
	for i := range uint64(2) {
		o.add(5, i, &moved.Entry{Key: keyOf(int(i))})
		o.seal()
	}
	o.unsent = 2
	o.again()
	if p := o.received(1); p == nil || p.number != 1 {
		t.Fatalf("%+v", p)
	}
	if p := o.next(); p == nil || p.number != 2 {
		t.Errorf("to be sent is %+v", p)
	}
}
