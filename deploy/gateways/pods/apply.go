package pods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// Apply creates or changes the objects of a file, as kubectl apply does. Those without a namespace come into the given
// one. It is a server-side apply. Force takes fields over that a controller has set: the file decides.
func (c *Cluster) Apply(ctx context.Context, namespace string, file []byte) error {
	return c.each(ctx, namespace, file, func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		_, err := r.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "test", Force: true})
		return err
	})
}

// Delete deletes the objects of a file that are there. It returns at once; pods end later (Background).
func (c *Cluster) Delete(ctx context.Context, namespace string, file []byte) error {
	return c.each(ctx, namespace, file, func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		background := metav1.DeletePropagationBackground
		err := r.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// Get returns the present form of each object of a file. Objects are in the order of the file. A missing one is an
// error.
func (c *Cluster) Get(ctx context.Context, namespace string, file []byte) (all []*unstructured.Unstructured, err error) {
	err = c.each(ctx, namespace, file, func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		now, err := r.Get(ctx, o.GetName(), metav1.GetOptions{})
		all = append(all, now)
		return err
	})
	return all, err
}

// each calls f for each document of a YAML file, in its order, up to the first error. Empty documents, as charts leave
// them, are passed over.
func (c *Cluster) each(ctx context.Context, namespace string, file []byte,
	f func(dynamic.ResourceInterface, *unstructured.Unstructured) error,
) error {
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(file), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := d.Decode(o)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(o.Object) == 0 {
			continue
		}
		r, err := c.resource(ctx, namespace, o)
		if err != nil {
			return err
		}
		if err := f(r, o); err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
}

// resource waits for the kind of an object: its definition may just have been applied. The mapper keeps the kinds that
// it has read, so it is reset before each new try.
func (c *Cluster) resource(ctx context.Context, namespace string, o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := o.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	for end := time.Now().Add(20 * time.Second); meta.IsNoMatchError(err) && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(200 * time.Millisecond)
		c.mapper.Reset()
		mapping, err = c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.objects.Resource(mapping.Resource), nil
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	return c.objects.Resource(mapping.Resource).Namespace(o.GetNamespace()), nil
}
