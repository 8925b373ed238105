package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// daemon is a Server that does what a test tells it.
type daemon struct {
	info    *InfoResponse
	pull    func(*PullRequest, func(*PullEvent) error) error
	load    func(context.Context, io.Reader, func(*PullEvent) error) error
	save    func(context.Context, *ExportRequest, io.Writer, func(*PullEvent) error) error
	pulls   func(func(*Underway) error) error
	images  func(*ImagesRequest, func(*ImageDetail) error) error
	attach  func(context.Context, *AttachRequest, func() (*AttachInput, error), func(*AttachOutput) error) error
	exec    func(context.Context, *ExecRequest, func() (*AttachInput, error), func(*AttachOutput) error) error
	forward func(*PortForwardRequest, func() (*PortData, error), func(*PortData) error) error
	check   func(*CheckRequest, func(*Finding) error) error
	signal  func(*SignalRequest) error
	tag     func(*TagRequest) error
}

func (d *daemon) Signal(_ context.Context, req *SignalRequest) error { return d.signal(req) }
func (d *daemon) Tag(_ context.Context, req *TagRequest) error       { return d.tag(req) }
func (d *daemon) Sweep(context.Context) error                        { return nil }

func (d *daemon) Reload(context.Context) (*ReloadResponse, error) {
	return &ReloadResponse{
		Changes: []Change{{Key: "log_level", Old: `"info"`, New: `"debug"`},
			{Key: "root", Old: `"/a"`, New: `"/b"`, Restart: true}}}, nil
}
func (d *daemon) Info(context.Context) (*InfoResponse, error) { return d.info, nil }
func (d *daemon) Pull(_ context.Context, req *PullRequest, send func(*PullEvent) error) error {
	return d.pull(req, send)
}
func (d *daemon) Pulls(_ context.Context, send func(*Underway) error) error { return d.pulls(send) }
func (d *daemon) Import(ctx context.Context, r io.Reader, send func(*PullEvent) error) error {
	return d.load(ctx, r, send)
}
func (d *daemon) Export(ctx context.Context, req *ExportRequest, w io.Writer, send func(*PullEvent) error) error {
	return d.save(ctx, req, w, send)
}
func (d *daemon) Images(_ context.Context, req *ImagesRequest, send func(*ImageDetail) error) error {
	return d.images(req, send)
}
func (d *daemon) Attach(ctx context.Context, req *AttachRequest, recv func() (*AttachInput, error),
	send func(*AttachOutput) error) error {
	return d.attach(ctx, req, recv, send)
}
func (d *daemon) Exec(ctx context.Context, req *ExecRequest, recv func() (*AttachInput, error),
	send func(*AttachOutput) error) error {
	return d.exec(ctx, req, recv, send)
}
func (d *daemon) PortForward(_ context.Context, req *PortForwardRequest, recv func() (*PortData, error),
	send func(*PortData) error) error {
	return d.forward(req, recv, send)
}
func (d *daemon) Check(_ context.Context, req *CheckRequest, send func(*Finding) error) error {
	return d.check(req, send)
}

func serve(t *testing.T, d *daemon, opts ...grpc.ServerOption) *Client {
	t.Helper()
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(opts...)
	Register(g, d)
	go func() { _ = g.Serve(l) }()
	cc, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close(); g.Stop() })
	return NewClient(cc)
}

func TestInfoComesThroughInterceptors(t *testing.T) {
	want := &InfoResponse{Version: "v1", Instance: "berth", Config: "root = \"/x\"\n",
		Host:     json.RawMessage(`{"Kernel":"6.1"}`),
		Startup:  []StartupStep{{"load", 3 * time.Millisecond}},
		Problems: []Problem{{Pod: "ab", Step: "network", Message: "no plugin", Since: time.Unix(5, 0).UTC()}}}
	var method string
	c := serve(t, &daemon{info: want}, grpc.UnaryInterceptor(
		func(ctx context.Context, req any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			method = i.FullMethod
			return next(ctx, req)
		}))
	got, err := c.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if method != "/berth.v1.Node/Info" {
		t.Errorf("the interceptor saw %q", method)
	}
}

