package transport

import "time"

// idle bounds the frames of a caller that begin no call and bring nothing: pings, settings, priorities,
// windows, empty data. Each costs gRPC about as much as a call's, and nothing else bounds them. A caller
// has a stock of them, which grows with time and with its calls; one that has used it up is disconnected.
//
// Priorities, extensions and GOAWAY also count, though they have no effect: each is read and checked. A flood of
// them ends its connection with ENHANCE_YOUR_CALM (RFC 9113, 10.5).
//
// The zero value has a whole stock. It is guarded by connection.mu.
type idle struct {
	// used is how much of the stock is used. It falls to 0 with time, and below 0 only with calls, to -mostEarned.
	used int
	// credit is what calls have earned and afford has not subtracted from used yet.
	credit int
	// at is until when time has been credited, in nanoseconds since the process began.
	at int64
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
	// mostEarned is what calls earn for later. A caller with 1000 open calls, as a node allows, may reset all of them
	// at once, and give back three windows for each.
	mostEarned = 4000
	// looksAFrame is how many calls may be looked at for the price of a frame. Without this price, 30 bytes of settings
	// cost 0.7 ms of a processor with 900 blocked calls.
	looksAFrame = 8
	// bytesALook is how large a window of the connection pays for a look. Clients with many streams on one small window
	// send such windows often: they are no flood.
	bytesALook = 128
	// leastData is how much of a message makes a frame of data no idle one. Shorter requests of honest callers are
	// covered by framesACall.
	leastData = 32
)

func (i *idle) earn(frames int) { i.credit += frames }

// afford handles a frame, of a call that is open or not, and reports whether its caller may send it. Headers are free:
// other bounds hold for the calls that they begin.
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
