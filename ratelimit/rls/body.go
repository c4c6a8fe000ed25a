package rls

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"time"
)

// errCrowded says that a body was given up for others.
var errCrowded = errors.New("too many requests are being read: try again")

// firstRead is what a body is read into at first: nearly all fit.
const firstRead = 2 << 10

// turn is how much of a body is read before others have their turn.
const turn = 4 << 10

// readBody reads a request's body, and checks it as it arrives: a body that is too large, too deep or has too many
// parts is refused before its end. The read bytes count in the budget until the caller calls the returned function.
func (s *Service) readBody(w http.ResponseWriter, r *http.Request) (body []byte, forget func(), err error) {
	if why := foreign(r); why != "" {
		return nil, func() {}, &badRequest{why, http.StatusUnsupportedMediaType}
	}
	most := s.options.MaxRequestBytes
	// What says itself that it is too large is not read at all.
	if r.ContentLength > int64(most) {
		return nil, func() {}, s.tooLarge()
	}
	reading := http.NewResponseController(w)
	// The budget may have to end this body from another goroutine. A deadline that has passed makes
	// the read under way return.
	held := s.options.Budget.Body(func() { _ = reading.SetReadDeadline(time.Now()) })
	var seen shape
	body = make([]byte, 0, firstRead)
	// A caller may say nothing of the length, or not the truth.
	from := http.MaxBytesReader(w, r.Body, int64(most))
	for {
		// The buffer grows by doubling, and each time the budget is asked first: a body costs what
		// has come of it, not what its header says.
		if len(body) == cap(body) {
			larger := make([]byte, len(body), 2*cap(body))
			if !held.Grow(int64(cap(larger))) {
				return nil, held.Close, errCrowded
			}
			copy(larger, body)
			body = larger
		}
		n, err := from.Read(body[len(body):min(cap(body), len(body)+turn)])
		// Even with an error a read may have brought bytes.
		if bad := seen.add(body[len(body) : len(body)+n]); bad != nil {
			return nil, held.Close, bad
		}
		body = body[:len(body)+n]
		// There may be more at once, of this body and of a thousand others. A call that came behind
		// them waits for a turn of each, and not for all of each.
		if n >= firstRead {
			runtime.Gosched()
		}
		switch {
		case errors.Is(err, io.EOF):
			return body, held.Close, nil
		// The error is that of the deadline which the budget has set.
		case err != nil && held.Ended():
			return nil, held.Close, errCrowded
		case err != nil:
			if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
				return nil, held.Close, s.tooLarge()
			}
			return nil, held.Close, bad("request could not be read: %v", err)
		}
	}
}

// tooLarge is the error for a body beyond the bound.
func (s *Service) tooLarge() error {
	return &badRequest{
		fmt.Sprintf("request is larger than %d bytes", s.options.MaxRequestBytes), http.StatusRequestEntityTooLarge,
	}
}

// maxDepth is how deep a request may be nested; one that means anything has 5.
const maxDepth = 10

// shape counts the parts of a request in JSON as its bytes arrive: decoded, they cost far more. It does not
// judge invalid JSON.
type shape struct {
	depth, descriptors, entries, all int
	quoted, escaped                  bool
}

// add handles the next bytes of the body. It keeps its state from piece to piece: a piece may end within a string or an
// escape.
func (s *shape) add(b []byte) error {
	for _, c := range b {
		switch {
		case s.escaped:
			s.escaped = false
		// Brackets within a string are text.
		case s.quoted:
			s.escaped, s.quoted = c == '\\', c != '"'
		case c == '"':
			s.quoted = true
		case c == '}' || c == ']':
			s.depth--
		case c == '{' || c == '[':
			if err := s.opened(c == '{'); err != nil {
				return err
			}
		}
	}
	return nil
}

// opened handles the beginning of an object or a list. A request is {"descriptors": [{"entries": [{: the third brace or
// bracket begins a descriptor, the fifth an entry.
func (s *shape) opened(object bool) error {
	s.depth++
	switch {
	case s.depth > maxDepth:
		return bad("malformed request: it is nested more than %d deep", maxDepth)
	case object && s.depth == 3:
		s.descriptors++
		s.entries = 0
	case object && s.depth == 5:
		s.entries++
		s.all++
	}
	switch {
	case s.descriptors > MaxDescriptors:
		return bad("request has more than %d descriptors", MaxDescriptors)
	case s.entries > MaxEntries:
		return bad("descriptor %d has more than %d entries", s.descriptors-1, MaxEntries)
	case s.all > MaxAllEntries:
		return bad("request has more than %d entries", MaxAllEntries)
	}
	return nil
}