func TestPullReportsAndReturnsTheImage(t *testing.T) {
	events := []PullEvent{{Layer: "sha256:1", Phase: "downloading", Done: 1, Total: 2},
		{Layer: "sha256:1", Phase: "done", Done: 2, Total: 2},
		{Image: "sha256:i", Names: []string{"a:1"}}}
	var asked PullRequest
	c := serve(t, &daemon{pull: func(req *PullRequest, send func(*PullEvent) error) error {
		asked = *req
		for i := range events {
			if err := send(&events[i]); err != nil {
				return err
			}
		}
		return nil
	}})
	var got []PullEvent
	req := PullRequest{Reference: "a:1", Username: "u", Password: "p", Platform: "linux/arm64"}
	img, err := c.Pull(t.Context(), &req, func(e PullEvent) { got = append(got, e) })
	if err != nil {
		t.Fatal(err)
	}
	if img.ID != "sha256:i" || !reflect.DeepEqual(got, events) || asked != req {
		t.Errorf("image %v, events %v, request %v", img, got, asked)
	}
}

func TestPullPassesTheCodeOn(t *testing.T) {
	c := serve(t, &daemon{pull: func(*PullRequest, func(*PullEvent) error) error {
		return status.Error(codes.NotFound, "no such image")
	}})
	_, err := c.Pull(t.Context(), &PullRequest{}, nil)
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "no such image") {
		t.Errorf("got %v", err)
	}
}

func TestPullWithoutImageIsAnError(t *testing.T) {
	c := serve(t, &daemon{pull: func(*PullRequest, func(*PullEvent) error) error { return nil }})
	if img, err := c.Pull(t.Context(), &PullRequest{Reference: "x"}, nil); err == nil {
		t.Errorf("got %v", img)
	}
}

func TestImportCarriesEveryByte(t *testing.T) {
	for _, size := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 3*chunkSize + 17} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			want := bytes.Repeat([]byte("berth\x00\xff"), size/7+1)[:size]
			var got []byte
			c := serve(t, &daemon{load: func(_ context.Context, r io.Reader, send func(*PullEvent) error) (err error) {
				if got, err = io.ReadAll(r); err != nil {
					return err
				}
				return errors.Join(send(&PullEvent{Image: "1"}), send(&PullEvent{Image: "2"}))
			}})
			images, err := c.Import(t.Context(), bytes.NewReader(want), nil)
			if err != nil || len(images) != 2 || !bytes.Equal(got, want) {
				t.Errorf("%d bytes of %d came, images %v, error %v", len(got), size, images, err)
			}
		})
	}
}

func TestExportCarriesEveryByte(t *testing.T) {
	for _, size := range []int{0, 1, chunkSize, chunkSize + 1, 9*chunkSize + 17} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			want := bytes.Repeat([]byte("berth\x00\xff"), size/7+1)[:size]
			var asked ExportRequest
			c := serve(t,
				&daemon{save: func(_ context.Context, req *ExportRequest, w io.Writer, send func(*PullEvent) error) error {
					asked = *req
					_, err := w.Write(want)
					return errors.Join(err, send(&PullEvent{Layer: "sha256:1", Done: int64(size)}))
				}})
			var got bytes.Buffer
			var steps []PullEvent
			req := ExportRequest{Images: []string{"a", "b"}, Format: "docker", Compress: true}
			err := c.Export(t.Context(), &req, &got, func(e PullEvent) { steps = append(steps, e) })
			if err != nil || !bytes.Equal(got.Bytes(), want) || !reflect.DeepEqual(asked, req) || len(steps) != 1 ||
				steps[0].Done != int64(size) {
				t.Errorf("%d bytes of %d came, steps %v, request %v, error %v", got.Len(), size, steps, asked, err)
			}
		})
	}
}

