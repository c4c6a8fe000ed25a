package keytable

import (
	"encoding/binary"
	"unsafe"
)

// keys are the bytes of keys, in grains of 16 bytes. A key's number is that of its
// first grain; grains of one page follow each other, and none crosses pages. Keys
// that were removed leave their grains to others that need as many.
type keys struct {
	pages []unsafe.Pointer
	used  uint32                 // grains of the last page
	free  [mostGrains + 1]uint32 // by how many grains: the first of a list, plus 1, whose links are in the grains; 0: none
}

const (
	grain      = 16
	pageGrains = 64 // 1 KiB
	mostGrains = MaxKeyLen / grain
)

func grainsFor(n int) uint32 { return uint32((n + grain - 1) / grain) }

func (k *keys) at(number uint32) unsafe.Pointer {
	return unsafe.Add(k.pages[number/pageGrains], int(number%pageGrains)*grain)
}

func (k *keys) bytes(number uint32, n uint8) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(k.at(number)), int(n))
}

// add keeps a key's bytes, and returns its number.
func (k *keys) add(a *Arena, key []byte) uint32 {
	n := grainsFor(len(key))
	if n == 0 {
		return 0
	}
	number := k.free[n] - 1
	if k.free[n] != 0 {
		k.free[n] = binary.NativeEndian.Uint32(k.bytes(number, grain))
	} else {
		if len(k.pages) == 0 || k.used+n > pageGrains {
			k.pages, k.used = append(k.pages, a.take(pageGrains*grain)), 0
		}
		number = uint32(len(k.pages)-1)*pageGrains + k.used
		k.used += n
	}
	copy(k.bytes(number, uint8(n*grain)), key)
	return number
}

// remove leaves a key's grains to others.
func (k *keys) remove(number uint32, length uint8) {
	n := grainsFor(int(length))
	if n == 0 {
		return
	}
	binary.NativeEndian.PutUint32(k.bytes(number, grain), k.free[n])
	k.free[n] = number + 1
}
