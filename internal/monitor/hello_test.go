package monitor

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// TestHelloOfALargePod has a daemon ask the monitor of a pod with as many containers as a pod may have, all of which
// have ended while no daemon lived. The answer is one message.
func TestHelloOfALargePod(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	m := &Monitor{containers: map[string]*container{}, done: make(chan struct{})}
	const many = 1000 // limit.PodContainers
	for i := range many {
		id := fmt.Sprintf("%064x", i)
		p, now := wire.Process{PID: 4_000_000 + i, StartTime: 1 << 40}, time.Now()
		m.containers[id] = &container{
			m: m, id: id, state: wire.Exited, process: p, started: now, out: newOutput(m, id),
			exit: &wire.Exit{Process: p, Code: 137, Signal: 9, OOMKilled: true, StartedAt: now.UnixNano(),
				FinishedAt: now.UnixNano()},
		}
	}
	roomy(ends[1])
	c := &conn{m: m, f: os.NewFile(uintptr(ends[1]), "daemon"), gone: make(chan struct{})}
	defer c.f.Close()
	c.handle(t.Context(), &wire.Request{ID: 1, Op: wire.Hello, Version: wire.Version, Subscribe: true}, nil)
	data := make([]byte, largestReply)
	n, err := unix.Read(ends[0], data)
	var r wire.Reply
	if err == nil && n > 0 {
		err = json.Unmarshal(data[:n], &r)
	}
	if err != nil || len(r.Containers) != many {
		t.Errorf("%d bytes, %d containers, %v", n, len(r.Containers), err)
	}
}
