package cri

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
	"berth/internal/telemetry"
	"berth/test/timeouts"
)

// dial serves s on a socket and returns a client.
func dial(t *testing.T, s *Server) runtimeapi.RuntimeServiceClient {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_, stream := telemetry.Interceptors(slog.New(slog.DiscardHandler), func() bool { return true }, nil)
	g := grpc.NewServer(grpc.StreamInterceptor(stream))
	s.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return runtimeapi.NewRuntimeServiceClient(conn)
}

func (s *Server) watchers(t *testing.T, want int) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(10 * time.Second)); s.Pods.Feed.EventCounts().Watchers != want; time.Sleep(
		time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d watch, wanted %d", s.Pods.Feed.EventCounts().Watchers, want)
		}
	}
}

// TestEventsThatNobodyReads has one client read and another not, which holds nobody up, loses what it does not read,
// and is told so when it reads after all.
func TestEventsThatNobodyReads(t *testing.T) {
	t.Parallel()
	missing := false
	pods := openPods(t, &missing)
	s := &Server{Pods: pods, Catalog: &pods.Catalog}
	defer s.Pods.Close()
	c := dial(t, s)
	open := func(ctx context.Context) runtimeapi.RuntimeService_GetContainerEventsClient {
		stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		if err == nil {
			_, err = stream.Header()
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	gone, leave := context.WithCancel(t.Context())
	open(gone)
	slow, quick := open(t.Context()), open(t.Context())
	s.watchers(t, 3)
	leave()
	s.watchers(t, 2)
	var made, got atomic.Int64
	read := make(chan int)
	go func() {
		n := 0
		for {
			e, err := quick.Recv()
			if err != nil {
				t.Errorf("the one who reads: %v", err)
			}
			n++
			got.Add(1)
			if err != nil || e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT &&
				e.PodSandboxStatus.Metadata.Name == "last" {
				read <- n
				return
			}
		}
	}()
	live := func(name string) {
		made.Add(4)
		req := bare(name, runtimeapi.NamespaceMode_CONTAINER)
		req.Config.Annotations = map[string]string{"a": strings.Repeat("x", 4096)} // a few fill what the connection holds
		resp, err := s.RunPodSandbox(t.Context(), req)
		if err == nil {
			_, err = s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: resp.PodSandboxId})
		}
		if err != nil {
			t.Error(err)
		}
	}
	var many errgroup.Group
	many.SetLimit(16)
	for n := 0; s.Pods.Feed.EventCounts().Dropped == 0; n++ {
		if n == 1000 {
			t.Fatal("one who does not read is not dropped")
		}
		for end := time.Now().Add(timeouts.For(time.Minute)); made.Load()-got.Load() > 500; time.Sleep(time.Millisecond) {
			if time.Now().After(end) { // however slowly it reads, it is not to be dropped as well
				t.Fatalf("the one who reads got %d events of %d", got.Load(), made.Load())
			}
		}
		many.Go(func() error { live(strconv.Itoa(n)); return nil })
	}
	_ = many.Wait()
	live("last")
	if n := <-read; int64(n) != made.Load() {
		t.Errorf("the one who reads got %d events of %d", n, made.Load())
	}
	for {
		if _, err := slow.Recv(); err != nil {
			if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "watch again") {
				t.Errorf("the one who does not read is told: %v", err)
			}
			return
		}
	}
}

// TestWatchersAreCounted refuses one more than there may be, until another has gone.
func TestWatchersAreCounted(t *testing.T) {
	missing := false
	pods := openPods(t, &missing)
	s := &Server{Pods: pods, Catalog: &pods.Catalog}
	defer s.Pods.Close()
	c := dial(t, s)
	open := func(ctx context.Context) error {
		stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		if err != nil {
			return err
		}
		if _, err := stream.Header(); err != nil {
			return err
		}
		return nil
	}
	gone, leave := context.WithCancel(t.Context())
	if err := open(gone); err != nil {
		t.Fatal(err)
	}
	for range limit.Watchers.Limit - 1 {
		if err := open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.watchers(t, int(limit.Watchers.Limit))
	stream, err := c.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), limit.Watchers.Name) {
		t.Errorf("one more is told: %v", err)
	}
	leave()
	s.watchers(t, int(limit.Watchers.Limit)-1)
	if err := open(t.Context()); err != nil {
		t.Errorf("after one has gone: %v", err)
	}
}

func TestPagesHoldEachItemOnce(t *testing.T) {
	var items []*runtimeapi.PodSandbox
	for i := range 300 {
		size := i * 100
		if i == 150 {
			size = 3 * pageSize
		}
		items = append(items, &runtimeapi.PodSandbox{Id: strconv.Itoa(i), RuntimeHandler: strings.Repeat("x", size)})
	}
	next, pages := 0, 0
	err := sendPages(items, func(page []*runtimeapi.PodSandbox) error {
		pages++
		size := 0
		for _, p := range page {
			if p.Id != strconv.Itoa(next) {
				t.Fatalf("item %s, wanted %d", p.Id, next)
			}
			next++
			size += len(p.RuntimeHandler)
		}
		if size > pageSize && len(page) > 1 {
			t.Errorf("a page of %d bytes with %d items", size, len(page))
		}
		return nil
	})
	if err != nil || next != len(items) || pages < 4 || pages > 10 {
		t.Errorf("%d items in %d pages: %v", next, pages, err)
	}
}
