package pods

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// folder is the variable with the folder of the process within namespaces. Empty outside of namespaces.
const folder = "PODS_FOLDER"

// Missing says why this machine cannot run pods, or "". It tries it: an `ip link add` in new namespaces says more than
// version numbers.
func Missing() string {
	if os.Geteuid() != 0 {
		return "pods need root, for networks and mounts of their own"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return "pods need the program ip (iproute2)"
	}
	cmd := exec.Command("ip", "link", "add", "try", "type", "bridge")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Sprintf("pods need namespaces and bridges: %v %s", err, out)
	}
	return ""
}

// Enter runs this program again, in namespaces of its own, and there main. It returns the exit status. Whichever of
// both processes ends first, the kernel ends all others of the namespaces. A Go process cannot move all of its threads
// into new namespaces, so it starts itself again within them. The variable PODS_FOLDER tells the second run which of
// both it is. It is process 1 of its namespace: the kernel ends all others with it. Pdeathsig ends it with the first.
func Enter(main func() int) int {
	if os.Getenv(folder) != "" {
		if err := settle(); err != nil {
			fmt.Fprintln(os.Stderr, "pods:", err)
			return 1
		}
		return main()
	}
	dir, err := os.MkdirTemp("", "pods")
	if err != nil {
		fmt.Fprintln(os.Stderr, "pods:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	runtime.LockOSThread() // Pdeathsig is about the thread
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), folder+"="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  unix.SIGKILL,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "pods:", err)
		return 1
	}
	go func() {
		<-signals
		_ = cmd.Process.Kill()
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode())
	}
	return 0
}

// settle makes the mounts of this process its own. Without private mounts, all mounts in here would appear on the
// machine. /proc must be mounted anew to show the processes of this namespace.
func settle() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("pods", os.Getenv(folder), "tmpfs", 0, "mode=755"); err != nil { // on a busy disk, etcd's writes time out
		return fmt.Errorf("mount %s: %w", os.Getenv(folder), err)
	}
	if err := unix.Mount("run", "/run", "tmpfs", 0, ""); err != nil { // ip writes the names of networks there
		return fmt.Errorf("mount /run: %w", err)
	}
	return nil
}

// within runs f in a network, with a host name. What f starts stays there. Namespaces belong to threads, and a child
// gets those of the thread that starts it.
func within(network, host string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine, and does not serve others from here
		result <- func() error {
			n, err := os.Open("/run/netns/" + network)
			if err != nil {
				return err
			}
			defer n.Close()
			if err := unix.Setns(int(n.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter network %s: %w", network, err)
			}
			if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
				return fmt.Errorf("unshare the host name: %w", err)
			}
			if err := unix.Sethostname([]byte(host)); err != nil {
				return fmt.Errorf("set host name %s: %w", host, err)
			}
			return f()
		}()
	}()
	return <-result
}

// ip runs the program of this name. Its output is in the error, because the exit status says nothing.
func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, out)
	}
	return nil
}
