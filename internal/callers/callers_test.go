package callers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/limit"
	"berth/test/timeouts"
)

// greedy is the variable that makes this program a client which takes all that it gets.
const greedy = "BERTH_TEST_GREEDY"

func TestMain(m *testing.M) {
	if what, socket, ok := strings.Cut(os.Getenv(greedy), " "); ok {
		beGreedy(what, socket)
	}
	os.Exit(m.Run())
}

// beGreedy asks for ten thousand of something, says how many it did not get, and stays.
func beGreedy(what, socket string) {
	const much = 10_000
	var refused atomic.Int64
	var kept []net.Conn
	switch what {
	case "connections": // half open: it never says a word
		for len(kept) < much {
			c, err := net.Dial("unix", socket)
			switch {
			case err == nil:
				kept = append(kept, c)
			case errors.Is(err, unix.EAGAIN): // more wait to be accepted than may wait
				time.Sleep(time.Millisecond)
			default:
				fmt.Println("error:", err)
				return
			}
		}
		for _, c := range kept { // the server speaks first, or ends it
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := c.Read(make([]byte, 64)); err != nil {
				refused.Add(1)
			}
		}
	case "execs", "events", "lists":
		c := connect(socket)
		var begun sync.WaitGroup
		for range map[string]int{"execs": much, "events": much, "lists": 500}[what] {
			begun.Add(1)
			go func() {
				var err error
				begun.Done()
				switch what {
				case "execs":
					_, err = c.ExecSync(context.Background(), &runtimeapi.ExecSyncRequest{})
				case "lists":
					_, err = c.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{})
				case "events":
					var s grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse]
					if s, err = c.GetContainerEvents(context.Background(), &runtimeapi.GetEventsRequest{}); err == nil {
						_, err = s.Recv()
					}
				}
				if status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "half at most") {
					refused.Add(1)
				} else {
					fmt.Println("error:", err)
				}
			}()
		}
		begun.Wait()
	}
	for told := int64(-1); ; time.Sleep(50 * time.Millisecond) {
		if n := refused.Load(); n != told {
			fmt.Println("refused", n)
			told = n
		}
	}
}

func connect(socket string) runtimeapi.RuntimeServiceClient {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		panic(err)
	}
	return runtimeapi.NewRuntimeServiceClient(conn)
}

// server answers what it is told to, when it is told to.
type server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	*Callers
	socket string
	lists  chan struct{} // closed when lists are to be answered
	asked  atomic.Int64  // lists
}

const listed = 4 << 20

var long = strings.Repeat("x", listed)

func (s *server) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{}, nil
}

func (s *server) ExecSync(ctx context.Context, _ *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *server) GetContainerEvents(
	_ *runtimeapi.GetEventsRequest, ss grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse],
) error {
	<-ss.Context().Done()
	return nil
}

func (s *server) ListContainers(
	context.Context, *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	s.asked.Add(1)
	<-s.lists
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: long}}}, nil
}

func serve(t *testing.T) *server {
	t.Helper()
	of := New(Limits{Connections: 200, Calls: 2000, Execs: 1000, Pulls: 20})
	s := &server{Callers: of, lists: make(chan struct{})}
	s.self = 0 // this process is a client like others here
	s.socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(s.Options()...)
	runtimeapi.RegisterRuntimeServiceServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(s.Listener(l)) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		s.wantUsed(t, map[string]int64{})
	})
	return s
}

// wantUsed waits until so much is used of each limit, and nothing of those that are not named.
func (s *server) wantUsed(t *testing.T, want map[string]int64) {
	t.Helper()
	end := time.Now().Add(timeouts.For(20 * time.Second))
	for {
		wrong := ""
		for _, b := range s.Budgets() {
			if b.Used != want[b.Name] {
				wrong = fmt.Sprintf("%s: %d used, wanted %d", b.Name, b.Used, want[b.Name])
			}
		}
		if wrong == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(wrong)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// greedyClient runs a client that takes all that it gets.
func (s *server) greedyClient(t *testing.T, what string) (cmd *exec.Cmd, says *bufio.Scanner) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), greedy+"="+what+" "+s.socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(cmd) })
	return cmd, bufio.NewScanner(out)
}

