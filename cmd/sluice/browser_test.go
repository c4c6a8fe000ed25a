package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// browserPath finds a Chromium, or skips the test and says so.
func browserPath(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("REPORTED MISSING: there is no Chromium here, and the console was not tried in a browser (make deps installs it where the system has it)")
	return ""
}

// browser is a Chromium under the DevTools protocol, over a pipe: messages in JSON that end with a zero byte.
type browser struct {
	*testing.T
	to      io.Writer
	session string

	mu      sync.Mutex
	n       int                         // guarded by mu: requests so far
	waiting map[int]chan map[string]any // guarded by mu, by request
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	theirs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(browserPath(t), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
		"--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{theirs, theirOut} // 3 and 4, as it expects them
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	theirOut.Close()
	b := &browser{T: t, to: to, waiting: map[int]chan map[string]any{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.read(from)
	}()
	t.Cleanup(func() {
		// Without its pipe a Chromium ends in order: after its own processes, which write into its
		// directory, and would do so while that is being removed if it was killed.
		to.Close()
		kill := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait()
		from.Close()
		<-ended
	})
	target := b.call("Target.createTarget", map[string]any{"url": "about:blank"})
	b.session = b.call("Target.attachToTarget", map[string]any{"targetId": target["targetId"], "flatten": true})["sessionId"].(string)
	return b
}

// read hands answers to who waits for them, until the browser ends.
func (b *browser) read(from io.Reader) {
	r := bufio.NewReader(from)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID     int
			Result map[string]any
			Error  map[string]any
		}
		if json.Unmarshal(text[:len(text)-1], &m) != nil || m.ID == 0 {
			continue // an event
		}
		if m.Error != nil {
			m.Result = map[string]any{"error": m.Error}
		}
		b.mu.Lock()
		answer := b.waiting[m.ID]
		delete(b.waiting, m.ID)
		b.mu.Unlock()
		if answer != nil {
			answer <- m.Result
		}
	}
}

// call asks the browser, and waits for its answer.
func (b *browser) call(method string, params map[string]any) map[string]any {
	b.Helper()
	answer := make(chan map[string]any, 1)
	b.mu.Lock()
	b.n++
	message := map[string]any{"id": b.n, "method": method, "params": params}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	b.waiting[b.n] = answer
	text, err := json.Marshal(message)
	if err == nil {
		_, err = b.to.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		b.Fatal(err)
	}
	select {
	case result := <-answer:
		if result["error"] != nil {
			b.Fatalf("%s: %v", method, result["error"])
		}
		return result
	case <-time.After(60 * time.Second):
		b.Fatalf("%s: the browser does not answer", method)
		return nil
	}
}

// window sets how wide the page is, and whether its reader prefers it dark.
func (b *browser) window(width, height int, dark bool) {
	b.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false})
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

func (b *browser) open(url string) {
	b.Helper()
	b.call("Page.navigate", map[string]any{"url": url})
}

// eval is the value of an expression on the page, as text.
func (b *browser) eval(expression string) string {
	b.Helper()
	result := b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true})
	if result["exceptionDetails"] != nil {
		return fmt.Sprint("exception: ", result["exceptionDetails"])
	}
	value, _ := result["result"].(map[string]any)
	return fmt.Sprint(value["value"])
}

// shoot writes the whole page, from top to bottom, into a PNG.
func (b *browser) shoot(file string, width int, dark bool) {
	b.Helper()
	b.window(width, 900, dark)
	var height int
	// The page gets its new width a moment later, and its reaction changes its height.
	if _, err := fmt.Sscan(b.eval("dispatchEvent(new Event('resize')), document.documentElement.scrollHeight"), &height); err != nil {
		b.Fatal(err)
	}
	b.window(width, height, dark)
	picture, _ := b.call("Page.captureScreenshot", map[string]any{"format": "png"})["data"].(string)
	data, err := base64.StdEncoding.DecodeString(picture)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		b.Fatal(err)
	}
}
