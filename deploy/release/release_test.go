package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A release of this commit is complete. Each file has the sum of SHA256SUMS, the command runs with its version,
// and the bill names its modules. The name of every blob of the image is its digest.
func TestRelease(t *testing.T) {
	r := release{top: "../..", out: t.TempDir(), snapshot: true, platforms: []platform{{"linux", "amd64"}}}
	if err := r.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	sums := string(r.read(t, "SHA256SUMS"))
	for _, name := range r.files {
		sum := sha256.Sum256(r.read(t, name))
		if name != "SHA256SUMS" && !strings.Contains(sums, hex.EncodeToString(sum[:])+"  "+name+"\n") {
			t.Errorf("SHA256SUMS does not have %s", name)
		}
	}
	if n := strings.Count(sums, "\n"); n != 3 {
		t.Errorf("%d files: %v", n, r.files)
	}
	z, err := gzip.NewReader(bytes.NewReader(r.read(t, r.name("_linux_amd64.tar.gz"))))
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, z)
	binary := filepath.Join(t.TempDir(), "sluice")
	if err := os.WriteFile(binary, files["sluice"], 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(binary, "--version").CombinedOutput(); err != nil || !strings.Contains(string(out), r.version) {
		t.Errorf("it says that it is %q, and it is %s: %v", out, r.version, err)
	}
	if len(files["LICENSE"]) == 0 || len(files["README.md"]) == 0 {
		t.Error("the archive has no LICENSE or README.md")
	}
	var bill struct {
		Components []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal(r.read(t, r.name(".cdx.json")), &bill); err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, c := range bill.Components {
		named[c.Name] = c.Version != "" && strings.HasSuffix(c.Purl, "@"+c.Version)
	}
	if !named["google.golang.org/grpc"] || !named["std"] || named["github.com/HdrHistogram/hdrhistogram-go"] {
		t.Errorf("the bill names %v", named)
	}
	startImage(t, imageIsWhole(t, untar(t, bytes.NewReader(r.read(t, r.name("_image.tar"))))))
}

// container is what a container is made of: a layer, as a tar, and how it is started.
type container struct {
	layer  []byte
	Config struct {
		User            string
		Entrypoint, Cmd []string
		Env             []string
	}
	Rootfs struct {
		DiffIDs []string `json:"diff_ids"`
	}
}

// mostServer is the maximum size of the server's binary.
const mostServer = 42 << 20

// imageIsWhole follows the descriptors from the index down, to what is started.
func imageIsWhole(t *testing.T, files map[string][]byte) *container {
	t.Helper()
	blob := func(d descriptor) []byte {
		data := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		sum := sha256.Sum256(data)
		if d.Digest != "sha256:"+hex.EncodeToString(sum[:]) || d.Size != len(data) {
			t.Errorf("the blob of %+v is another, of %d bytes", d, len(data))
		}
		return data
	}
	var index, platforms struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	var config container
	for _, step := range []struct {
		data func() []byte
		into any
	}{
		{func() []byte { return files["index.json"] }, &index},
		{func() []byte { return blob(index.Manifests[0]) }, &platforms},
		{func() []byte { return blob(platforms.Manifests[0]) }, &manifest},
		{func() []byte { return blob(manifest.Config) }, &config},
	} {
		if err := json.Unmarshal(step.data(), step.into); err != nil {
			t.Fatal(err)
		}
	}
	z, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(plain)
	if config.Rootfs.DiffIDs[0] != "sha256:"+hex.EncodeToString(sum[:]) || config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/bin/sluice" {
		t.Errorf("%+v", config)
	}
	root := untar(t, bytes.NewReader(plain))
	if n := len(root["bin/sluice"]); n > mostServer {
		t.Errorf("the server's binary has %d bytes, more than %d: what does it have that only measuring needs?", n, mostServer)
	}
	if len(root["bin/sluice"]) == 0 || len(root["etc/ssl/certs/ca-certificates.crt"]) == 0 || string(root["bin/ratelimit"]) != "-> sluice" {
		t.Errorf("the image lacks a file: %d bytes of sluice", len(root["bin/sluice"]))
	}
	if platforms.Manifests[0].Platform["architecture"] != "amd64" {
		t.Errorf("%+v", platforms)
	}
	config.layer = plain
	return &config
}

// The Dockerfile, which no test builds, makes the same image.
func TestDockerfileMakesTheSameImage(t *testing.T) {
	dockerfile, err := os.ReadFile("../docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"FROM scratch", "USER 65532:65532", `CGO_ENABLED=0 go build -trimpath`, "ln -s sluice /out/bin/ratelimit", `ENTRYPOINT ["/bin/sluice"]`} {
		if !strings.Contains(string(dockerfile), line) {
			t.Errorf("deploy/docker/Dockerfile has no %s", line)
		}
	}
}

// A commit that is not tagged, or has changes, is no release.
func TestReleaseIsOfATag(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	identified := func() (string, error) {
		r := release{top: dir}
		err := r.identify(t.Context())
		return r.version, err
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "first")
	if _, err := identified(); err == nil || !strings.Contains(err.Error(), "has no tag like v1.2.3") {
		t.Errorf("without a tag: %v", err)
	}
	git("tag", "v1.2.3")
	if v, err := identified(); v != "v1.2.3" || err != nil {
		t.Errorf("%s %v", v, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := identified(); err == nil || !strings.Contains(err.Error(), "changes that are not committed") {
		t.Errorf("with changes: %v", err)
	}
}

func (r *release) read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(r.out, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// untar reads files by name; of a link, where it leads.
func untar(t *testing.T, from io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		if h.Linkname != "" {
			files[h.Name] = []byte("-> " + h.Linkname)
		}
	}
}