// wantSaid waits until a client has said a line: the text, or what begins with it where it ends with a space.
func wantSaid(t *testing.T, cmd *exec.Cmd, says *bufio.Scanner, text string) {
	t.Helper()
	defer time.AfterFunc(timeouts.For(30*time.Second), func() { _ = cmd.Process.Kill() }).Stop()
	last := ""
	for says.Scan() {
		if last = says.Text(); last == text || strings.HasSuffix(text, " ") && strings.HasPrefix(last, text) {
			return
		}
	}
	t.Fatalf("it said %q at last, wanted %q", last, text)
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// wantServed wants this process to be served as if nobody else were there.
func (s *server) wantServed(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(20*time.Second))
	defer cancel()
	conn, err := grpc.NewClient("unix:"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := runtimeapi.NewRuntimeServiceClient(conn)
	for range 20 {
		if _, err := c.Status(ctx, &runtimeapi.StatusRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if _, err := c.ExecSync(short, &runtimeapi.ExecSyncRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("exec: %v", err)
	}
	events, err := c.GetContainerEvents(short, &runtimeapi.GetEventsRequest{})
	if err == nil {
		_, err = events.Recv()
	}
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("events: %v", err)
	}
}

// TestGreedyClients has a client open ten thousand of everything. It gets half of what there is, is told of the rest
// at once, and the next client is served. It is stopped then, and another one comes; when both are killed nothing is
// left.
func TestGreedyClients(t *testing.T) {
	for what, c := range map[string]struct {
		refused int
		used    map[string]int64
	}{
		"connections": {9900, map[string]int64{limit.Connections.Name: 100}},
		"execs": {9500, map[string]int64{
			limit.Connections.Name: 1, limit.Calls.Name: 500, limit.Execs.Name: 500}},
		"events": {9950, map[string]int64{
			limit.Connections.Name: 1, limit.Calls.Name: 50, limit.Watchers.Name: 50}},
	} {
		t.Run(what, func(t *testing.T) {
			s := serve(t)
			first, says := s.greedyClient(t, what)
			wantSaid(t, first, says, fmt.Sprint("refused ", c.refused))
			s.wantUsed(t, c.used)
			s.wantServed(t)
			if err := first.Process.Signal(unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			s.wantServed(t)
			second, says := s.greedyClient(t, what)
			wantSaid(t, second, says, "refused ")
			s.wantServed(t)
			end(first)
			end(second)
			s.wantUsed(t, map[string]int64{})
		})
	}
}

// TestStoppedReader stops a client with five hundred lists under way, of 4 MiB each. The answers that are kept for it
// are bounded, others get theirs, and all is free when it is killed.
func TestStoppedReader(t *testing.T) {
	s := serve(t)
	reader, _ := s.greedyClient(t, "lists")
	for end := time.Now().Add(timeouts.For(20 * time.Second)); s.asked.Load() < 500; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("only %d lists were asked for", s.asked.Load())
		}
	}
	if err := reader.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	close(s.lists)
	s.wantUsed(t, map[string]int64{limit.Connections.Name: 1, limit.Answers.Name: 31 * (listed + 10)})
	if n := s.Refusals()[limit.Answers.Name]; n != 500-31 {
		t.Errorf("%d answers were refused", n)
	}
	c := connect(s.socket)
	for range 100 {
		list, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		if err != nil || len(list.Containers[0].Id) != listed {
			t.Fatalf("beside a client that reads nothing: %v", err)
		}
	}
	end(reader)
	s.wantUsed(t, map[string]int64{limit.Connections.Name: 1})
}

// TestShares counts what each of three clients gets of one thing.
func TestShares(t *testing.T) {
	s := newShare(limit.Calls.At(120))
	all := func(pid int32) (n int) {
		for s.take(pid, 1) == nil {
			n++
		}
		return n
	}
	if a, b, c := all(1), all(2), all(3); a != 60 || b != 30 || c != 15 {
		t.Errorf("they got %d, %d, %d", a, b, c)
	}
	err := s.take(1, 1)
	if !fail.Is(err, errdefs.ErrResourceExhausted) || fail.Details(err).Limit != limit.Calls.Name ||
		!strings.Contains(err.Error(), "process 1 has 60 of 105 in use") {
		t.Error(err)
	}
	for range 60 {
		s.give(1, 1)
	}
	if got := all(2); got != 22 {
		t.Errorf("the second got %d of what the first gave back", got)
	}
	if free := newShare(limit.Calls.At(0)); free.take(1, 1<<40) != nil {
		t.Error("0 is a limit")
	}
}
