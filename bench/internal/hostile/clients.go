package hostile

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"

	"berth/bench/internal/kubelet"
)

// What clients ask for of one container: so often, and so much at once.
const (
	attachEvery, mostAttached = 50 * time.Millisecond, 200
	execEvery, mostExecs      = 300 * time.Millisecond, 50
	halfEvery, mostHalf       = 50 * time.Millisecond, 300
)

// quiet keeps the client's library from telling of each session that was cut off.
var quiet = sync.OnceFunc(func() { klog.SetLogger(klog.Logger{}) })

// hold has clients do to a container what belongs to its way, until the function that it returns is called.
func hold(ctx context.Context, way string, p *kubelet.Pod) (end func()) {
	quiet()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var clients sync.WaitGroup
	start := func(every time.Duration, most int, session func(ctx context.Context)) {
		places := make(chan struct{}, most)
		clients.Go(func() {
			for pause(ctx, every) == nil {
				select {
				case places <- struct{}{}:
				case <-ctx.Done():
					return
				}
				clients.Go(func() {
					session(ctx)
					<-places
				})
			}
		})
	}
	switch way {
	case "attach":
		start(attachEvery, mostAttached, func(ctx context.Context) {
			if at, err := p.AttachURL(ctx); err == nil {
				stalled(ctx, at)
			}
		})
	case "exec":
		start(execEvery, mostExecs, func(ctx context.Context) {
			if at, err := p.ExecURL(ctx, "/bin/yes"); err == nil {
				stalled(ctx, at)
			}
		})
	case "half-open":
		start(halfEvery, mostHalf, func(ctx context.Context) {
			if at, err := p.ExecURL(ctx, "/bin/yes"); err == nil {
				halfOpen(ctx, at)
			}
		})
	}
	return func() { cancel(); clients.Wait() }
}

// stalled joins a session, of which it reads nothing and to which it says nothing.
func stalled(ctx context.Context, address string) {
	at, err := url.Parse(address)
	if err != nil {
		return
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, at)
	if err != nil {
		return
	}
	_ = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: deaf{ctx}})
}

// deaf takes nothing until its context ends.
type deaf struct{ ctx context.Context }

func (d deaf) Write([]byte) (int, error) {
	<-d.ctx.Done()
	return 0, io.ErrClosedPipe
}

// halfOpen connects to where a session is to be had, and says no more than the beginning of a request. It stays for as
// long as it may.
func halfOpen(ctx context.Context, address string) {
	at, err := url.Parse(address)
	if err != nil {
		return
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", at.Host)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "POST "+at.RequestURI()+" HTTP/1.1\r\nHost: x\r\n"); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, conn)
}
