package routing

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/routing/wire"
)

func helloOf(region string) *wire.Hello {
	return &wire.Hello{Version: version, Addr: "a:1", Nonce: newNonce(), Incarnation: 1, Region: region}
}

// REGION has no check at start. One that is too long, or is no UTF-8, isolates each node from all of its own region.
func TestRegionNames(t *testing.T) {
	for _, region := range []string{strings.Repeat("r", 300), "\xff"} {
		o := Options{Addr: "a:1", Region: region, Secret: strings.Repeat("s", 32)}
		if err := o.Validate(); err != nil {
			continue
		}
		data, err := proto.Marshal(helloOf(region))
		if err != nil {
			t.Errorf("the settings are valid, and no hello can be sent: %v", err)
			continue
		}
		var h wire.Hello
		if err := proto.Unmarshal(data, &h); err != nil || check(&h, region) != nil {
			t.Errorf("the settings are valid, and a peer of the same region is refused: %v %v", err, check(&h, region))
		}
	}
}

func TestRegionsHaveProofsOfTheirOwn(t *testing.T) {
	for _, x := range [][2]string{{"", "eu"}, {"eu", ""}, {"eu", "us"}, {"eu", "EU"}, {"eu", "eu "}} {
		if check(helloOf(x[0]), x[1]) == nil {
			t.Errorf("%q is accepted in %q", x[0], x[1])
		}
		a, b := helloOf(x[0]), helloOf(x[0])
		b.Nonce, b.Region = a.Nonce, x[1]
		if bytes.Equal(prove("s", "caller", nil, a, a), prove("s", "caller", nil, b, a)) || bytes.Equal(prove("s", "called", nil, a, a), prove("s", "called", nil, a, b)) {
			t.Errorf("%q and %q have one proof", x[0], x[1])
		}
	}
	// bytes moved between the address and the region
	a, b := helloOf("1eu"), helloOf("eu")
	b.Nonce, a.Addr, b.Addr = a.Nonce, "a:", "a:1"
	if bytes.Equal(prove("s", "caller", nil, a, a), prove("s", "caller", nil, b, a)) {
		t.Error("one proof")
	}
}
