package transport

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// output is what is to be written to a connection.
//
// Any goroutine appends to frames, under the connection's lock, and calls flush. The first one writes without the lock;
// others leave their frames to it. It writes until there are none, in one call of Write for all that have come
// meanwhile. So frames are written in the order in which they were appended, and a batch of answers costs one write.
//
// The memory of a call goes from stream.cost to release when it is answered, and is given back when the frames are
// written. So a caller that does not read cannot have more answered than the budget holds.
type output struct {
	frames []byte // to be written
	// spare is the buffer of the write before, for frames to come. During a write, it is that of frames.
	spare []byte
	// counted is how many bytes of frames the connection's memory contains.
	counted int64
	release int64 // bytes of the budget that are given back with frames
	writing bool  // a goroutine is
	size    int64 // of what it writes
	since   int64 // when it began
	// timed is when the write deadline was set.
	timed  time.Time
	headed bool // a header block has been written
	// window is that of the connection: how many bytes of answers its caller takes now, defaultWindow at first.
	window int64
	// initial is the window of each stream by the caller's settings. A stream has what differs from it, so that a
	// change of the settings touches no stream.
	initial int64
	// room is signaled when frames have been written, or the connection has ended.
	room *sync.Cond
}

// mostSpare is how large a buffer may be that is used again.
const mostSpare = 64 << 10

// mostWaiting is how many bytes may wait to be written before nothing more is read. This is the backpressure for
// callers that send much and read little: the lead waits in flush, then TCP stops the caller.
const mostWaiting = 256 << 10

// flush writes what is to be written. If another goroutine is writing, that one does, and flush waits for it only if
// there is much.
func (c *connection) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushLocked()
}

// flushLocked is flush. It releases the lock while it writes or waits: fields that its caller has read before may have
// changed.
//
// A write that fails, or takes longer than RequestTimeout, cuts the connection. The lead finds that at its next read.
func (c *connection) flushLocked() {
	o := &c.out
	c.leaveLocked()
	if c.life.over {
		return
	}
	// These frames wait for as long as the caller does not read. Otherwise writeLocked counts them, at once.
	if o.writing {
		c.countLocked()
		c.chargeLocked()
	}
	for o.writing && len(o.frames) > mostWaiting && !c.life.over {
		o.room.Wait()
	}
	for !o.writing && len(o.frames) > 0 && !c.life.over {
		if err := c.writeLocked(); err != nil {
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				c.Budget.Stalled.Add(1)
			}
			o.frames = o.frames[:0] // or this loop would go on
			c.cut()
		}
	}
	// The last answer is written: the lead, which may be blocked in a read, ends the connection.
	if c.life.lastStream && len(c.calls.open) == 0 && !o.writing {
		c.soonerLocked(nanotime())
	}
}

// countLocked counts the frames that wait to be written. An answer can be much larger than what it answers, and is of
// no open call.
func (c *connection) countLocked() {
	frames := int64(len(c.out.frames))
	c.memory.add(frames - c.out.counted)
	c.out.counted = frames
}

// chargeLocked has the budget count what the connection holds. It releases the lock meanwhile.
func (c *connection) chargeLocked() {
	if change := c.memory.book(); change != 0 {
		c.mu.Unlock()
		c.Budget.charge(change)
		c.mu.Lock()
	}
}

// writeLocked writes all frames, and gives back their memory, and that of the calls that they answer. Frames that are
// appended during the write go to spare, and are written by the next one.
//
// Where the connection has ended meanwhile, let has given back all of its memory already.
func (c *connection) writeLocked() error {
	o := &c.out
	c.countLocked()
	frames, release := o.frames, o.release+o.counted
	most, now := c.Caps.RequestTimeout, time.Now()
	o.writing, o.size = true, o.counted
	o.since = int64(now.Sub(started))
	o.frames = o.spare[:0]
	o.counted, o.release = 0, 0
	// To set a deadline costs. An older one leaves a write at least three quarters of its time.
	if now.Sub(o.timed) > min(time.Second, most/4) {
		o.timed = now
		_ = c.SetWriteDeadline(now.Add(most))
	}
	err := c.writeUnlocked(frames)
	o.writing = false
	o.spare = nil
	if cap(frames) <= mostSpare {
		o.spare = frames
	}
	if c.life.over {
		return err
	}
	o.room.Broadcast()
	c.memory.add(-release)
	c.chargeLocked()
	return err
}

// writeUnlocked writes without the lock, and has it again also when the write panics.
func (c *connection) writeUnlocked(frames []byte) error {
	change := c.memory.book()
	c.mu.Unlock()
	defer c.mu.Lock()
	c.Budget.charge(change)
	_, err := c.Write(frames)
	return err
}

func (c *connection) writeFrameLocked(kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte) {
	c.out.frames = appendFrame(c.out.frames, kind, flags, stream, payload)
}

// headersLocked says a header block that uses no table. The first block of a connection also says that there is none
// (RFC 7541, 6.3), so that the caller keeps no memory for it.
func (c *connection) headersLocked(flags http2.Flags, stream uint32, block []byte) {
	if !c.out.headed {
		c.out.headed = true
		block = append([]byte{noTable}, block...)
	}
	c.out.frames = appendHeaders(c.out.frames, flags, stream, block)
}

// goAway asks the caller to begin no more calls.
func (c *connection) goAway() {
	c.mu.Lock()
	c.goAwayLocked(nanotime())
	c.mu.Unlock()
	c.flush()
}

// goodbye is the ping behind which the caller has read that it is to end.
var goodbye = [8]byte{'g', 'o', 'o', 'd', 'b', 'y', 'e'}

// goAwayLocked asks the caller to begin no more calls. Those on their way are answered: the last number is sent when
// the caller has answered a ping (RFC 9113, 6.8).
func (c *connection) goAwayLocked(now int64) {
	l := &c.life
	if l.asked != 0 {
		return
	}
	l.asked = now
	c.writeFrameLocked(frameGoAway, 0, 0, append(be32(1<<31-1), be32(0)...))
	c.writeFrameLocked(framePing, 0, 0, goodbye[:])
	c.soonerLocked(now + int64(lastCalls))
}

// lastCallsLocked says that later calls are not answered. Calls up to the latest one are answered. The connection ends
// when none is open: dueLocked.
func (c *connection) lastCallsLocked() {
	if l := &c.life; l.asked != 0 && !l.lastStream {
		l.lastStream, l.last = true, c.calls.latest
		c.writeFrameLocked(frameGoAway, 0, 0, append(be32(l.last), be32(0)...))
	}
}

// sendLocked says as much of a stream's data as the windows let it, in frames of mostFrame at most, and returns how
// much that is. It does not end the stream.
func (c *connection) sendLocked(s *stream, data []byte) (sent int) {
	for sent < len(data) {
		n := min(len(data)-sent, mostFrame, int(c.windowOf(s)))
		if n <= 0 {
			break
		}
		c.writeFrameLocked(frameData, 0, s.id, data[sent:sent+n])
		c.out.window -= int64(n)
		s.window -= int64(n)
		sent += n
	}
	return sent
}
