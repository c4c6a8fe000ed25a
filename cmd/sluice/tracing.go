package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/stats"

	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// tracingFlags are envoyproxy/ratelimit's. Where spans go, the exporter reads
// from OTEL_EXPORTER_OTLP_* by itself.
type tracingFlags struct {
	Enabled      bool    `env:"TRACING_ENABLED" name:"tracing-enabled" help:"Send spans of sampled calls to the OpenTelemetry collector at OTEL_EXPORTER_OTLP_ENDPOINT. Nodes read W3C and B3 headers."`
	Protocol     string  `env:"TRACING_EXPORTER_PROTOCOL" name:"tracing-exporter-protocol" default:"http" help:"Protocol of the collector: http or grpc."`
	ServiceName  string  `env:"TRACING_SERVICE_NAME" name:"tracing-service-name" default:"RateLimit" help:"Service name in spans."`
	Namespace    string  `env:"TRACING_SERVICE_NAMESPACE" name:"tracing-service-namespace" help:"Service namespace in spans."`
	InstanceID   string  `env:"TRACING_SERVICE_INSTANCE_ID" name:"tracing-service-instance-id" help:"Service instance in spans."`
	SamplingRate float64 `env:"TRACING_SAMPLING_RATE" name:"tracing-sampling-rate" default:"1" help:"Part of the calls to trace if their caller has not decided, 0 to 1."`
}

// validate reports values outside their bounds, with name and value.
func (f *tracingFlags) validate() error {
	var errs []error
	if f.Protocol != "http" && f.Protocol != "grpc" {
		errs = append(errs, fmt.Errorf("TRACING_EXPORTER_PROTOCOL is %q, must be http or grpc", f.Protocol))
	}
	if !(f.SamplingRate >= 0 && f.SamplingRate <= 1) { // a NaN, too
		errs = append(errs, fmt.Errorf("TRACING_SAMPLING_RATE is %v, must be between 0 and 1", f.SamplingRate))
	}
	return errors.Join(errs...)
}

// tracing makes spans; a nil one makes none and costs nothing. Package rls adds to a span only if Traced of its options
// is set.
type tracing struct {
	provider *sdk.TracerProvider
	headers  propagation.TextMapPropagator
}

// start connects to no one yet: spans are sent in batches, in the background,
// and dropped when too many wait.
func (f *tracingFlags) start(log *slog.Logger) (*tracing, error) {
	if !f.Enabled {
		return nil, nil
	}
	exporter, err := f.exporter()
	if err != nil {
		return nil, fmt.Errorf("tracing (TRACING_EXPORTER_PROTOCOL %s, OTEL_EXPORTER_OTLP_*): %w", f.Protocol, err)
	}
	about := []attribute.KeyValue{attribute.String("service.name", f.ServiceName), attribute.String("service.version", version())}
	if f.Namespace != "" {
		about = append(about, attribute.String("service.namespace", f.Namespace))
	}
	if f.InstanceID != "" {
		about = append(about, attribute.String("service.instance.id", f.InstanceID))
	}
	failed := upkeep.Seldom(time.Minute, func(err error) {
		log.Warn("spans are dropped: the collector does not accept them (OTEL_EXPORTER_OTLP_ENDPOINT)", "error", err)
	})
	// The handler belongs to the process. The library would otherwise write to standard error for each failed batch.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(failed))
	return &tracing{
		provider: sdk.NewTracerProvider(
			sdk.WithBatcher(exporter), sdk.WithResource(resource.NewSchemaless(about...)),
			sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(f.SamplingRate))),
		),
		headers: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}, b3.New()),
	}, nil
}

// exporter reads its endpoint from the environment, and would take a default for a wrong one. So a mistyped address
// would send spans nowhere, in silence: it is an error at the start.
func (f *tracingFlags) exporter() (sdk.SpanExporter, error) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		if text := os.Getenv(name); text != "" {
			if u, err := url.Parse(text); err != nil || u.Host == "" && u.Path == "" {
				return nil, fmt.Errorf("%s is %q, must be a URL such as http://collector:4318", name, text)
			}
		}
	}
	if f.Protocol == "grpc" {
		return otlptracegrpc.New(context.Background())
	}
	return otlptracehttp.New(context.Background())
}

// calls makes a span of each call but health checks. Health checks are frequent, and would hide the calls.
func (t *tracing) calls() stats.Handler {
	if t == nil {
		return nil
	}
	return otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.headers), otelgrpc.WithFilter(filters.Not(filters.HealthCheck())),
	)
}

// http makes a span of each request to a handler.
func (t *tracing) http(name string, h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return otelhttp.NewHandler(h, name, otelhttp.WithTracerProvider(t.provider), otelhttp.WithPropagators(t.headers))
}

// stop sends what waits. It blocks at most two seconds. The bound is for a collector that is away: it must not hold up
// the end of the node.
func (t *tracing) stop() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		otel.Handle(err)
	}
}
