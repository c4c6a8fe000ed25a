package server

import (
	"context"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// A stream of reflection that its caller keeps open, as grpcurl does, does not end its connection, which has other
// calls.
func TestReflectionEndsNoConnection(t *testing.T) {
	v := bounded(t, func(o *Options) { o.Caps.RequestTimeout = 100 * time.Millisecond })
	conn := client(t, v)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 1)
	go func() { _, err := watch.Recv(); ends <- err }()
	select {
	case err := <-ends:
		t.Errorf("the call beside it ends: %v", err)
	case <-time.After(3 * v.options.Caps.RequestTimeout):
	}
	list := &grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	}
	if err := stream.Send(list); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Error(err)
	}
}