func TestExportThatFailsSaysSo(t *testing.T) {
	c := serve(t, &daemon{save: func(_ context.Context, _ *ExportRequest, w io.Writer, _ func(*PullEvent) error) error {
		_, _ = w.Write(make([]byte, 3*chunkSize))
		return status.Error(codes.DataLoss, "a file has changed")
	}})
	if err := c.Export(t.Context(), &ExportRequest{}, io.Discard, nil); status.Code(err) != codes.DataLoss {
		t.Errorf("got %v", err)
	}
}

type fullDisk struct{ err error }

func (f fullDisk) Write([]byte) (int, error) { return 0, f.err }

func TestExportEndsForTheDaemonWhenTheClientCannotWrite(t *testing.T) {
	ended := make(chan error, 1)
	c := serve(t, &daemon{save: func(_ context.Context, _ *ExportRequest, w io.Writer, _ func(*PullEvent) error) error {
		for {
			if _, err := w.Write(make([]byte, chunkSize)); err != nil {
				ended <- err
				return err
			}
		}
	}})
	full := errors.New("no space left")
	if err := c.Export(t.Context(), &ExportRequest{}, fullDisk{full}, nil); !errors.Is(err, full) {
		t.Errorf("the client got %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the daemon was not told")
	}
}

func TestImagesComeOneByOne(t *testing.T) {
	want := []ImageDetail{
		{ID: "1", Tags: []string{"a:1"}, Digests: []string{}, Layers: []LayerDetail{{ID: "d1", Disk: 5}},
			Config: json.RawMessage(`{"os":"linux"}`)},
		{ID: "2", Tags: []string{}, Digests: []string{"a@b"}, Layers: []LayerDetail{}, Pinned: true}}
	c := serve(t, &daemon{images: func(req *ImagesRequest, send func(*ImageDetail) error) error {
		if !req.Config || len(req.Images) != 1 {
			return errors.New("the request was lost")
		}
		return errors.Join(send(&want[0]), send(&want[1]))
	}})
	got, err := c.Images(t.Context(), &ImagesRequest{Images: []string{"x"}, Config: true})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestPullsComeOneByOne has more pulls, of more layers, than one message takes.
func TestPullsComeOneByOne(t *testing.T) {
	want := Underway{
		Reference: "a:1", Namespace: "default", Pod: "web", Began: time.Unix(1, 0).UTC(), Phase: "downloading",
		Done: 1, Total: 2, Rate: 3, Hosts: []string{"mirror:5000"},
	}
	for range 200 {
		layer := PullEvent{Layer: "sha256:" + strings.Repeat("1", 64), Total: 2, Host: "mirror:5000"}
		want.Layers = append(want.Layers, layer)
	}
	c := serve(t, &daemon{pulls: func(send func(*Underway) error) (err error) {
		for range 1000 {
			err = errors.Join(err, send(&want))
		}
		return err
	}})
	got, err := c.Pulls(t.Context())
	if err != nil || len(got) != 1000 || !reflect.DeepEqual(got[999], want) {
		t.Errorf("got %d, %v", len(got), err)
	}
	c = serve(t, &daemon{pulls: func(func(*Underway) error) error { return nil }})
	if got, err := c.Pulls(t.Context()); err != nil || got == nil || len(got) != 0 {
		t.Errorf("without pulls: %v, %v", got, err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestImportRefusedEarlySaysWhy(t *testing.T) {
	c := serve(t, &daemon{load: func(_ context.Context, r io.Reader, _ func(*PullEvent) error) error {
		_, _ = r.Read(make([]byte, 10))
		return status.Error(codes.InvalidArgument, "not an archive")
	}})
	_, err := c.Import(t.Context(), endless{}, nil)
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestImportOfABrokenReaderEndsOnBothSides(t *testing.T) {
	ended := make(chan error, 1)
	c := serve(t, &daemon{load: func(_ context.Context, r io.Reader, _ func(*PullEvent) error) error {
		_, err := io.ReadAll(r)
		ended <- err
		return err
	}})
	broken := errors.New("disk on fire")
	if _, err := c.Import(t.Context(), failing{broken}, nil); !errors.Is(err, broken) {
		t.Errorf("the client got %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the daemon took half an archive for a whole one")
	}
}

// echo answers input until stdin is closed, from two goroutines as a daemon does.
func echo(_ context.Context, req *AttachRequest, recv func() (*AttachInput, error),
	send func(*AttachOutput) error) error {
	if err := send(&AttachOutput{Ready: true}); err != nil {
		return err
	}
	var sizes Size
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		in, err := recv()
		if err != nil {
			return err
		}
		switch {
		case in.Resize != nil:
			sizes = *in.Resize
			wg.Go(func() { _ = send(&AttachOutput{Stderr: fmt.Appendf(nil, "%dx%d", sizes.Width, sizes.Height)}) })
		case in.CloseStdin:
			return send(&AttachOutput{Stdout: []byte("bye " + req.Container)})
		default:
			if err := send(&AttachOutput{Stdout: in.Stdin}); err != nil {
				return err
			}
		}
	}
}

func TestAttachCarriesInputOutputAndSize(t *testing.T) {
	c := serve(t, &daemon{attach: echo})
	in, typed := io.Pipe()
	resize := make(chan Size)
	errs, said := io.Pipe()
	var out bytes.Buffer
	size := make([]byte, 5)
	go func() {
		resize <- Size{80, 24}
		_, _ = io.ReadFull(errs, size) // the end of the input ends the session
		for range 100 {
			_, _ = io.WriteString(typed, "x")
		}
		_ = typed.Close()
	}()
	ready := 0
	err := c.Attach(t.Context(), &AttachRequest{Container: "c", TTY: true, Stdin: true},
		Streams{In: in, Out: &out, Err: said, Resize: resize, Ready: func() { ready++ }})
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("x", 100) + "bye c"; out.String() != want || string(size) != "80x24" || ready != 1 {
		t.Errorf("out %q, err %q, ready %d times", out.String(), size, ready)
	}
}

func TestAttachEndsForTheDaemonWhenTheClientGoes(t *testing.T) {
	gone := make(chan error, 1)
	c := serve(t,
		&daemon{
			attach: func(_ context.Context, _ *AttachRequest, recv func() (*AttachInput, error),
				send func(*AttachOutput) error) error {
				_ = send(&AttachOutput{Ready: true})
				_, err := recv()
				gone <- err
				return err
			}})
	ctx, cancel := context.WithCancel(t.Context())
	err := c.Attach(ctx, &AttachRequest{}, Streams{Ready: cancel})
	if status.Code(err) != codes.Canceled {
		t.Errorf("the client got %v", err)
	}
	if err := <-gone; err == nil {
		t.Error("the daemon was not told")
	}
}

func TestCheckStreamsFindings(t *testing.T) {
	want := []Finding{{Image: "i", Layer: "l", Path: "/p", Problem: "differs", Repaired: true},
		{Pod: "p", Problem: "torn"}}
	c := serve(t, &daemon{check: func(req *CheckRequest, send func(*Finding) error) error {
		if !req.Repair {
			return errors.New("repair was lost")
		}
		return errors.Join(send(&want[0]), send(&want[1]))
	}})
	var got []Finding
	if err := c.Check(t.Context(), &CheckRequest{Repair: true}, func(f Finding) { got = append(got, f) }); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestExecCarriesTheExitCode(t *testing.T) {
	silent := false
	c := serve(t,
		&daemon{
			exec: func(_ context.Context, req *ExecRequest, recv func() (*AttachInput, error),
				send func(*AttachOutput) error) error {
				in, err := recv()
				if err != nil || silent {
					return err
				}
				code := 7
				return send(&AttachOutput{Stdout: append(in.Stdin, req.Command[0]...), Exit: &code})
			}})
	var out bytes.Buffer
	for _, silent = range []bool{false, true} {
		code, err := c.Exec(t.Context(), &ExecRequest{Command: []string{" b"}, Stdin: true},
			Streams{In: strings.NewReader("a"), Out: &out})
		if silent && err == nil || !silent && (code != 7 || err != nil || out.String() != "a b") {
			t.Errorf("code %d, %v, %q", code, err, out.String())
		}
	}
}

// TestExecWhoseInputCannotBeRead gives the command up, which sees no end of its input, and says why.
func TestExecWhoseInputCannotBeRead(t *testing.T) {
	broken := errors.New("input/output error")
	begun, heard := make(chan struct{}), make(chan string, 1)
	c := serve(t, &daemon{
		exec: func(_ context.Context, _ *ExecRequest, recv func() (*AttachInput, error),
			send func(*AttachOutput) error) error {
			text := ""
			for {
				in, err := recv()
				if err != nil {
					heard <- text
					return err
				}
				if text += string(in.Stdin); in.CloseStdin {
					heard <- text + ", and the end"
					return send(&AttachOutput{Exit: new(int)})
				}
				if text != "" {
					close(begun)
				}
			}
		}})
	breaks := readerFunc(func([]byte) (int, error) { <-begun; return 0, broken })
	in := io.MultiReader(strings.NewReader("some"), breaks)
	code, err := c.Exec(t.Context(), &ExecRequest{Stdin: true}, Streams{In: in})
	if !errors.Is(err, broken) || err.Error() != "read the input: input/output error" {
		t.Errorf("code %d, %v", code, err)
	}
	if got := <-heard; got != "some" {
		t.Errorf("the command had %s", got)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestPortForwardCarriesBothEnds(t *testing.T) {
	c := serve(t,
		&daemon{forward: func(req *PortForwardRequest, recv func() (*PortData, error), send func(*PortData) error) error {
			if req.Port == 1 {
				return errors.New("nobody listens")
			}
			_ = send(&PortData{})
			var said []byte
			for {
				d, err := recv()
				if err != nil {
					return err
				}
				if said = append(said, d.Data...); d.End {
					return send(&PortData{Data: append([]byte("heard "), said...), End: true})
				}
			}
		}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for port, want := range map[uint16]string{80: "heard hello", 1: ""} {
		ended := make(chan error, 1)
		go func() {
			conn, err := l.Accept()
			if err == nil {
				err = c.PortForward(t.Context(), &PortForwardRequest{Port: port}, conn.(*net.TCPConn))
			}
			ended <- err
		}()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte("hello"))
		_ = conn.(*net.TCPConn).CloseWrite()
		got, _ := io.ReadAll(conn)
		if err := <-ended; string(got) != want || (err == nil) != (want != "") {
			t.Errorf("port %d: %q, %v", port, got, err)
		}
		_ = conn.Close()
	}
}

// TestRequestsWithoutAnAnswer has what is asked for arrive, and errors keep their codes.
func TestRequestsWithoutAnAnswer(t *testing.T) {
	var signal SignalRequest
	var tag TagRequest
	c := serve(t, &daemon{
		signal: func(r *SignalRequest) error { signal = *r; return nil },
		tag:    func(r *TagRequest) error { tag = *r; return status.Error(codes.NotFound, "no image") },
	})
	if err := c.Signal(t.Context(), &SignalRequest{Container: "c", Signal: "HUP"}); err != nil || signal.Signal != "HUP" ||
		signal.Container != "c" {
		t.Errorf("%v, %+v", err, signal)
	}
	if err := c.Tag(t.Context(), &TagRequest{Image: "i", Name: "n"}); status.Code(err) != codes.NotFound ||
		tag.Image != "i" ||
		tag.Name != "n" {
		t.Errorf("%v, %+v", err, tag)
	}
}
