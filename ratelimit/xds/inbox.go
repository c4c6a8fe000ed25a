package xds

import (
	"context"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// longestPause is the longest time between two receptions, so that no push is later by more.
const longestPause = 100 * time.Millisecond

// inbox holds the last push that is not answered yet. receive writes, and the goroutine of stream reads.
type inbox struct {
	// latest has room for one push. A push that has not been taken when the next comes is replaced.
	latest chan *discovery.DiscoveryResponse
	ended  chan struct{} // closed when nothing will come any more
	// why is the error that ended the stream. It may be read once ended is closed.
	why error
}

// receive fills the inbox until the stream ends. It pauses after each push, so that a server that pushes without end
// costs little: its stream's window fills, and holds it back.
func (in *inbox) receive(ctx context.Context,
	stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient, pause time.Duration,
	load *config.Store,
) {
	defer close(in.ended)
	for {
		push, err := stream.Recv()
		if err != nil {
			in.why = err
			return
		}
		select {
		// The push before has not been taken yet. Each push is the whole configuration, so that
		// this one replaces it.
		case <-in.latest:
			load.Coalesced()
		default:
		}
		in.latest <- push // it has no other writer
		upkeep.Sleep(ctx, pause)
	}
}

// next waits until a load may begin, and takes the last push then. It blocks until there is a push, or the stream has
// ended. ctx bounds only the pause, because the end of ctx ends the stream, too.
func (c *Client) next(ctx context.Context, in *inbox) (*discovery.DiscoveryResponse, error) {
	// The wait comes before the push is taken, so that what comes meanwhile is loaded instead.
	if wait := c.pace.Wait(time.Now()); wait > 0 {
		upkeep.Sleep(ctx, wait)
	}
	select {
	case push := <-in.latest:
		return push, nil
	case <-in.ended:
	}
	select {
	case push := <-in.latest: // it came before the end
		return push, nil
	default:
		return nil, in.why
	}
}
