package pods

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// data returns the entries of a Secret or a ConfigMap. One that is optional and missing has none. optional is the field
// of the object that names it; nil means false.
func (p *pod) data(ctx context.Context, secret bool, name string, optional *bool) (map[string][]byte, error) {
	all := map[string][]byte{}
	var err error
	if secret {
		var s *core.Secret
		s, err = p.Kube.CoreV1().Secrets(p.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			all = s.Data
		}
	} else {
		var m *core.ConfigMap
		m, err = p.Kube.CoreV1().ConfigMaps(p.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			for k, v := range m.Data {
				all[k] = []byte(v)
			}
		}
	}
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		err = nil
	}
	return all, err
}

var reference = regexp.MustCompile(`\$\((\w+)\)`)

// expand replaces $(NAME) as Kubernetes does. A name that is unknown stays as it is written.
func expand(text string, variables map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(r string) string {
		if v, ok := variables[r[2:len(r)-1]]; ok {
			return v
		}
		return r
	})
}

// environment returns the variables of a container. A variable can name those before it. The API server's address is
// its own, and not that of the service kubernetes, which has no proxy here.
func (p *pod) environment(ctx context.Context, c *core.Container) (map[string]string, error) {
	all := map[string]string{
		"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": p.Name, "KUBERNETES_SERVICE_HOST": nodeIP, "KUBERNETES_SERVICE_PORT": "6443",
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			all[e.Name] = expand(e.Value, all)
			continue
		}
		value, found, err := p.value(ctx, c, e.ValueFrom)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", e.Name, err)
		}
		if found {
			all[e.Name] = value
		}
	}
	return all, nil
}

// value returns the value of a variable that comes from elsewhere. found is false for an optional entry that is
// missing: then there is no variable, and not an empty one.
func (p *pod) value(ctx context.Context, c *core.Container, from *core.EnvVarSource) (value string, found bool, err error) {
	var all map[string][]byte
	var key string
	var optional *bool
	switch {
	case from.FieldRef != nil:
		value, err = p.field(from.FieldRef.FieldPath)
		return value, true, err
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		key, optional = r.Key, r.Optional
		all, err = p.data(ctx, true, r.Name, optional)
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		key, optional = r.Key, r.Optional
		all, err = p.data(ctx, false, r.Name, optional)
	case from.ResourceFieldRef != nil:
		return resource(c, from.ResourceFieldRef.Resource), true, nil
	default:
		return "", false, fmt.Errorf("source %v is unknown here", from)
	}
	v, found := all[key]
	if err == nil && !found && (optional == nil || !*optional) {
		err = fmt.Errorf("no key %s", key)
	}
	return string(v), found, err
}

// resource returns what limits.NAME or requests.NAME says, or else the machine's processors, and memory that is enough.
// Its form is that of GOMAXPROCS and GOMEMLIMIT: whole processors, rounded up, and bytes.
func resource(c *core.Container, name string) string {
	kind, name, _ := strings.Cut(name, ".")
	list := c.Resources.Limits
	if kind == "requests" {
		list = c.Resources.Requests
	}
	if q, ok := list[core.ResourceName(name)]; ok {
		return strconv.FormatInt(q.Value(), 10)
	}
	if name == "cpu" {
		return strconv.Itoa(runtime.NumCPU())
	}
	return strconv.Itoa(1 << 30)
}

var annotation = regexp.MustCompile(`^metadata\.(annotations|labels)\['(.*)'\]$`)

// field returns a field of the pod, as the downward API has it. A path is like metadata.name, or
// metadata.labels['app'].
func (p *pod) field(path string) (string, error) {
	if m := annotation.FindStringSubmatch(path); m != nil {
		return map[string]map[string]string{"annotations": p.Annotations, "labels": p.Labels}[m[1]][m[2]], nil
	}
	value, ok := map[string]string{
		"metadata.labels": lines(p.Labels), "metadata.annotations": lines(p.Annotations),
		"metadata.name": p.Name, "metadata.namespace": p.Namespace, "metadata.uid": string(p.UID), "status.podIP": p.address,
		"status.hostIP": nodeIP, "spec.nodeName": "node", "spec.serviceAccountName": p.Spec.ServiceAccountName,
	}[path]
	if !ok {
		return "", fmt.Errorf("field %s is unknown here", path)
	}
	return value, nil
}

// lines writes labels or annotations. It is the form of a file of the downward API: NAME="VALUE" in each line, sorted.
func lines(entries map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		fmt.Fprintf(&b, "%s=%q\n", name, entries[name])
	}
	return b.String()
}

