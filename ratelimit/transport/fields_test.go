package transport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
)

// reader is a decoder that keeps what it read last.
type reader struct {
	*hpack.Decoder
	got []hpack.HeaderField
}

func newReader() *reader {
	r := &reader{}
	r.Decoder = hpack.NewDecoder(tableSize, func(x hpack.HeaderField) {
		x.Sensitive = false // a field that is in a table for both is not what it was
		r.got = append(r.got, x)
	})
	r.SetMaxStringLength(tableSize)
	return r
}

func (r *reader) read(block []byte) error {
	r.got = r.got[:0]
	if _, err := r.Write(block); err != nil {
		return err
	}
	return r.Close()
}

// pair has a caller's blocks read by fields and by a decoder, and those of calls that are let in by
// another decoder, which is gRPC's.
type pair struct {
	testing.TB
	fields       *fields
	caller, grpc *reader
}

func newPair(t testing.TB) *pair {
	return &pair{t, newFields(gatedMethod, tableSize), newReader(), newReader()}
}

// read has a block be read, and says whether it makes sense. What gRPC reads must be what the caller
// meant, whatever was refused before.
func (p *pair) read(block []byte, refuse bool) bool {
	says, ok := p.fields.look(block)
	if p.caller.read(block) != nil {
		return false
	}
	if !ok {
		p.Fatalf("%x makes sense, and is not understood", block)
	}
	want := sight{patience: forever}
	for _, x := range p.caller.got {
		switch x.Name {
		case ":path":
			want.gated = x.Value == gatedMethod
		case timeoutName:
			want.patience = timeout(x.Value)
		}
	}
	if says.gated != want.gated || says.patience != want.patience {
		p.Fatalf("%x says %+v, want %+v", block, says, want)
	}
	by := original
	switch {
	case refuse:
		by = nobody
	case p.fields.apart:
		by = repacked
	}
	packed, ok := p.fields.take(block, by, nil)
	if !ok {
		p.Fatalf("%x makes sense, and cannot be taken", block)
	}
	if by == nobody {
		return true
	}
	if by == original {
		packed = block
	}
	if err := p.grpc.read(packed); err != nil || !slices.Equal(p.grpc.got, p.caller.got) {
		p.Fatalf("%x is %v, and was packed as %x: %v, %v", block, p.caller.got, packed, p.grpc.got, err)
	}
	return true
}

// resizedLate tells whether a block changes the table's size behind its beginning, which HTTP/2 does not
// allow and the decoder does where its table is empty.
func resizedLate(block []byte) bool {
	var x field
	for first := true; len(block) > 0; {
		index, rest := indexedField(block)
		if ok := index > 0; !ok {
			if rest, ok = x.next(block, tableSize); !ok {
				return false
			}
			if x.how == resize && !first {
				return true
			}
			first = first && x.how == resize
		} else {
			first = false
		}
		block = rest
	}
	return false
}

// For any header blocks of a caller, and any refused calls of it, gRPC reads the right fields of the others.
// The gate gets the calls with the caller's path and timeout.
func FuzzFields(f *testing.F) {
	for refused := range 8 {
		var all, b bytes.Buffer
		e := hpack.NewEncoder(&b)
		for i := range 8 {
			b.Reset()
			for _, x := range [][2]string{
				{":path", gatedMethod},
				{timeoutName, "20m"},
				{"traceparent", fmt.Sprintf("00-%032x-01", i)},
				{"x", "~|\x00"},
			} {
				_ = e.WriteField(hpack.HeaderField{Name: x[0], Value: x[1], Sensitive: i == 3})
			}
			if i == 5 {
				e.SetMaxDynamicTableSize(uint32(refused) * 40)
			}
			all.Write([]byte{byte(b.Len()), byte(refused >> (i % 3) & 1)})
			all.Write(b.Bytes())
		}
		f.Add(all.Bytes())
	}
	f.Add([]byte{6, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0x01, 2, 1, 0x20, 0x82})
	f.Fuzz(func(t *testing.T, all []byte) {
		p := newPair(t)
		for len(all) > 2 {
			n := min(int(all[0]), len(all)-2)
			if block := all[2 : 2+n]; resizedLate(block) || !p.read(block, all[1]&1 == 1) {
				return
			}
			all = all[2+n:]
		}
	})
}

