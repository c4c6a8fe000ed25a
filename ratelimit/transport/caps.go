package transport

import "time"

// Caps are the most that callers of one port may have a server keep. The zero value caps nothing
// that it names 0.
type Caps struct {
	// Connections is how many there are at once; 0: any number. A Listener applies it.
	Connections int
	// Streams is how many calls one connection may have open at once; 0: any number. Callers learn it from the
	// settings.
	Streams        uint32
	HeaderBytes    uint32        // of a call, unpacked, as HTTP/2 counts them
	MessageBytes   int           // of a request
	RequestTimeout time.Duration // for a request to be complete, and for a reply to be taken
	// Idle is for how long a connection may be without a call before it is asked to end.
	Idle time.Duration
	// A connection that is as old as Age is asked to end, too. Calls under way may take AgeGrace.
	Age, AgeGrace time.Duration
}
