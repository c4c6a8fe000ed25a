package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// certificates are what the image trusts, as the Dockerfile's does: those of the
// machine that builds it.
const certificates = "/etc/ssl/certs/ca-certificates.crt"

// Kinds of what an image consists of (OCI image specification 1.1).
const (
	kindIndex    = "application/vnd.oci.image.index.v1+json"
	kindManifest = "application/vnd.oci.image.manifest.v1+json"
	kindConfig   = "application/vnd.oci.image.config.v1+json"
	kindLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// descriptor names a blob by what is in it. The names of its fields are those of the specification.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// layout collects blobs of an image. It is content-addressed: a blob's name is its digest, and other blobs refer to it
// by a descriptor.
type layout struct{ blobs []entry }

// add adds a blob, and returns the descriptor by which others refer to it.
func (l *layout) add(kind string, data []byte) descriptor {
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	l.blobs = append(l.blobs, entry{name: "blobs/sha256/" + digest, data: data, mode: 0o644})
	return descriptor{MediaType: kind, Digest: "sha256:" + digest, Size: len(data)}
}

func (l *layout) addJSON(kind string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	return l.add(kind, data), err
}

type object = map[string]any

// image writes the image of the Dockerfile, without Docker: an OCI layout in a tar, which `docker load`, `podman load`
// and `skopeo copy oci-archive:` read. From the outside in: index.json names the image and points at an index, which
// has a manifest for each platform. A manifest points at the configuration and the one layer.
func (r *release) image(work string) error {
	var l layout
	var manifests []descriptor
	for _, p := range r.platforms {
		if p.os != "linux" {
			continue
		}
		m, err := r.manifest(&l, p, binaryOf(work, p))
		if err != nil {
			return fmt.Errorf("the image for %v: %w", p, err)
		}
		manifests = append(manifests, m)
	}
	index, err := l.addJSON(kindIndex, object{"schemaVersion": 2, "mediaType": kindIndex, "manifests": manifests})
	if err != nil {
		return err
	}
	index.Annotations = map[string]string{"org.opencontainers.image.ref.name": r.version}
	top, err := json.Marshal(object{"schemaVersion": 2, "mediaType": kindIndex, "manifests": []descriptor{index}})
	if err != nil {
		return err
	}
	entries := append([]entry{
		{name: "oci-layout", data: []byte(`{"imageLayoutVersion":"1.0.0"}`), mode: 0o644}, {name: "index.json", data: top, mode: 0o644},
	}, l.blobs...)
	data, err := r.tar(entries)
	if err != nil {
		return err
	}
	return r.write(r.name("_image.tar"), data)
}

// manifest adds the image for one platform: what the Dockerfile says. bin/ratelimit is a link, so that a Deployment of
// envoyproxy/ratelimit can keep its command. User 65532 is "nonroot" of distroless images. A change here belongs in the
// Dockerfile, too.
func (r *release) manifest(l *layout, p platform, binary string) (descriptor, error) {
	packed, plain, err := r.layer([]entry{
		{name: "bin/sluice", from: binary, mode: 0o755},
		{name: "bin/ratelimit", link: "sluice", mode: 0o777},
		{name: "etc/ssl/certs/ca-certificates.crt", from: certificates, mode: 0o644},
	})
	if err != nil {
		return descriptor{}, err
	}
	sum := sha256.Sum256(plain)
	config, err := l.addJSON(kindConfig, object{
		"created": r.made, "architecture": p.arch, "os": p.os,
		"config": object{
			"User": "65532:65532", "Entrypoint": []string{"/bin/sluice"}, "Cmd": []string{"serve"}, "Env": []string{"PATH=/bin"},
			"ExposedPorts": object{"8081/tcp": object{}, "8080/tcp": object{}, "6070/tcp": object{}, "8082/tcp": object{}},
			"Labels":       object{"org.opencontainers.image.version": r.version, "org.opencontainers.image.revision": r.commit},
		},
		"rootfs":  object{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
		"history": []object{{"created": r.made, "created_by": "make release"}},
	})
	if err != nil {
		return descriptor{}, err
	}
	layer := l.add(kindLayer, packed)
	m, err := l.addJSON(kindManifest, object{"schemaVersion": 2, "mediaType": kindManifest, "config": config, "layers": []descriptor{layer}})
	m.Platform = map[string]string{"os": p.os, "architecture": p.arch}
	return m, err
}
