package redistest

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed testdata/clock.c
var clockSource []byte

// StartStepped runs a redis-server whose clock a test sets: step sets it ahead of the machine's, or back. It needs a
// C compiler, because libfaketime does not run under Redis's allocator.
func StartStepped(tb testing.TB) (s *Server, step func(time.Duration)) {
	tb.Helper()
	dir := tb.TempDir()
	source, library, file := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so"), filepath.Join(dir, "by")
	write := func(name string, data []byte) { // in place: the server has mapped the file
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			_, err = f.Write(data)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	write(source, clockSource)
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		tb.Fatalf("compiling a clock for redis-server needs cc: %v\n%s", err, out)
	}
	step = func(by time.Duration) { write(file, binary.NativeEndian.AppendUint64(nil, uint64(by.Microseconds()))) }
	step(0)
	env := []string{"LD_PRELOAD=" + library, "STEPPED_CLOCK=" + file}
	s = &Server{TB: tb, Addr: freeAddress(tb), dir: tb.TempDir(), env: env}
	s.Run()
	tb.Cleanup(s.Kill)
	s.Begin("")
	return s, step
}
