package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"google.golang.org/grpc"
)

// chunkSize is how much of an archive goes into one message; as base64 it stays well below gRPC's limit of 4 MiB.
const chunkSize = 512 << 10

// Client calls the service. Its errors are gRPC status errors, or those of the readers and writers given to it.
type Client struct{ cc grpc.ClientConnInterface }

// NewClient makes a client that calls over cc.
func NewClient(cc grpc.ClientConnInterface) *Client { return &Client{cc: cc} }

// Image is one that a pull or an import brought.
type Image struct {
	ID    string   `json:"id"`
	Names []string `json:"names"`
}

// Info asks the daemon about itself.
func (c *Client) Info(ctx context.Context) (*InfoResponse, error) {
	resp := new(InfoResponse)
	if err := c.cc.Invoke(ctx, method("Info"), &none{}, resp, grpc.CallContentSubtype(subtype)); err != nil {
		return nil, err
	}
	return resp, nil
}

// Reload has the daemon take over its configuration files as they are now.
func (c *Client) Reload(ctx context.Context) (*ReloadResponse, error) {
	resp := new(ReloadResponse)
	if err := c.cc.Invoke(ctx, method("Reload"), &none{}, resp, grpc.CallContentSubtype(subtype)); err != nil {
		return nil, err
	}
	return resp, nil
}

// Signal sends a container a signal.
func (c *Client) Signal(ctx context.Context, req *SignalRequest) error {
	return c.cc.Invoke(ctx, method("Signal"), req, &none{}, grpc.CallContentSubtype(subtype))
}

// Tag gives an image one more name, or takes one away.
func (c *Client) Tag(ctx context.Context, req *TagRequest) error {
	return c.cc.Invoke(ctx, method("Tag"), req, &none{}, grpc.CallContentSubtype(subtype))
}

// Sweep removes layers that nothing has.
func (c *Client) Sweep(ctx context.Context) error {
	return c.cc.Invoke(ctx, method("Sweep"), &none{}, &none{}, grpc.CallContentSubtype(subtype))
}

// Pull brings an image into the daemon's store. progress may be nil; it is called for one event after the other.
func (c *Client) Pull(ctx context.Context, req *PullRequest, progress func(PullEvent)) (Image, error) {
	stream, end, err := c.open(ctx, "Pull", req)
	if err != nil {
		return Image{}, err
	}
	defer end()
	images, err := collect(stream, progress)
	if err != nil {
		return Image{}, err
	}
	if len(images) == 0 {
		return Image{}, fmt.Errorf("pull %s: the daemon did not say which image it is", req.Reference)
	}
	return images[len(images)-1], nil
}

// Pulls asks which pulls are under way.
func (c *Client) Pulls(ctx context.Context) ([]Underway, error) {
	stream, end, err := c.open(ctx, "Pulls", &none{})
	if err != nil {
		return nil, err
	}
	defer end()
	pulls := []Underway{}
	err = each(stream, func(u *Underway) { pulls = append(pulls, *u) })
	return pulls, err
}

// Import sends an archive to the daemon and returns the images that it held. progress is as for Pull.
func (c *Client) Import(ctx context.Context, archive io.Reader, progress func(PullEvent)) ([]Image, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, end, err := c.open(ctx, "Import", nil)
	if err != nil {
		return nil, err
	}
	defer end()
	go func() {
		if err := sendArchive(stream, archive); err != nil {
			cancel(fmt.Errorf("read the archive: %w", err))
		}
	}()
	images, err := collect(stream, progress)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	return images, err
}

// Export asks for an archive of images and writes it to w. What is in w is whole only when the error is nil. progress
// is as for Pull.
func (c *Client) Export(ctx context.Context, req *ExportRequest, w io.Writer, progress func(PullEvent)) error {
	stream, end, err := c.open(ctx, "Export", req)
	if err != nil {
		return err
	}
	defer end()
	for {
		e, err := receive[exportEvent](stream)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if e.Step != nil && progress != nil {
			progress(*e.Step)
		}
		if len(e.Data) == 0 {
			continue
		}
		if _, err := w.Write(e.Data); err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
	}
}

// Images asks about images.
func (c *Client) Images(ctx context.Context, req *ImagesRequest) ([]ImageDetail, error) {
	stream, end, err := c.open(ctx, "Images", req)
	if err != nil {
		return nil, err
	}
	defer end()
	images := []ImageDetail{}
	err = each(stream, func(d *ImageDetail) { images = append(images, *d) })
	return images, err
}

// Streams are the client's ends of an attach or exec session. In may be nil; so may Resize. A session whose In fails
// otherwise than by io.EOF ends with that error.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Resize   <-chan Size
	// Ready, when set, is called once: from then on no output is missed.
	Ready func()
	// Behind, when set, is called when the daemon sends no more output because it was not taken fast enough, and the
	// session goes on for the input, until its context ends.
	Behind func()
}

// Attach joins the streams of a container and returns when its output ends. A Read of s.In that is under way then is
// left behind: it ends with its next byte or end of file.
func (c *Client) Attach(ctx context.Context, req *AttachRequest, s Streams) error {
	_, err := c.converse(ctx, "Attach", req, s)
	return err
}

// Exec runs a command in a container, with its streams, and returns its exit code; that of a detached one is 0 while it
// runs. It leaves a Read behind as Attach does.
func (c *Client) Exec(ctx context.Context, req *ExecRequest, s Streams) (code int, err error) {
	exit, err := c.converse(ctx, "Exec", req, s)
	if err == nil && exit == nil && req.Detach {
		return 0, nil
	}
	if err == nil && exit == nil {
		err = errors.New("the daemon did not say how the command ended")
	}
	if err != nil {
		return 0, err
	}
	return *exit, nil
}

