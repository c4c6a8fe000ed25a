package main

import (
	"log/slog"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/server"
)

// rlqsFlags bound the Rate Limit Quota Service, which is on the gRPC port.
type rlqsFlags struct {
	Streams     int     `env:"RLQS_MAX_STREAMS" name:"rlqs-max-streams" default:"10000" help:"Maximum of open RLQS streams; 0 turns the service off. An Envoy has one for each domain, usually on its own connection (GRPC_MAX_CONNECTIONS)."`
	Buckets     int     `env:"RLQS_MAX_BUCKETS" name:"rlqs-max-buckets" default:"1000" help:"Maximum of buckets of one stream. Requests of further buckets are denied."`
	BucketBytes int     `env:"RLQS_MAX_BUCKET_BYTES" name:"rlqs-max-bucket-bytes" default:"1024" help:"Maximum size of one BucketId in bytes. Streams with a larger one are closed."`
	Messages    float64 `env:"RLQS_MAX_REPORTS" name:"rlqs-max-reports" default:"100" help:"Maximum of messages a second from one stream. Further ones wait in its connection. Envoy sends one every 5 s, and one for each new bucket."`
}

func (f *rlqsFlags) options() rlqs.Options {
	return rlqs.Options{Streams: f.Streams, Buckets: f.Buckets, BucketBytes: f.BucketBytes, Messages: f.Messages}
}

func (f *rlqsFlags) validate() error {
	o := f.options()
	return o.Validate()
}

func (f *rlqsFlags) node(store *config.Store, l ratelimit.Limiter) *rlqs.Node {
	return rlqs.NewNode(rlqs.Source{Rules: store.Rules, Limiter: l, Wall: time.Now}, f.options())
}

// service serves the node's streams; nil: it is not to.
func (f *rlqsFlags) service(n *rlqs.Node, clock ratelimit.Clock, log *slog.Logger) server.Streams {
	if f.Streams == 0 {
		return nil
	}
	return rlqs.NewService(n, clock, log)
}
