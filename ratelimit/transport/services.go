package transport

import (
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// Services are the methods of a Port whose calls have goroutines of their own. Generated code registers them, as with a
// grpc.Server. The zero value has none, and is ready to use. It must not be changed once a Port has it.
//
// Their grpc.ServerStream has headers, trailers, and messages without compression. It is none of grpc.Server's:
// grpc.SetHeader and its like, which look for that in the context, fail.
type Services struct {
	Codec  encoding.CodecV2             // of messages; nil: protobuf
	Around grpc.StreamServerInterceptor // of each call, unary ones too; nil: none
	Spans  stats.Handler                // of calls; nil: none

	calls map[string]grpc.StreamHandler // by full name
	info  map[string]grpc.ServiceInfo   // by name of service
}

// RegisterService implements grpc.ServiceRegistrar. Methods are kept by the value of :path, as /package.Service/Method.
func (s *Services) RegisterService(desc *grpc.ServiceDesc, service any) {
	if s.calls == nil {
		s.calls, s.info = map[string]grpc.StreamHandler{}, map[string]grpc.ServiceInfo{}
	}
	info := grpc.ServiceInfo{Metadata: desc.Metadata}
	add := func(name string, clientStreams, serverStreams bool, handle grpc.StreamHandler) {
		info.Methods = append(info.Methods, grpc.MethodInfo{
			Name: name, IsClientStream: clientStreams, IsServerStream: serverStreams,
		})
		full := "/" + desc.ServiceName + "/" + name
		s.calls[full] = s.around(service, &grpc.StreamServerInfo{
			FullMethod: full, IsClientStream: clientStreams, IsServerStream: serverStreams,
		}, handle)
	}
	for _, m := range desc.Methods {
		add(m.MethodName, false, false, unary(m.Handler))
	}
	for _, m := range desc.Streams {
		add(m.StreamName, m.ClientStreams, m.ServerStreams, m.Handler)
	}
	s.info[desc.ServiceName] = info
}

// GetServiceInfo implements reflection.ServiceInfoProvider.
func (s *Services) GetServiceInfo() map[string]grpc.ServiceInfo { return s.info }

// unary is the handler of a unary method, as one of a stream.
func unary(handle grpc.MethodHandler) grpc.StreamHandler {
	return func(service any, stream grpc.ServerStream) error {
		decode := func(request any) error { return receiveOnly(stream, request) }
		answer, err := handle(service, stream.Context(), decode, nil)
		if err != nil {
			return err
		}
		return stream.SendMsg(answer)
	}
}

// receiveOnly receives the only message of a request. The second receive waits for the end of the request, which a
// client may send in a frame of its own.
func receiveOnly(stream grpc.ServerStream, request any) error {
	err := stream.RecvMsg(request)
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Internal, "the request has no message")
	}
	if err != nil {
		return err
	}
	switch err := stream.RecvMsg(request); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return status.Error(codes.Internal, "the request has more than one message")
}

// around is a method's handler within Around. That is read for each call: it may be set after registration.
func (s *Services) around(service any, info *grpc.StreamServerInfo, handle grpc.StreamHandler) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		if s.Around == nil {
			return handle(service, stream)
		}
		return s.Around(service, stream, info, handle)
	}
}

// find returns the handler of a method, or says that there is none.
func (s *Services) find(method string) (grpc.StreamHandler, *status.Status) {
	if handle := s.calls[method]; handle != nil {
		return handle, nil
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if _, known := s.info[service]; known {
		return nil, status.Newf(codes.Unimplemented, "unknown method %.100q of service %s", name, service)
	}
	return nil, status.Newf(codes.Unimplemented, "unknown service %.100q", service)
}

// codec returns the codec of messages.
func (s *Services) codec() encoding.CodecV2 {
	if s.Codec != nil {
		return s.Codec
	}
	return encoding.GetCodecV2(proto.Name)
}
