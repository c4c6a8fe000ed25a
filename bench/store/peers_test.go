package store

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A request to gubernator has the fields of gubernator.proto, and its answer is read by them: the status, and errors.
func TestAskGubernator(t *testing.T) {
	response := func(fields ...any) []byte {
		var r []byte
		for i := 0; i < len(fields); i += 2 {
			number := protowire.Number(fields[i].(int)) //nolint:gosec // small
			switch v := fields[i+1].(type) {
			case int:
				r = protowire.AppendVarint(protowire.AppendTag(r, number, protowire.VarintType), uint64(v)) //nolint:gosec // positive
			case string:
				r = protowire.AppendString(protowire.AppendTag(r, number, protowire.BytesType), v)
			}
		}
		return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), r)
	}
	var asked, answer []byte
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(caller.Bytes{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); method != "/pb.gubernator.V1/GetRateLimits" {
			t.Errorf("the method is %s", method)
		}
		if err := stream.RecvMsg(&asked); err != nil {
			return err
		}
		return stream.SendMsg(answer)
	}))
	defer server.Stop()
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	row := &Row{Unit: ratelimit.Minute, Limit: 10}
	want := response(1, "bench", 2, "client-1", 3, 1, 4, 10, 5, 60_000)
	for _, c := range []struct {
		answer []byte
		ok     bool
		err    error
	}{
		{response(2, 10, 3, 9, 4, 1_800_000_000_000), true, nil}, // a status of 0 is left out
		{response(1, 1, 2, 10, 4, 1_800_000_000_000), false, nil},
		{response(5, "no peer"), false, errAnswer},
		{nil, false, errAnswer},
		{[]byte{10, 200}, false, errAnswer},
		{protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte{8}), false, errAnswer},
	} {
		answer = c.answer
		ok, err := askGubernator(context.Background(), conn, row, "client-1")
		if ok != c.ok || !errors.Is(err, c.err) {
			t.Errorf("%x: %v, %v", c.answer, ok, err)
		}
		if string(asked) != string(want) {
			t.Errorf("asked %x, must be %x", asked, want)
		}
	}
}

// The figures of a row are the medians of its rounds, and ratios are to envoyproxy/ratelimit.
func TestMediansOfPeers(t *testing.T) {
	p := Peers{Length: 1e9}
	rows := []PeerRow{
		p.median([]Measured{{Mode: "ratelimit", CPU: 30, Asked: 100}, {CPU: 10, Asked: 100}, {CPU: 20, Asked: 100}}),
		p.median([]Measured{{Mode: "leasing", CPU: 5, Asked: 100, Problem: "one"}, {CPU: 4, Asked: 100}, {CPU: 9, Asked: 100, Problem: "two"}}),
	}
	compare(rows)
	if r := rows[1]; rows[0].CPU != 20 || rows[0].Most != 30 || r.OfRedis != 0.25 || r.Problem != "one; two" || r.Second != 100 {
		t.Errorf("%+v", rows)
	}
}

// Where the others cannot be built, the command says so.
func TestPeersWithoutModule(t *testing.T) {
	p := &Peers{Nodes: []int{1}, Rate: 100, Length: 1e9, Rounds: 1, Module: t.TempDir() + "/none"}
	if _, err := p.Measure(t.Context()); err == nil {
		t.Error("there is no module, and no error")
	}
	_, err := (&Peers{Nodes: []int{0}, Rate: -1, Length: 1e9, Rows: []string{"luke"}, Ways: []string{"x"}}).Measure(t.Context())
	for _, part := range []string{"--nodes", "--rounds", "the rate", "--rows is luke", "--ways is x"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
}
