package pods

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// watch probes a running program until ctx is done, and ends one that does not live. The liveness probe reports nothing
// before its first success, so a program that starts slowly is not killed.
func (c *container) watch(ctx context.Context, cmd *exec.Cmd) {
	go c.probe(ctx, c.spec.LivenessProbe, func(live bool) {
		if !live {
			c.Logf("%s of %s does not live", c.spec.Name, c.Name)
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		}
	})
	c.probe(ctx, c.spec.ReadinessProbe, c.ready.Store)
}

// probe reports the first success, and then each change. One success is enough, and FailureThreshold failures in a row
// change it back. Without a probe, the program counts as ready at once.
func (c *container) probe(ctx context.Context, p *core.Probe, report func(bool)) {
	if p == nil {
		report(true)
		return
	}
	period := time.Duration(p.PeriodSeconds) * time.Second
	good, failures := false, int32(0)
	// Until the first success, a test waits for each probe, so periods of the object would only cost time.
	for pause := 250 * time.Millisecond; ; {
		sleep(ctx, pause)
		err := c.handle(ctx, p.ProbeHandler, time.Duration(p.TimeoutSeconds)*time.Second)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failures++
		} else {
			failures, pause = 0, period
		}
		now := err == nil || good && failures < p.FailureThreshold
		if now != good {
			good = now
			report(good)
		}
	}
}

// handle does what a probe or a hook says, in at most limit. An HTTP answer below 400 is a success, and a command's
// exit status 0. The API server has filled in the defaults, such as TimeoutSeconds.
func (c *container) handle(ctx context.Context, h core.ProbeHandler, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch {
	case h.Exec != nil:
		cmd, err := c.start(h.Exec.Command)
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
		defer stop()
		return cmd.Wait()
	case h.HTTPGet != nil:
		to := "http://" + net.JoinHostPort(c.address, c.port(h.HTTPGet.Port)) + h.HTTPGet.Path
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
		if err != nil {
			return err
		}
		answer, err := probes.Do(r)
		if err != nil {
			return err
		}
		_ = answer.Body.Close()
		if answer.StatusCode >= http.StatusBadRequest {
			return fmt.Errorf("%s: %s", to, answer.Status)
		}
		return nil
	case h.GRPC != nil:
		conn, err := grpc.NewClient(net.JoinHostPort(c.address, strconv.Itoa(int(h.GRPC.Port))), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		answer, err := health.NewHealthClient(conn).Check(ctx, &health.HealthCheckRequest{Service: *h.GRPC.Service})
		if err == nil && answer.Status != health.HealthCheckResponse_SERVING {
			err = errors.New(answer.Status.String())
		}
		return err
	case h.TCPSocket != nil:
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(c.address, c.port(h.TCPSocket.Port)))
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	return errors.New("this kind of probe is unknown here")
}

// probes makes the HTTP requests of probes. A kept connection would show an old process as alive, after a new one has
// taken its address.
var probes = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// port returns the number of a port that may be a name. A number stays as it is.
func (c *container) port(p intstr.IntOrString) string {
	for _, named := range c.spec.Ports {
		if p.Type == intstr.String && named.Name == p.StrVal {
			return strconv.Itoa(int(named.ContainerPort))
		}
	}
	return p.String()
}
