package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/ratelimit/shed"
)

// memory is what the process has (VmRSS) or had at most (VmHWM), in MB.
func (s *sluice) memory(what string) int {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.Fatalf("the process has ended: %v\n%s", err, s.log())
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, what+":"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				s.Fatal(err)
			}
			return kb / 1024
		}
	}
	s.Fatalf("no %s in /proc: %s", what, text)
	return 0
}

// sockets is how many files and connections the process has open.
func (s *sluice) sockets() int {
	s.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	if err != nil {
		s.Fatal(err)
	}
	return len(open)
}

// served is what an honest client had of the server.
type served struct {
	took   []time.Duration // by rising length
	shed   int             // calls that were answered UNAVAILABLE at once
	failed int             // calls that had no answer
	why    error           // one of these
	sent   int             // bytes of the attacker
}

func (v *served) p99() time.Duration { return v.took[len(v.took)*99/100] }

// honest asks at honestRate, over a connection of its own, until ctx is done.
func (s *sluice) honest(ctx context.Context) *served {
	s.Helper()
	client := rls.NewRateLimitServiceClient(s.dial())
	q := hostileRequest(1)
	if _, err := client.ShouldRateLimit(context.Background(), q); err != nil {
		s.Fatal(err)
	}
	var v served
	var mu sync.Mutex // guards v
	var calls sync.WaitGroup
	for due := time.Now(); ctx.Err() == nil; due = due.Add(time.Second / honestRate) {
		// A client that was late makes up for it, so that no time is passed over.
		time.Sleep(time.Until(due))
		calls.Go(func() {
			begun := time.Now()
			bounded, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_, err := client.ShouldRateLimit(bounded, q)
			mu.Lock()
			defer mu.Unlock()
			v.took = append(v.took, time.Since(begun))
			switch {
			case errors.Is(err, shed.Err):
				v.shed++
			case err != nil:
				v.failed, v.why = v.failed+1, err
			}
		})
	}
	calls.Wait()
	slices.Sort(v.took)
	return &v
}

// attacker is a process that does a row to the server as soon as it reads a line.
func (s *sluice) attacker(a attack, said io.Writer) (cmd *exec.Cmd, begin io.Writer) {
	s.Helper()
	cmd = command([]string{"SLUICE_ATTACK=" + a.name, "SLUICE_ATTACK_RPC=" + s.rpc, "SLUICE_ATTACK_HTTP=" + s.http, "SLUICE_ATTACK_PEERS=" + s.peers})
	cmd.Stdout, cmd.Stderr = said, said
	begin, err := cmd.StdinPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, begin
}

// attacked is what an honest client has of the server while a row is done to it.
func (s *sluice) attacked(a attack) *served {
	s.Helper()
	var said bytes.Buffer
	cmd, begin := s.attacker(a, &said)
	ctx, cancel := context.WithCancel(context.Background())
	var ended error
	go func() {
		defer cancel()
		_, _ = io.WriteString(begin, "\n")
		ended = cmd.Wait()
	}()
	looked := make(chan error, 1)
	time.AfterFunc(attackFor/2, func() {
		if a.meanwhile == nil {
			looked <- nil
			return
		}
		looked <- a.meanwhile(s)
	})
	v := s.honest(ctx)
	if err := <-looked; err != nil {
		s.Errorf("meanwhile: %v", err)
	}
	if ended != nil {
		s.Fatalf("the attacker: %v\n%s", ended, said.String())
	}
	_, text, _ := strings.Cut(said.String(), "sent ")
	v.sent = s.number(strings.TrimSpace(text))
	return v
}
