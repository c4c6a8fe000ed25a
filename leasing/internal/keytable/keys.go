package keytable

import "unsafe"

// keys are the bytes of keys, in grains of 16 bytes. A page has keys of one number of
// grains, and when the last of them is removed it is free for keys of any length: keys
// whose lengths change over time take what two generations of them take. A key's number is its page, and its first grain there.
type keys struct {
	pages []page
	room  [mostGrains + 1]uint32 // by how many grains: a page with room, plus 1, the first of a list; 0: none. In [0]: pages without keys
}

// page is 64 grains. Free places are a list through their first byte.
type page struct {
	bytes      *[pageGrains * grain]byte
	next, prev uint32 // pages of the same list, plus 1
	grains     uint8  // of a key; 0: it has none
	live       uint8  // keys
	used       uint8  // grains that were ever used since it got its first key
	free       uint8  // the first grain of a free place, plus 1; 0: none
}

const (
	grain      = 16
	pageGrains = 64 // 1 KiB
	mostGrains = MaxKeyLen / grain
)

func grainsFor(n int) uint8 { return uint8((n + grain - 1) / grain) }

func (k *keys) bytes(number uint32, n uint8) []byte {
	if n == 0 {
		return nil
	}
	at := number % pageGrains * grain
	return k.pages[number/pageGrains].bytes[at : at+uint32(n)]
}

// add keeps a key's bytes, and returns its number.
func (k *keys) add(a *Arena, key []byte) uint32 {
	n := grainsFor(len(key))
	if n == 0 {
		return 0
	}
	if k.room[n] == 0 {
		k.begin(a, n)
	}
	number := k.room[n] - 1
	p := &k.pages[number]
	at := p.used
	if p.free != 0 {
		at = p.free - 1
		p.free = p.bytes[int(at)*grain]
	} else {
		p.used += n
	}
	p.live++
	if p.free == 0 && p.used+n > pageGrains {
		k.unlink(number, n) // it is full
	}
	copy(p.bytes[int(at)*grain:], key)
	return number*pageGrains + uint32(at)
}

// begin makes a page for keys of n grains, of one that has none, or a new one.
func (k *keys) begin(a *Arena, n uint8) {
	number := k.room[0]
	if number != 0 {
		k.unlink(number-1, 0)
	} else {
		k.pages = append(k.pages, page{bytes: (*[pageGrains * grain]byte)(a.take(int(unsafe.Sizeof([pageGrains * grain]byte{}))))})
		number = uint32(len(k.pages))
	}
	k.pages[number-1].grains = n
	k.link(number-1, n)
}

// remove leaves a key's place to others.
func (k *keys) remove(number uint32, length uint8) {
	n := grainsFor(int(length))
	if n == 0 {
		return
	}
	of, at := number/pageGrains, uint8(number%pageGrains)
	p := &k.pages[of]
	full := p.free == 0 && p.used+n > pageGrains
	p.bytes[int(at)*grain] = p.free
	p.free = at + 1
	p.live--
	switch {
	case p.live == 0:
		if !full {
			k.unlink(of, n)
		}
		p.grains, p.used, p.free = 0, 0, 0
		k.link(of, 0)
	case full:
		k.link(of, n)
	}
}

// link puts a page first in a list.
func (k *keys) link(number uint32, list uint8) {
	p := &k.pages[number]
	p.prev, p.next = 0, k.room[list]
	if p.next != 0 {
		k.pages[p.next-1].prev = number + 1
	}
	k.room[list] = number + 1
}

// unlink takes a page out of its list.
func (k *keys) unlink(number uint32, list uint8) {
	p := &k.pages[number]
	if p.next != 0 {
		k.pages[p.next-1].prev = p.prev
	}
	if p.prev != 0 {
		k.pages[p.prev-1].next = p.next
	} else {
		k.room[list] = p.next
	}
}