// converse is a session; it returns the exit code, if one came. When its input cannot be read, the session is given up,
// since a command that saw the end of its input there would take what it has for all.
func (c *Client) converse(outer context.Context, name string, req any, s Streams) (exit *int, err error) {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	stream, end, err := c.open(ctx, name, req)
	if err != nil {
		return nil, err
	}
	defer end()
	send := sender[AttachInput](stream)
	if s.In != nil {
		go func() {
			if err := sendInput(stream.Context(), s.In, send); err != nil {
				cancel(fmt.Errorf("read the input: %w", err))
			}
		}()
	}
	if s.Resize != nil {
		go sendSizes(stream.Context(), s.Resize, send)
	}
	for {
		out, err := receive[AttachOutput](stream)
		if errors.Is(err, io.EOF) {
			return exit, nil
		}
		if cause := context.Cause(ctx); err != nil && cause != nil && outer.Err() == nil {
			return nil, cause
		}
		if err != nil {
			return nil, err
		}
		if err := s.write(out); err != nil {
			return nil, err
		}
		if out.Exit != nil {
			exit = out.Exit
		}
	}
}

// PortForward connects what the caller has accepted to a port of a pod, until both directions have ended. It closes
// conn. What it returns an error for was not connected, or was cut.
func (c *Client) PortForward(ctx context.Context, req *PortForwardRequest, conn *net.TCPConn) error {
	defer conn.Close()
	stream, end, err := c.open(ctx, "PortForward", req)
	if err != nil {
		return err
	}
	defer end()
	if _, err := receive[PortData](stream); err != nil {
		return err
	}
	go func() {
		_ = SendPort(conn, sender[PortData](stream), end)
	}()
	for {
		d, err := receive[PortData](stream)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			_ = conn.SetLinger(0) // it was cut
			return err
		}
		if _, err := conn.Write(d.Data); err != nil {
			return err
		}
		if d.End {
			_ = conn.CloseWrite()
		}
	}
}

// SendPort sends what comes from a connection, and its end. A connection that was cut it has ended by cut.
func SendPort(conn io.Reader, send func(*PortData) error, cut func()) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := send(&PortData{Data: buf[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return send(&PortData{End: true})
		}
		if err != nil {
			cut()
			return err
		}
	}
}

// Check verifies what the daemon stores. found is called for one finding after the other.
func (c *Client) Check(ctx context.Context, req *CheckRequest, found func(Finding)) error {
	stream, end, err := c.open(ctx, "Check", req)
	if err != nil {
		return err
	}
	defer end()
	return each(stream, func(f *Finding) { found(*f) })
}

// open starts a stream of the named RPC. With a request it is sent; the stream stays open for more where the RPC takes
// more. end gives up what is left of it.
func (c *Client) open(ctx context.Context, name string, req any) (stream grpc.ClientStream, end func(), err error) {
	desc := streamDesc(name)
	ctx, end = context.WithCancel(ctx)
	stream, err = c.cc.NewStream(ctx, desc, method(name), grpc.CallContentSubtype(subtype))
	if err != nil {
		end()
		return nil, nil, err
	}
	if req != nil {
		err = stream.SendMsg(req)
	}
	if err == nil && !desc.ClientStreams {
		err = stream.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) { // of io.EOF the next receive tells the reason
		end()
		return nil, nil, err
	}
	return stream, end, nil
}

func streamDesc(name string) *grpc.StreamDesc {
	for i := range service.Streams {
		if service.Streams[i].StreamName == name {
			return &service.Streams[i]
		}
	}
	panic("admin: no stream is called " + name)
}

// each calls do for every message until the server ends the stream.
func each[T any](stream grpc.ClientStream, do func(*T)) error {
	for {
		m, err := receive[T](stream)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		do(m)
	}
}

// collect passes events on and keeps the images that they name.
func collect(stream grpc.ClientStream, progress func(PullEvent)) ([]Image, error) {
	var images []Image
	err := each(stream, func(e *PullEvent) {
		if e.Image != "" {
			images = append(images, Image{ID: e.Image, Names: e.Names})
		}
		if progress != nil {
			progress(*e)
		}
	})
	return images, err
}

// sendArchive returns only what went wrong with reading: when sending does, the stream itself knows why.
func sendArchive(stream grpc.ClientStream, archive io.Reader) error {
	buf := make([]byte, chunkSize)
	for {
		n, err := io.ReadFull(archive, buf)
		if n > 0 && stream.SendMsg(&chunk{Data: buf[:n]}) != nil {
			return nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			_ = stream.CloseSend() // it never fails
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *Streams) write(out *AttachOutput) error {
	if out.Ready && s.Ready != nil {
		s.Ready()
		s.Ready = nil
	}
	if len(out.Stdout) > 0 {
		if _, err := s.Out.Write(out.Stdout); err != nil {
			return err
		}
	}
	if len(out.Stderr) > 0 {
		if _, err := s.Err.Write(out.Stderr); err != nil {
			return err
		}
	}
	if out.Behind && s.Behind != nil {
		s.Behind()
	}
	return nil
}

// sendInput sends the input and its end. It sends no end when the session is given up, or when the input cannot be
// read, which is all that it returns an error for.
func sendInput(ctx context.Context, in io.Reader, send func(*AttachInput) error) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 && send(&AttachInput{Stdin: buf[:n]}) != nil {
			return nil // a stream that is gone is noticed by who receives
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, io.EOF) {
			_ = send(&AttachInput{CloseStdin: true}) // as above
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func sendSizes(ctx context.Context, sizes <-chan Size, send func(*AttachInput) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-sizes:
			if !ok || send(&AttachInput{Resize: &size}) != nil {
				return
			}
		}
	}
}
