package debugport

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gate/sluice/bench/sluicetest"
)

// Each line of a file is a request of its own: a bad line costs only itself, and is named. The store's silence ends all.
func TestImportSetsEachLine(t *testing.T) {
	var mu sync.Mutex
	var got []string
	status := http.StatusOK
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprint(r.Method, " ", r.URL, " ", r.Header.Get("From"), " ", string(body)))
		if strings.Contains(r.URL.RawQuery, "none") {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":"no rule matches"}`)
			return
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "{}")
	}))
	defer node.Close()
	file := filepath.Join(t.TempDir(), "o.csv")
	imported := func(text string) (int, string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := sluicetest.Run(new(Limit), []string{"import", "--token=t", "--by=ann", "--debug", strings.TrimPrefix(node.URL, "http://"), file}, address)
		return code, out + errs
	}
	code, said := imported("limit,descriptor,domain,by,reason\n1,a=b,d,,\"x, y\"\n\n2,none=1,d,,\n3,a=b,d,,\n4,c\n5, a=c,d,,\nx,a=d,d,,\n0,a=+&c=%26,e f,bob,\n")
	slices.Sort(got)
	want := []string{
		`PUT /v1/overrides/d?a=b ann {"limit":1,"reason":"x, y"}`,
		`PUT /v1/overrides/d?a=b ann {"limit":3,"reason":""}`,
		`PUT /v1/overrides/d?none=1 ann {"limit":2,"reason":""}`,
		`PUT /v1/overrides/e%20f?a=%2B&c=%26 bob {"limit":0,"reason":""}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("requests\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, part := range []string{
		"3 overrides set, 4 lines refused", ":4: " + strings.TrimPrefix(node.URL, "http://") + ": no rule matches",
		":6: wrong number of fields", ":7: the descriptor is", ":8: limit is",
	} {
		if code != 1 || !strings.Contains(said, part) {
			t.Errorf("exit code %d, and it prints\n%s\nwithout %s", code, said, part)
		}
	}
	for text, part := range map[string]string{
		"":                                      "no line of column names",
		"domain,limit\n":                        "the column descriptor is missing",
		"domain,descriptor,limit,limit\n":       "unknown or repeated column",
		"domain,descriptor,limit,<script>\n":    "unknown or repeated column",
		"domain,descriptor,limit\nd,a=b,1\n":    "1 override set, 0 lines refused",
		"domain,descriptor,limit\nd,\"a=b,1\nx": "extraneous or missing",
	} {
		if _, said := imported(text); !strings.Contains(said, part) {
			t.Errorf("%q prints %s, must be %s", text, said, part)
		}
	}
	// A stray quote costs its own line only, and a mark of the encoding at the beginning of a file nothing.
	code, said = imported("\ufeffdomain,descriptor,limit,reason\r\nd,a=b,1,\"ticket 1\r\nd,a=c,2,\r\nd,a=d,3,\"ticket 2\r\nd,a=e,4,\"x\"\r\n")
	if code != 1 || !strings.Contains(said, "2 overrides set, 2 lines refused") || !strings.Contains(said, ":2: ") ||
		!strings.Contains(said, ":4: ") {
		t.Errorf("of a file with two stray quotes: %d %s", code, said)
	}
	code, said = imported("domain,descriptor,limit\nd,a=" + strings.Repeat("b", 1<<17) + ",x\nd,a=c,2")
	if code != 1 || !strings.Contains(said, "1 override set, 1 line refused") {
		t.Errorf("of a file with a long line: %d %s", code, said)
	}
	mu.Lock()
	status = http.StatusServiceUnavailable
	mu.Unlock()
	many := "domain,descriptor,limit\n" + "d,a=b,1\n" + "d,a=c,1\n"
	if code, said := imported(many); code != 1 || !strings.Contains(said, "0 overrides set before: import the file again") {
		t.Errorf("without a store it ends with %d and %s", code, said)
	}
}
