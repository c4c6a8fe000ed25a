package pods

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
)

// A container is one program of a pod, and what is started again when it ends. The goroutine of keep owns it. Of its
// changing fields, the loop reads only the atomics.
type container struct {
	*pod
	spec  *core.Container
	image *Image
	root  string
	env   []string
	user  int64
	group int64
	log   *os.File
	first bool // it ends before the others begin

	ready    atomic.Bool
	restarts atomic.Int32
	done     atomic.Bool // it ended well, and its pod does not restart such
}

// keep runs the program, again and again, until ctx is done. Then it lets it end in the time of grace. A program that
// ends early starts again after a second, where kubelet would wait longer each time.
func (c *container) keep(ctx context.Context, grace func() time.Duration) {
	for ctx.Err() == nil {
		err := c.once(ctx, grace)
		c.ready.Store(false)
		if err == nil && (c.first || c.Spec.RestartPolicy != core.RestartPolicyAlways) {
			c.done.Store(true)
			return
		}
		if ctx.Err() == nil {
			c.Logf("%s of %s: %v", c.spec.Name, c.Name, cmp.Or(err, error(errEnded)))
			c.restarts.Add(1)
			sleep(ctx, time.Second)
		}
	}
}

// errEnded is why a container starts again. A server that ends without an error is started again, too.
var errEnded = fmt.Errorf("the program ended")

// once runs the program until it ends. The order at the end is kubelet's: the hook before the end, then SIGTERM, then
// SIGKILL. The hook gets a context of its own, because ctx is done by then. Signals go to the whole group of the
// program (a negative id), so that its children end, too.
func (c *container) once(ctx context.Context, grace func() time.Duration) error {
	defer func() { _ = unix.Unmount(c.root, unix.MNT_DETACH) }()
	command, err := c.prepare(ctx)
	if err != nil {
		return err
	}
	cmd, err := c.start(command)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go c.watch(watching, cmd)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// A grace of 0 is a forced deletion: there is no hook and no SIGTERM.
	limit := grace()
	if limit > 0 {
		if c.spec.Lifecycle != nil && c.spec.Lifecycle.PreStop != nil {
			h := c.spec.Lifecycle.PreStop
			before, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
			err := c.handle(before, core.ProbeHandler{Exec: h.Exec, HTTPGet: h.HTTPGet, TCPSocket: h.TCPSocket}, limit)
			cancel()
			if err != nil {
				c.Logf("before the end of %s of %s: %v", c.spec.Name, c.Name, err)
			}
		}
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGTERM)
		select {
		case <-ended:
			return nil
		case <-time.After(limit):
		}
	}
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	<-ended
	return nil
}

// start runs a command in the container. Setsid makes a group of its own for the program. A name without a slash is
// looked up in the container's root: exec.LookPath would search this machine's.
func (c *container) start(command []string) (*exec.Cmd, error) {
	program := command[0]
	if !strings.Contains(program, "/") {
		for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
			if _, err := os.Stat(filepath.Join(c.root, dir, program)); err == nil {
				program = filepath.Join(dir, program)
				break
			}
		}
	}
	cmd := &exec.Cmd{Path: program, Args: command, Env: c.env, Dir: "/", Stdout: c.log, Stderr: c.log, SysProcAttr: &syscall.SysProcAttr{
		Chroot: c.root, Setsid: true,
		Credential: &syscall.Credential{Uid: uint32(c.user), Gid: uint32(c.group)}, //nolint:gosec // an id
	}}
	return cmd, within(c.network, c.Name, cmd.Start)
}

// prepare makes the root of the container, and returns its command. Each start has a new root, so no file survives a
// restart except in volumes, as in Kubernetes. Its steps: an empty file system, the machine's libraries, the image's
// files, volumes, and then variables, because the command may name them. A read-only root is set last, when all is in
// place.
func (c *container) prepare(ctx context.Context) ([]string, error) {
	if err := os.MkdirAll(c.root, 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount("root", c.root, "tmpfs", 0, "mode=755"); err != nil {
		return nil, err
	}
	// MkdirAll is subject to the umask, so the modes are set after it.
	for place, mode := range map[string]os.FileMode{"tmp": 0o1777, "data": 0o777, "etc": 0o755, "usr/local/bin": 0o755, "bin": 0o755} {
		if err := os.MkdirAll(filepath.Join(c.root, place), 0o755); err != nil {
			return nil, err
		}
		if err := unix.Chmod(filepath.Join(c.root, place), uint32(mode)); err != nil {
			return nil, err
		}
	}
	for _, dir := range []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/bin", "/usr/share", "/proc", "/dev"} {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := c.mount(dir, dir); err != nil {
			return nil, err
		}
	}
	// Envoy shares memory under a name that is the same in each container.
	if err := unix.Mount("shm", filepath.Join(c.root, "dev/shm"), "tmpfs", 0, "mode=1777"); err != nil {
		return nil, err
	}
	// The first process of a container is number 1 there, and hooks write to its output.
	if err := unix.Mount("first", filepath.Join(c.root, "proc/1"), "tmpfs", 0, "mode=755"); err != nil {
		return nil, err
	}
	if err := c.mount(c.log.Name(), "proc/1/fd/1"); err != nil {
		return nil, err
	}
	for place, file := range c.image.Files {
		if err := c.mount(file, place); err != nil {
			return nil, err
		}
	}
	if err := c.system(c.root); err != nil {
		return nil, err
	}
	if err := c.account(ctx, c.root); err != nil {
		return nil, err
	}
	for _, m := range c.spec.VolumeMounts {
		dir, err := c.volume(ctx, m.Name)
		if err != nil {
			return nil, err
		}
		if err := c.mount(filepath.Join(dir, m.SubPath), m.MountPath); err != nil {
			return nil, err
		}
	}
	variables, err := c.environment(ctx, c.spec)
	if err != nil {
		return nil, err
	}
	c.env = nil
	for name, value := range variables {
		c.env = append(c.env, name+"="+value)
	}
	words := c.spec.Command
	if len(words) == 0 {
		words = c.image.Entrypoint
	}
	var command []string
	for _, word := range slices.Concat(words, c.spec.Args) {
		command = append(command, expand(word, variables))
	}
	c.secure()
	if s := c.spec.SecurityContext; s != nil && s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem {
		return command, unix.Mount("", c.root, "", unix.MS_REMOUNT|unix.MS_RDONLY, "mode=755")
	}
	return command, nil
}

// secure sets whose the process is: what the container says, or else its pod, or else the image. The group has the
// number of the user: images here have no other groups.
func (c *container) secure() {
	c.user, c.group = c.image.User, c.image.User
	if s := c.Spec.SecurityContext; s != nil && s.RunAsUser != nil {
		c.user, c.group = *s.RunAsUser, *s.RunAsUser
	}
	if s := c.spec.SecurityContext; s != nil && s.RunAsUser != nil {
		c.user, c.group = *s.RunAsUser, *s.RunAsUser
	}
}

// mount shows a file or folder of this machine in the container, with the mounts below it. A bind mount needs a place
// that exists, of the same kind.
func (c *container) mount(from, to string) error {
	to = filepath.Join(c.root, to)
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else {
		err = write(to, nil)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