// Blocks that no decoder of HPACK accepts are refused here: when they are checked, or at the latest when they
// enter the table, for any other reader.
func TestNonsenseIsNoHeader(t *testing.T) {
	long := func(first byte) []byte {
		return append(append(appendInteger([]byte{first}, 0, 7, tableSize+1), make([]byte, tableSize+1)...), 0)
	}
	for name, block := range map[string][]byte{
		"a field that is not there":          {0xfe},
		"field 0":                            {0x80},
		"a name that is not there":           {0x7e, 1, 'a'},
		"half a number":                      {0xff},
		"half a name":                        {0x40, 2, 'a'},
		"half a value":                       {0x44, 2, 'a'},
		"a number without an end":            bytes.Repeat([]byte{0xff}, 20),
		"a number of more than 63 bits":      {0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0},
		"a table of more than its size":      {0x3f, 0xe2, 0x1f},
		"a name that is no code":             {0x40, 0x81, 0, 1, 'a'},
		"a value that is no code":            {0x44, 0x84, 0xff, 0xff, 0xff, 0xff},
		"a name that is too long":            long(0x40),
		"a value that is too long":           long(0x44),
		"a value that is too long, unpacked": append(appendInteger([]byte{0x44}, 0x80, 7, 4000), make([]byte, 4000)...),
	} {
		for _, by := range []audience{nobody, original, repacked} {
			p := newPair(t)
			_, looked := p.fields.look(block)
			_, taken := p.fields.take(block, by, nil)
			if err := p.caller.read(block); err == nil || looked && taken {
				t.Errorf("%s, by %d: looked %v, taken %v; a decoder says %v", name, by, looked, taken, err)
			}
		}
	}
}

// A field that is larger than the table empties it, for gRPC as for the caller.
func TestFieldsLargerThanTheTable(t *testing.T) {
	put := func(name, value string) []byte {
		b := append(appendInteger([]byte{inserted}, 0, 7, len(name)), name...)
		return append(appendInteger(b, 0, 7, len(value)), value...)
	}
	again := []byte{0x84, indexed | staticFields + 1} // :path is /, and the latest field
	for refused := range 8 {
		p := newPair(t)
		for i, block := range [][]byte{
			put("a", "b"), again, put("x", strings.Repeat("y", tableSize-20)), put("c", "d"), again,
			{inserted | staticPath, 1, 'p'},
			{0x0f, staticFields + 1 - 15, 1, 'q'}, // the name of the latest
		} {
			if !p.read(block, refused>>(i%3)&1 == 1) {
				t.Fatalf("%x makes no sense", block)
			}
		}
		if n := p.fields.caller.added - p.fields.caller.evicted; n != 2 {
			t.Errorf("%d fields are in the table, want 2", n)
		}
	}
}

// A string's length is what it has when it is unpacked, and what is no code has none.
func TestLengthOfPackedText(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		s := make([]byte, r.IntN(40))
		for j := range s {
			if s[j] = "0123456789abcdef-:/.ZQX~"[r.IntN(24)]; i%3 == 0 {
				s[j] = byte(r.IntN(256))
			}
		}
		x := text{content: hpack.AppendHuffmanString(nil, string(s)), huffman: true}
		if n, ok := x.length(); !ok || n != len(s) {
			t.Fatalf("%x, which is %q: %d, %v", x.content, s, n, ok)
		}
		x.content = s // any bytes
		want, err := hpack.HuffmanDecodeToString(s)
		if n, ok := x.length(); ok != (err == nil) || ok && n != len(want) {
			t.Fatalf("%x: %d, %v, want %d, %v", s, n, ok, len(want), err)
		}
	}
}

// What a connection keeps of a caller's fields is bounded, however large those were that had to go.
func TestFieldsThatWentAreForgotten(t *testing.T) {
	p, b := newPair(t), bytes.Buffer{}
	e := hpack.NewEncoder(&b)
	for i := range 2000 {
		b.Reset()
		_ = e.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat(string(rune('a'+i%26)), 1+i*997%3900)})
		if i%7 == 0 {
			e.SetMaxDynamicTableSize(0)
			e.SetMaxDynamicTableSize(tableSize)
		}
		p.read(b.Bytes(), i%2 == 0)
	}
	kept := 0
	for i := range p.fields.caller.slots {
		kept += cap(p.fields.caller.slots[i].packed)
	}
	if most := 2*tableSize + len(p.fields.caller.slots)*mostSpare; kept > most {
		t.Errorf("%d bytes are kept, want %d at most", kept, most)
	}
}

// A block that is larger than a frame may be goes to gRPC in several.
func TestLargeBlocksAreDivided(t *testing.T) {
	b := appendHeaders(nil, flagEndStream, 7, make([]byte, 2*mostFrame+1))
	if got := kinds(b); got != "HEADERS(7) CONTINUATION(7) CONTINUATION(7) " {
		t.Errorf("frames %s", got)
	}
	var w walker
	begun, _, _ := w.next(b)
	if !begun || w.flags != flagEndStream || b[len(b)-1-frameHeader+4] != flagEndHeaders {
		t.Errorf("the first has flags %d, the last %d", w.flags, b[len(b)-1-frameHeader+4])
	}
}

func TestTimeouts(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"20m": 20 * time.Millisecond, "0m": 0, "5S": 5 * time.Second, "1H": time.Hour, "3M": 3 * time.Minute,
		"99999999u": 99999999 * time.Microsecond, "7n": 7,
		"": forever, "m": forever, "20": forever, "-1m": forever, "2x0m": forever,
		"123456789m": forever, "99999999H": forever, "5s": forever,
	} {
		if got := timeout(s); got != want {
			t.Errorf("%q is %v, want %v", s, got, want)
		}
	}
}
