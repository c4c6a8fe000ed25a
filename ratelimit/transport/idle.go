package transport

import "time"

// idle bounds the frames of a caller that begin no call and bring nothing: pings, settings, priorities,
// windows, empty data. Each costs gRPC about as much as a call's, and nothing else bounds them. A caller
// has a stock of them, which grows with time and with its calls; one that has used it up is disconnected.
//
// The zero value has a whole stock. It is guarded by connection.mu.
type idle struct {
	used   int   // of the stock
	credit int   // what has been earned and is not taken off used yet
	at     int64 // until when time has been credited, in nanoseconds
}

const (
	// framesInStock are for the beginning of a connection: settings, windows, and the frames of a burst of
	// calls.
	framesInStock = 500
	// framesASecond is far more than proxies ping, or change their settings.
	framesASecond = 100
	// framesACall are for the data, windows and resets of a call, and the ping with which gRPC's clients
	// measure their bandwidth.
	framesACall = 8
	// framesAnAnswer are for the windows that a caller gives back for a frame of data.
	framesAnAnswer = 4
	// mostEarned is what calls earn for later: as many as may be open, and their windows, all reset at once.
	mostEarned = 4000
	// looksAFrame is how many calls may be looked at for the price of a frame.
	looksAFrame = 8
	// bytesALook is how large a window pays for a look.
	bytesALook = 128
	// leastData is how much of a message makes a frame of data no idle one.
	leastData = 32
)

func (i *idle) earn(frames int) { i.credit += frames }

// afford handles a frame, of a call that is open or not, and reports whether its caller may send it.
func (i *idle) afford(f *frame, open bool, now int64) bool {
	switch {
	case f.kind == frameHeaders:
		i.earn(framesACall)
		return true
	case f.kind == frameData && open && f.length >= leastData:
		return true // it is charged by its content
	}
	i.used -= i.credit
	i.credit = 0
	if every := int64(time.Second / framesASecond); now-i.at >= every {
		// Time fills the stock, and no more: a connection that was silent for a day has earned nothing for later.
		i.used = min(i.used, max(0, i.used-int((now-i.at)/every)))
		i.at += (now - i.at) / every * every
	}
	i.used = max(-mostEarned, i.used) + 1
	return i.used <= framesInStock
}
