// Command release writes what a release consists of, from one commit: `make
// release`. The version is that of the commit's tag; binaries are static, and
// built without a trace of where; nothing is uploaded.
//
//	sluice_VERSION_OS_ARCH.tar.gz   the command, for each platform
//	sluice_VERSION_image.tar        an OCI image of the server for linux/amd64 and linux/arm64
//	sluice_VERSION.cdx.json         what is in the binary (CycloneDX)
//	SHA256SUMS
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// platform is what a binary is for.
type platform struct{ os, arch string }

// String is the platform as Go and Docker write it.
func (p platform) String() string { return p.os + "/" + p.arch }

// platforms are those of a release. The first one is also that of the bill.
var platforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"},
}

// release is one, under way.
type release struct {
	top, out  string // the repository, and where files go
	version   string // as the tag, v1.2.3
	commit    string
	made      time.Time // of the commit: what is written has no other time
	platforms []platform
	snapshot  bool
	files     []string // written so far, in out
}

func main() {
	r := release{platforms: platforms}
	flag.StringVar(&r.top, "top", ".", "the repository")
	flag.StringVar(&r.out, "out", ".cache/release", "where files are written")
	flag.BoolVar(&r.snapshot, "snapshot", false, "of a commit without a tag, or a tree with changes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := r.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
	fmt.Printf("%s, commit %s, in %s:\n", r.version, r.commit, r.out)
	for _, name := range r.files {
		fmt.Println("  " + name)
	}
}

// run writes all files, or says why not. It first finds the version, because every file has it in its name. Old files
// are removed, or SHA256SUMS would not list all that is there. Binaries come before the image, which contains them.
func (r *release) run(ctx context.Context) error {
	if err := r.identify(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "sluice-release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := r.commands(ctx, work); err != nil {
		return err
	}
	if err := r.image(work); err != nil {
		return err
	}
	return r.sums()
}

// identify finds the version and the time of the commit. A snapshot's version has the form of a Go pseudo-version,
// which sorts before all releases.
func (r *release) identify(ctx context.Context) error {
	commit, err := r.git(ctx, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	seconds, err := r.git(ctx, "show", "-s", "--format=%cI", "HEAD")
	if err != nil {
		return err
	}
	r.made, err = time.Parse(time.RFC3339, seconds)
	if err != nil {
		return fmt.Errorf("git show: %w", err)
	}
	r.made, r.commit = r.made.UTC(), commit
	changes, err := r.git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	tag, err := r.git(ctx, "describe", "--tags", "--exact-match", "--match", "v[0-9]*", "HEAD")
	switch {
	case r.snapshot:
		r.version = "v0.0.0-" + r.made.Format("20060102150405") + "-" + commit[:12]
	case changes != "":
		return errors.New("the tree has changes that are not committed: commit them, or use -snapshot")
	case err != nil:
		return fmt.Errorf("the commit %s has no tag like v1.2.3: git tag it, or use -snapshot", commit[:12])
	default:
		r.version = tag
	}
	return nil
}

// git returns the output of a command of git in the repository, without the end of the line.
func (r *release) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = r.top
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// build makes a static binary with its version. -trimpath removes the paths of the machine, and -s -w the symbols and
// debug data. CGO would bind the binary to a C library.
func (r *release) build(ctx context.Context, p platform, out string) error {
	flags := "-s -w -X main.released=" + r.version
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", flags, "-o", out, "./cmd/sluice")
	cmd.Dir = r.top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build for %v: %w\n%s", p, err, text)
	}
	return nil
}

// name is that of a file of this release.
func (r *release) name(rest string) string { return "sluice_" + r.version + rest }

// binaryOf is the path of a platform's binary. Each platform has a folder of its own, so that all binaries can be named
// sluice.
func binaryOf(work string, p platform) string {
	name := "sluice"
	if p.os == "windows" {
		name += ".exe"
	}
	return filepath.Join(work, p.os+"-"+p.arch, name)
}

// commands writes an archive for each platform, and what is in the first. All platforms have the same modules, so one
// bill is enough.
func (r *release) commands(ctx context.Context, work string) error {
	for i, p := range r.platforms {
		path := binaryOf(work, p)
		if err := r.build(ctx, p, path); err != nil {
			return err
		}
		name := r.name("_" + p.os + "_" + p.arch + ".tar.gz")
		err := r.archive(name, []entry{
			{name: filepath.Base(path), from: path, mode: 0o755},
			{name: "LICENSE", from: filepath.Join(r.top, "LICENSE"), mode: 0o644},
			{name: "README.md", from: filepath.Join(r.top, "README.md"), mode: 0o644},
		})
		if err != nil {
			return err
		}
		if i == 0 {
			if err := r.bill(r.name(".cdx.json"), path); err != nil {
				return err
			}
		}
	}
	return nil
}

// sums writes SHA256SUMS, which sha256sum -c reads. A line is the digest, two spaces and the name.
func (r *release) sums() error {
	slices.Sort(r.files)
	var b strings.Builder
	for _, name := range r.files {
		data, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		b.WriteString(hex.EncodeToString(sum[:]) + "  " + name + "\n")
	}
	return r.write("SHA256SUMS", []byte(b.String()))
}

// write writes a file of the release, and notes it for SHA256SUMS and for the list that is printed.
func (r *release) write(name string, data []byte) error {
	r.files = append(r.files, name)
	return os.WriteFile(filepath.Join(r.out, name), data, 0o644)
}
