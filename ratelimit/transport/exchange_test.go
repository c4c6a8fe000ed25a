package transport

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// The ends of messages are found in pieces of any size.
func TestMessagesAreFollowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []byte
		ends := map[int]bool{}
		for range rapid.IntRange(1, 20).Draw(t, "messages") {
			all = append(all, text(strings.Repeat("a", rapid.IntRange(0, 300).Draw(t, "size")))...)
			ends[len(all)] = true
		}
		var m message
		for at := 0; at < len(all); {
			n := min(len(all)-at, rapid.IntRange(1, 400).Draw(t, "piece"))
			tail, ended := m.through(all[at:at+n], 1000)
			last, crossed := 0, false
			for i := at + 1; i <= at+n; i++ {
				if ends[i] {
					last, crossed = i, true
				}
			}
			at += n
			if ended != crossed || ended && tail != at-last {
				t.Fatalf("at %d: ended %t with %d behind it, want %t with %d", at, ended, tail, crossed, at-last)
			}
		}
	})
}

// A handler that does not take what its call sends holds what grpc-go keeps for it, and not only the bytes.
func TestSmallPiecesCostTheirBuffers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		budget := NewBudget(4 << 20)
		p := NewPort(Options{
			Caps: Default(), Budget: budget, Others: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				for b := make([]byte, mostFrame); ; { // as grpc-go, which keeps b
					if _, err := r.Body.Read(b); err != nil {
						return
					}
				}
			}),
		})
		s := startScript(p)
		s.head(1, false, ordinary("/x/Other")...)
		pieces := 0
		for err := error(nil); err == nil && pieces < 1000; pieces++ {
			err = s.WriteData(1, false, text(strings.Repeat("a", 40)))
			synctest.Wait()
		}
		if budget.Heaviest.Load() != 1 || pieces < 4<<20/mostFrame*3/4 || pieces > 4<<20/mostFrame*5/4 {
			t.Errorf("it ended after %d pieces, %d are counted", pieces, budget.Heaviest.Load())
		}
		s.Close()
		time.Sleep(time.Second)
		p.GracefulStop()
	})
}
