package load

import (
	"strings"
	"testing"
	"time"
)

func TestReadRecorded(t *testing.T) {
	for name, text := range map[string]string{
		"csv":               "time,key,hits,node\n2.5,b,3,1\n1.5,a\n",
		"csv without names": "2.5,b,3,1\n1.5,a,1\n",
		"json lines":        "\n{\"time\":2.5,\"key\":\"b\",\"hits\":3,\"node\":1}\n\n{\"time\":1.5,\"key\":\"a\"}",
		"json, as dates":    `{"time":"2026-11-21T10:00:02.5Z","key":"b","hits":3,"node":1}` + "\n" + `{"time":"2026-11-21T10:00:01.5Z","key":"a"}`,
	} {
		r, err := ReadRecorded(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		a, _ := r.Play()()
		if len(r.Requests) != 2 || r.Keys[a.Key] != "a" || a.At != 0 || a.Cost != 1 || a.Node != -1 {
			t.Errorf("%s: %+v", name, r)
		}
		if b := r.Requests[1]; r.Keys[b.Key] != "b" || b.At != time.Second || b.Cost != 3 || b.Node != 1 {
			t.Errorf("%s: %+v", name, b)
		}
		if errs := r.Load().Validate(); errs != nil {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestBadTraces(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "empty",
		"time,key\n":                        "no requests",
		"1,a\nx,a":                          "line 2: time is \"x\"",
		"1,a\n1,a,b":                        "line 2: hits is \"b\"",
		"1,a,0":                             "hits is 0",
		"1,a,1,x":                           "node is \"x\"",
		"1,a,1,1000":                        "node is 1000",
		"1":                                 "1 columns",
		"{\"time\":1,\"kye\":\"a\"}":        "line 1",
		"{\"time\":1,\"key\":\"a\"}\n{":     "line 2",
		"{\"time\":\"soon\",\"key\":\"a\"}": "time is \"soon\"",
		"-1,a":                              "time is \"-1\"",
		"1,\"a":                             "trace",
	} {
		if _, err := ReadRecorded(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzRecorded(f *testing.F) {
	f.Add("1,a\n2,b,3,4")
	f.Add(`{"time":1,"key":"a"}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ReadRecorded(strings.NewReader(text))
		if err != nil {
			return
		}
		last := time.Duration(-1)
		for _, q := range r.Requests {
			if q.At < last || q.Key >= len(r.Keys) || q.Cost < 1 {
				t.Fatalf("%+v after %v", q, last)
			}
			last = q.At
		}
	})
}
