package service

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/installed"
	"berth/test/timeouts"
)

const (
	socket = "/run/berth/berth.sock"
	own    = "/sys/fs/cgroup/system.slice/berth.service/daemon"
	little = 128 << 20 // the least that limits.memory takes
)

// stalled is a connection that is not read from after the first few bytes, as that of a stopped client.
type stalled struct {
	net.Conn
	left atomic.Int64
	end  chan struct{}
	once sync.Once
}

func (s *stalled) Read(p []byte) (int, error) {
	if s.left.Load() <= 0 {
		<-s.end
		return 0, net.ErrClosed
	}
	n, err := s.Conn.Read(p)
	s.left.Add(-int64(n))
	return n, err
}

func (s *stalled) Close() error {
	s.once.Do(func() { close(s.end) })
	return s.Conn.Close()
}

// listWithoutReading has the daemon answer with as much as it keeps for one client.
func listWithoutReading(t *testing.T) (stop func()) {
	t.Helper()
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		s := &stalled{Conn: c, end: make(chan struct{})}
		s.left.Store(32 << 10)
		return s, nil
	}
	conn, err := grpc.NewClient("passthrough:berth", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	for range 60 {
		go func() {
			_, _ = runtimeapi.NewRuntimeServiceClient(conn).ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		}()
	}
	return func() { _ = conn.Close() }
}

// wordyPods makes pods whose list is large, and returns what removes them.
func wordyPods(t *testing.T, n int) (remove func()) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	c := runtimeapi.NewRuntimeServiceClient(conn)
	var ids []string
	for i := range n {
		host := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}
		resp, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata:    &runtimeapi.PodSandboxMetadata{Name: fmt.Sprint("wordy", i), Namespace: "n", Uid: fmt.Sprint(i)},
			Annotations: map[string]string{"words": strings.Repeat("x", 500<<10)},
			Linux: &runtimeapi.LinuxPodSandboxConfig{
				SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: host}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, resp.PodSandboxId)
	}
	return func() {
		defer conn.Close()
		for _, id := range ids {
			if _, err := c.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
				t.Errorf("remove a pod: %v", err)
			}
		}
	}
}

// load runs pods until stop, which returns the names of those that the daemon has said it runs.
func load(t *testing.T) (stop func() []string) {
	t.Helper()
	end, ended := make(chan struct{}), make(chan []string)
	go func() {
		var there []string
		for i := 0; ; i++ {
			select {
			case <-end:
				ended <- there
				return
			default:
			}
			name := fmt.Sprint("load", i)
			if _, err := installed.Try("berth", "run", "-d", "--name", name, image, "sleep", "100000"); err == nil {
				there = append(there, name)
			} else {
				time.Sleep(time.Second)
			}
		}
	}()
	return func() []string { close(end); return <-ended }
}

// dieOfMemory has daemons killed at the limit of their memory, one after the other while pods are made, until one runs
// without a limit. No pod is lost.
func dieOfMemory(t *testing.T, pid int) int {
	const file = "/etc/berth/conf.d/50-memory.toml"
	if err := os.WriteFile(file, []byte(fmt.Sprintf("[limits]\nmemory = %d\n", little)), 0o644); err != nil {
		t.Fatal(err)
	}
	installed.Run(t, "systemctl", "restart", unit)
	pid = serving(t, pid)
	bound := func() string {
		text, err := os.ReadFile(filepath.Join(own, "memory.max"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	if got := bound(); got != fmt.Sprint(little) {
		t.Errorf("the daemon's memory.max is %s", got)
	}
	remove := wordyPods(t, 15)
	stop := load(t)
	for range 3 {
		free := listWithoutReading(t)
		pid = serving(t, pid)
		free()
	}
	if got := bound(); got != "max" {
		t.Errorf("after three deaths memory.max is %s\n%s", got, installed.Journal())
	}
	doctor, _ := installed.Try("berth", "doctor")
	if !strings.Contains(doctor, "killed 3 times in ten minutes") || !strings.Contains(doctor, "raise limits.memory") {
		t.Errorf("the doctor says\n%s", doctor)
	}
	free := listWithoutReading(t)
	time.Sleep(timeouts.For(5 * time.Second)) // in which one with it would have died
	if got := mainPid(t); got != pid {
		t.Errorf("a daemon without a limit was killed\n%s", installed.Journal())
	}
	free()
	names := stop()
	if len(names) == 0 {
		t.Error("no pod was made meanwhile")
	}
	for _, name := range names {
		if out, err := installed.Try("berth", "exec", name, "--", "true"); err != nil {
			t.Errorf("%s, which was made, does not run: %v %s", name, err, out)
		}
	}
	t.Logf("%d pods were made while three daemons died", len(names))
	for _, c := range installed.Containers(t) { // those too whose maker saw the daemon die
		if strings.HasPrefix(c.Metadata.Name, "load") {
			installed.Run(t, "berth", "rm", "-f", c.Metadata.Name)
		}
	}
	remove()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	return pid
}
