package rls

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// ServeJSON answers POST /json: the request as protojson in the body, the answer as protojson with 200 (OK)
// or 429 (OVER_LIMIT). With 429 comes Retry-After: the seconds until every limit that refused may admit
// again. A bad request gets 400, 413 if it is too large, or 415 if a web page may have made a browser send
// it. Without a decision, or on an overloaded node, it gets 503 with Retry-After.
func (s *Service) ServeJSON(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if bug := recover(); bug != nil { // net/http would neither count it, nor log it above its debug level
			s.Bug(bug)
			writeJSONError(w, errInternal)
		}
	}()
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "use POST with a RateLimitRequest as JSON", http.StatusMethodNotAllowed)
		return
	}
	body, forget, err := s.readBody(w, r)
	defer forget()
	if err != nil {
		s.Stats.count(err)
		writeJSONError(w, err)
		return
	}
	text, answer, err := s.decideJSON(r, body)
	if err != nil {
		writeJSONError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if answer.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
		w.Header().Set("Retry-After", strconv.FormatInt(retryAfter(answer), 10))
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(append(text, '\n'))
}

// errOverloaded is the answer to a request that the gate refuses.
var errOverloaded = errors.New("overloaded: the request was rejected without a charge")

// decideJSON is the answer to a request that is complete, as text. Only now the call enters the gate: a body that comes
// slowly would hold a place. It leaves with the answer: one that its caller does not read refuses no other.
func (s *Service) decideJSON(r *http.Request, body []byte) (text []byte, answer *rlsv3.RateLimitResponse, err error) {
	if gate := s.options.Gate; gate != nil {
		// net/http reads the connection in another goroutine, and finds out now whether the caller is still there.
		// Requests whose callers have gone would be decoded in vain, and others wait for that.
		runtime.Gosched()
		switch {
		case r.Context().Err() != nil:
			gate.Late()
			return nil, nil, errGone
		case gate.EnterNow(s.clock()) != nil:
			return nil, nil, errOverloaded
		}
		defer gate.EndNow()
	}
	var request rlsv3.RateLimitRequest
	if err := protojson.Unmarshal(body, &request); err != nil {
		err = bad("malformed request: %v", err)
		s.Stats.count(err)
		return nil, nil, err
	}
	answer, err = s.answerMessage(r, &request)
	if err != nil {
		return nil, nil, err
	}
	text, err = protojson.Marshal(answer)
	if err != nil {
		return nil, nil, errInternal
	}
	return text, answer, nil
}

// foreign says why a request may be one that a page has a browser send: then it is not accepted. This port has no
// pages, and a strange one may have its own name point here (DNS rebinding). A page may send text without asking, and
// a browser says whose page it is. Other clients, curl among them, send neither.
func foreign(r *http.Request) string {
	if origin := r.Header.Get("Origin"); origin != "" {
		return fmt.Sprintf("the request comes from a page of %.200q: requests of pages are refused", origin)
	}
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	switch kind = strings.ToLower(strings.TrimSpace(kind)); kind {
	case "text/plain", "multipart/form-data":
		return fmt.Sprintf("the Content-Type is %s: send application/json", kind)
	}
	return ""
}

// retryAfter is when all that refused may admit again, in seconds, at least one.
func retryAfter(answer *rlsv3.RateLimitResponse) int64 {
	longest := int64(1)
	for _, st := range answer.GetStatuses() {
		if st.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
			longest = max(longest, st.GetDurationUntilReset().GetSeconds())
		}
	}
	return longest
}

// answerMessage goes the same way as gRPC does: over the bytes.
func (s *Service) answerMessage(r *http.Request, request *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	c := s.calls.Get().(*call)
	defer s.release(c)
	// Both ways decide by the same code, with the same bounds, because JSON becomes the bytes that
	// gRPC would have brought.
	// It cannot fail, for protojson accepts only texts in UTF-8.
	c.in, _ = proto.MarshalOptions{}.MarshalAppend(c.in[:0], request)
	if err := s.answer(r.Context(), c); err != nil {
		return nil, err
	}
	answer := new(rlsv3.RateLimitResponse)
	if err := proto.Unmarshal(c.out, answer); err != nil {
		return nil, fmt.Errorf("%w: %w", errInternal, err)
	}
	return answer, nil
}

// writeJSONError answers a client's mistake with its status, and all else with 503: the caller may repeat that in a
// second.
func writeJSONError(w http.ResponseWriter, err error) {
	if client, ok := errors.AsType[*badRequest](err); ok {
		http.Error(w, err.Error(), client.status)
		return
	}
	w.Header().Set("Retry-After", "1")
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}
