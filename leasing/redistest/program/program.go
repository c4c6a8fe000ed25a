// Package program builds programs that tests start, each once for all packages.
package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// Build builds a program from the main package in a folder of the repository, and returns its path. The
// program is in the repository's cache, and is linked only where it is not up to date. Build blocks while another test
// builds, seconds at most where packages are cached.
func Build(name, folder string) (path string, err error) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..", "..")
	path = filepath.Join(root, ".cache", name+"-for-tests")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join(root, folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", name, err, out)
	}
	return path, nil
}