// volume returns the folder of a volume, with the files that it has now. Its folder belongs to the pod and not to the
// container, so containers share it, and it survives their restarts.
func (p *pod) volume(ctx context.Context, name string) (string, error) {
	dir := filepath.Join(p.dir, "volumes", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, v := range p.Spec.Volumes {
		if v.Name != name {
			continue
		}
		files, err := p.files(ctx, &v)
		if err != nil {
			return "", fmt.Errorf("volume %s: %w", name, err)
		}
		if v.EmptyDir != nil {
			return dir, os.Chmod(dir, 0o777)
		}
		for path, text := range files {
			if err := write(filepath.Join(dir, path), text); err != nil {
				return "", err
			}
		}
		return dir, nil
	}
	return "", fmt.Errorf("no volume %s", name)
}

// write writes a file that every user may read, with the folders above it.
func write(name string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

// files returns a volume's files by their paths. Those of a later projected source replace those of an earlier one.
// Unknown sources are errors: a test must not pass because a file was left out.
func (p *pod) files(ctx context.Context, v *core.Volume) (map[string][]byte, error) {
	switch {
	case v.EmptyDir != nil:
		return nil, nil
	case v.Secret != nil:
		all, err := p.data(ctx, true, v.Secret.SecretName, v.Secret.Optional)
		return chosen(all, v.Secret.Items), err
	case v.ConfigMap != nil:
		all, err := p.data(ctx, false, v.ConfigMap.Name, v.ConfigMap.Optional)
		return chosen(all, v.ConfigMap.Items), err
	case v.DownwardAPI != nil:
		return p.downward(v.DownwardAPI.Items)
	case v.Projected == nil:
		return nil, fmt.Errorf("source %+v is unknown here", v.VolumeSource)
	}
	files := map[string][]byte{}
	for _, s := range v.Projected.Sources {
		var more map[string][]byte
		var err error
		switch {
		case s.Secret != nil:
			more, err = p.data(ctx, true, s.Secret.Name, s.Secret.Optional)
			more = chosen(more, s.Secret.Items)
		case s.ConfigMap != nil:
			more, err = p.data(ctx, false, s.ConfigMap.Name, s.ConfigMap.Optional)
			more = chosen(more, s.ConfigMap.Items)
		case s.ServiceAccountToken != nil:
			var token []byte
			token, err = p.token(ctx, s.ServiceAccountToken.Audience)
			more = map[string][]byte{s.ServiceAccountToken.Path: token}
		case s.DownwardAPI != nil:
			more, err = p.downward(s.DownwardAPI.Items)
		default:
			err = fmt.Errorf("source %+v is unknown here", s)
		}
		if err != nil {
			return nil, err
		}
		for path, text := range more {
			files[path] = text
		}
	}
	return files, nil
}

// downward returns files of the downward API. Those about resources are left out.
func (p *pod) downward(items []core.DownwardAPIVolumeFile) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, i := range items {
		if i.FieldRef == nil {
			continue
		}
		value, err := p.field(i.FieldRef.FieldPath)
		if err != nil {
			return nil, err
		}
		files[i.Path] = []byte(value)
	}
	return files, nil
}

// chosen returns the entries under the paths of items, or all if there are no items. An item without an entry becomes
// an empty file, where kubelet would wait.
func chosen(all map[string][]byte, items []core.KeyToPath) map[string][]byte {
	if len(items) == 0 {
		return all
	}
	files := map[string][]byte{}
	for _, i := range items {
		files[i.Path] = all[i.Key]
	}
	return files
}

// token returns a token of the pod's service account. An empty audience is the API server's own. A token lasts an hour
// by default and is not renewed, so a container must not run longer.
func (p *pod) token(ctx context.Context, audience string) ([]byte, error) {
	request := &authentication.TokenRequest{}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	accounts := p.Kube.CoreV1().ServiceAccounts(p.Namespace)
	t, err := accounts.CreateToken(ctx, p.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("token of %s: %w", p.Spec.ServiceAccountName, err)
	}
	return []byte(t.Status.Token), nil
}

// account writes what a container finds of its service account. Clients within a cluster read these three files
// (rest.InClusterConfig). ca.crt is the authority of the API server.
func (p *pod) account(ctx context.Context, root string) error {
	mount := p.Spec.AutomountServiceAccountToken
	if p.Spec.ServiceAccountName == "" || mount != nil && !*mount {
		return nil
	}
	token, err := p.token(ctx, "")
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(p.authority())
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"token": token, "ca.crt": authority, "namespace": []byte(p.Namespace)} {
		if err := write(filepath.Join(root, "var/run/secrets/kubernetes.io/serviceaccount", name), text); err != nil {
			return err
		}
	}
	return nil
}

// system writes the files by which programs find users, hosts and names. ndots:5 makes a short name such as redis be
// looked up in the pod's namespace first, as kubelet sets it.
func (p *pod) system(root string) error {
	search := strings.ReplaceAll("NS.svc.cluster.local svc.cluster.local cluster.local", "NS", p.Namespace)
	for name, text := range map[string]string{
		"passwd":        "root:x:0:0::/:/bin/sh\nnonroot:x:65532:65532::/tmp:/bin/sh\n",
		"hosts":         "127.0.0.1 localhost\n" + p.address + " " + p.Name + "\n",
		"nsswitch.conf": "hosts: files dns\n",
		"resolv.conf":   "nameserver " + nodeIP + "\nsearch " + search + "\noptions ndots:5\n",
	} {
		if err := write(filepath.Join(root, "etc", name), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}
