package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/helper"
	"berth/internal/image/catalog"
	"berth/internal/limit"
	"berth/test/timeouts"
	"berth/test/volume"
)

// crewFunc starts processes by a function.
type crewFunc func(args, env []string, files []*os.File) (*os.Process, error)

func (f crewFunc) Start(args, env []string, files []*os.File) (*os.Process, error) {
	return f(args, env, files)
}

// shells runs a script in the place of each unpacker: descriptor 0 is the blob, 3 the layer's directory, 4 the control
// socket.
func shells(script string) Crew {
	crew := &helper.Crew{Program: "/bin/sh"}
	return crewFunc(func(_, env []string, files []*os.File) (*os.Process, error) {
		return crew.Start([]string{"-c", script}, append(env, "PATH=/usr/bin:/bin"), files)
	})
}

func withCrew(c Crew) func(*Config) { return func(cfg *Config) { cfg.Unpackers = c } }

// answer is what an unpacker says of a layer that has all that a layer needs, but for a tree.
const answer = `printf '{"answer":{"diff":"sha256:0","result":{"Bytes":4096,"Inodes":1}}}' >&4; cat >/dev/null`

const emptyLayer = `cd /proc/self/fd/3 && : >manifest && : >skeleton && `

// TestUnpackersThatMisbehave has a process answer in every wrong way. The pull fails, says how, and leaves nothing.
func TestUnpackersThatMisbehave(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/app:v1", imageOf(t, gz(t, file("f", "x"))))
	outside := t.TempDir()
	for name, c := range map[string]struct{ script, says string }{
		"garbage": {`printf garbage >&4; cat`, "does not make sense"},
		"silence": {`exit 0`, "ended without an answer: exit status 0"},
		"failure": {`echo "fatal error: all is lost" >&2; exit 2`, "exit status 2: fatal error: all is lost"},
		"no memory for the collector": {
			`printf 'SIGSEGV: segmentation violation\nPC=0x4326dd m=4\n\ngoroutine 0 gp=0x1d478 m=4 [idle]:\n' >&2; exit 2`,
			"the layer needs more memory",
		},
		"a fault": {
			`printf 'panic: nil pointer dereference\n[signal SIGSEGV: segmentation violation]\n\ngoroutine 1 [running]:\n' >&2
			exit 2`, "goroutine 1 [running]:",
		},
		"killed":            {`kill -9 $$`, "signal: killed: the layer needs more memory"},
		"hangs up":          {`exec 4>&-; exec sleep 1000`, "ended without an answer: signal: killed"},
		"reads nothing":     {`exec 0<&-; exit 7`, "exit status 7"},
		"nothing answered":  {`printf '{"answer":{}}' >&4; cat`, "without a result"},
		"a long message":    {`head -c 100000 /dev/zero >&4; cat`, "unpacker"},
		"a window too wide": {`printf '{"window":999999999999}' >&4; cat`, limit.ZstdWindow.Name},
		"another's tree":    {`printf '{"opaque":{"tree":0,"path":"Li4="}}' >&4; cat`, "asks for what there is not"},
		"sizes": {
			emptyLayer + `mkdir fs; printf '{"answer":{"diff":"x","result":{"Bytes":99999999999999,"Inodes":1}}}' >&4`,
			"beyond every limit",
		},
		"no tree":          {emptyLayer + answer, "has no fs"},
		"a tree elsewhere": {emptyLayer + `ln -s ` + outside + ` fs; ` + answer, "is what no layer has"},
		"a record":         {emptyLayer + `mkdir fs; echo >layer; ` + answer, "is what no layer has"},
		"a FIFO":           {emptyLayer + `mkdir fs; rm manifest; mkfifo manifest; ` + answer, "is what no layer has"},
		"two names":        {emptyLayer + `mkdir fs; ln manifest fs/m; ` + answer, "is what no layer has"},
		"another layer":    {emptyLayer + `mkdir fs; ` + answer, "diff id"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			s := open(t, t.TempDir(), withCrew(shells(c.script)))
			_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/app:v1"})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, wanted %q", err, c.says)
			}
			nothingInFlight(t, s)
		})
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Error("something is outside:", left)
	}
}

// TestUnpackerThatNeverAnswers ends a pull by its caller's leaving, whether the process reads the blob, waits or
// stands still.
func TestUnpackerThatNeverAnswers(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	push(t, host+"/app:v1", imageOf(t, plainLayer(t, file("f", strings.Repeat("x", 4<<20)))))
	stopped := crewFunc(func(args, env []string, files []*os.File) (*os.Process, error) {
		p, err := testCrew().Start(args, env, files)
		if err == nil {
			err = p.Signal(unix.SIGSTOP)
		}
		return p, err
	})
	for name, crew := range map[string]Crew{
		"reads": shells(`cat >/dev/null; exec sleep 1000`), "waits": shells(`exec sleep 1000`), "stopped": stopped,
		"asks": shells(`printf '{"window":1}' >&4; exec sleep 1000`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var process atomic.Pointer[os.Process]
			s := open(t, t.TempDir(), withCrew(crewFunc(func(args, env []string, files []*os.File) (*os.Process, error) {
				p, err := crew.Start(args, env, files)
				process.Store(p)
				return p, err
			})))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := make(chan error, 1)
			go func() {
				_, err := s.Pull(ctx, PullRequest{Reference: host + "/app:v1"})
				result <- err
			}()
			for process.Load() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
			select {
			case err := <-result:
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			case <-time.After(timeouts.For(time.Minute)):
				t.Fatal("the pull hangs")
			}
			nothingInFlight(t, s)
			if err := process.Load().Signal(unix.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
				t.Error("the process is there:", err)
			}
		})
	}
}

// TestUnpackerKilled kills a process at its start, and while it works. The pull fails, nothing is left, and the next
// one succeeds.
func TestUnpackerKilled(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	base := gz(t, folder("d"), file("d/a", "1"))
	push(t, host+"/app:v1", imageOf(t, base, gz(t, file("d/implied/x", strings.Repeat("x", 1<<20)))))
	for n := range 2 {
		for _, after := range []time.Duration{0, time.Millisecond, 4 * time.Millisecond} {
			t.Run(fmt.Sprintf("process-%d-after-%v", n, after), func(t *testing.T) {
				t.Parallel()
				var started atomic.Int32
				s := open(t, t.TempDir(), withCrew(crewFunc(func(args, env []string, files []*os.File) (*os.Process, error) {
					p, err := testCrew().Start(args, env, files)
					if err == nil && started.Add(1) == int32(n+1) {
						time.Sleep(after) // any moment will do
						err = p.Signal(unix.SIGKILL)
						if errors.Is(err, os.ErrProcessDone) {
							err = nil
						}
					}
					return p, err
				})))
				_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/app:v1"})
				killed := int(started.Load()) > n // one may have done both layers
				if after == 0 && killed && (err == nil || !fail.Is(err, errdefs.ErrResourceExhausted)) {
					t.Errorf("the pull ends with %v", err)
				}
				img := pull(t, s, host+"/app:v1")
				if content(t, s, img, "d/implied/x") == "" {
					t.Error("the layer is not there")
				}
				sound(t, s)
			})
		}
	}
}

// TestUnpackerMemory has a layer that keeps more than it may be refused with the limit, and one whose process is given
// too little memory fail for the lack of it.
func TestUnpackerMemory(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), withCrew(testCrew()))
	blob := func() io.Reader {
		var items []entry
		for i := range 20_000 {
			items = append(items, folder(fmt.Sprintf("%d-%s", i, strings.Repeat("d", 200))))
		}
		return strings.NewReader(string(plainLayer(t, items...).blob))
	}
	for memory, want := range map[int64]error{0: errdefs.ErrResourceExhausted, 1 << 20: errdefs.ErrResourceExhausted} {
		dir, discard, err := s.disk.NewIngest("pull.ingest")
		if err != nil {
			t.Fatal(err)
		}
		defer discard()
		job := jobOf(s.pipeline.settings())
		job.Algorithm = "sha256"
		if memory > 0 {
			job.Limits.Memory = memory
		} else {
			job.Memory = 50 << 20
		}
		_, err = s.pipeline.unpackers.unpack(t.Context(), blob(), sized(1<<30), dir, job, func() {})
		if !errors.Is(err, want) || memory > 0 && !fail.As[*limit.Error](err) {
			t.Errorf("%d: %v", memory, err)
		}
	}
}

// TestUnpackerWindow unpacks what needs a wide window, for which the process asks.
func TestUnpackerWindow(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	body := strings.Repeat(strings.Repeat("0123456789abcdef", 1<<12), 1200) // more than the window, so that it is used
	for i := range 3 {
		push(t, fmt.Sprintf("%s/app:v%d", host, i), imageOf(t, wideZstd(t, file(fmt.Sprintf("f%d", i), body))))
	}
	s := open(t, t.TempDir(), withCrew(testCrew()))
	for i := range 3 { // each after the other: what one has used is given back
		img := pull(t, s, fmt.Sprintf("%s/app:v%d", host, i))
		if got := content(t, s, img, fmt.Sprintf("f%d", i)); got != body {
			t.Errorf("%d bytes", len(got))
		}
	}
}

// TestUnpackerLeavesAttributesOut unpacks attributes that an ext4 has no room for beside a file: the process tells them
// from a full disk and leaves them out, as the daemon does.
func TestUnpackerLeavesAttributesOut(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	volume.Mounted(t, root, volume.Ext4, 32)
	host := startRegistry(t, "")
	big := strings.Repeat("v", 5000)
	push(t, host+"/app:v1", imageOf(t, gz(t, xattr(file("f", "text"), "user.big", big, "user.small", "v"))))
	s := open(t, root, withCrew(testCrew()))
	t.Cleanup(func() { _ = s.Close() })
	img := pull(t, s, host+"/app:v1")
	at := filepath.Join(s.LayerDirs(img)[0], "f")
	if n, err := unix.Getxattr(at, "user.small", nil); n != 1 || err != nil {
		t.Errorf("the small attribute has %d bytes, %v", n, err)
	}
	if _, err := unix.Getxattr(at, "user.big", nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the large attribute: %v", err)
	}
	sound(t, s)
}

// TestUnpackerThatHangs has the disk hang while a process writes a large layer to it, and the pull be given up: neither
// the fetch nor its slot waits for the disk, and the log says which process hangs. When the disk goes on, all is
// cleared away. The daemon waits for the process to read the blob, or, where igzip inflates it, for the registry.
func TestUnpackerThatHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gunzip bool
		more   int // bytes that the registry serves after the disk hangs
	}{"its pipe is full": {more: 8 << 20}, "igzip waits for the registry": {true, 256 << 10}} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			host := startRegistry(t, "")
			push(t, host+"/app:v1", imageOf(t, noisy(t, "a", 8<<20)))
			shut, ended := make(chan struct{}), make(chan struct{})
			p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.Header.Get("Accept"), "config") {
					w = &stopping{ResponseWriter: w, after: 1<<20 + c.more, goOn: ended}
					w = &stopping{ResponseWriter: w, after: 1 << 20, goOn: shut}
				}
				next.ServeHTTP(w, r)
			})
			var log safeLog
			var begun atomic.Bool
			s, slow := openSlow(t, &log, crewFunc(func(args, env []string, files []*os.File) (*os.Process, error) {
				defer begun.Store(true)
				return testCrew().Start(args, env, files)
			}))
			if c.gunzip {
				s.pipeline.inflater.program, _ = gunzipper(t)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error)
			go func() {
				_, err := s.Pull(ctx, PullRequest{Reference: p.host + "/app:v1"})
				over <- err
			}()
			// Until the process has its directory, the daemon itself would wait for the disk.
			until(t, "the layer is unpacked", func() bool { return begun.Load() && s.receives() > 1<<19 })
			goOn := slow.Hang()
			defer goOn()
			close(shut)
			until(t, "the process waits for the disk", func() bool { return slow.Waiting() > 0 })
			last := s.receives()
			until(t, "nothing more is received", func() bool {
				time.Sleep(200 * time.Millisecond)
				was := last
				last = s.receives()
				return was == last
			})
			cancel()
			if err := <-over; !errors.Is(err, context.Canceled) {
				t.Errorf("the pull ends with %v", err)
			}
			until(t, "the fetch has ended", func() bool {
				s.pipeline.layers.mu.Lock()
				defer s.pipeline.layers.mu.Unlock()
				return len(s.pipeline.layers.tasks) == 0
			})
			if !strings.Contains(log.String(), "does not die of SIGKILL") {
				t.Errorf("the log says %s", log.String())
			}
			close(ended)
			goOn()
			nothingInFlight(t, s)
			pull(t, s, p.host+"/app:v1")
			sound(t, s)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFinalizingThatHangs has the disk hang while a process finalizes a layer, and the pull be given up, or a repair:
// its caller is answered, and the log says which process hangs.
func TestFinalizingThatHangs(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	// Each layer is too large to share a process: one that only finalizes is started.
	push(t, host+"/app:v1", imageOf(t, noisy(t, "d/a", 5<<20), noisy(t, "d/b", 5<<20)))
	var log safeLog
	var slow *volume.Slow
	hung := make(chan func())
	s, slow := openSlow(t, &log, crewFunc(func(args, env []string, files []*os.File) (*os.Process, error) {
		if strings.Contains(args[0], `"settle":true`) {
			goOn := slow.Hang()
			select {
			case hung <- goOn:
			case <-t.Context().Done(): // the test has failed
				goOn()
			}
		}
		return testCrew().Start(args, env, files)
	}))
	hangs := func(times int, call func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		over := make(chan error, 1)
		go func() { over <- call(ctx) }()
		var goOn func()
		select {
		case goOn = <-hung:
		case err := <-over:
			t.Fatalf("nothing was finalized in a process of its own: %v", err)
		case <-time.After(timeouts.For(time.Minute)):
			stacks := make([]byte, 1<<20)
			t.Fatalf("nothing is finalized:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
		defer goOn()
		until(t, "the process waits for the disk", func() bool { return slow.Waiting() > 0 })
		cancel()
		select {
		case err := <-over:
			if err == nil {
				t.Error("it did not fail")
			}
		case <-time.After(timeouts.For(time.Minute)):
			t.Error("the caller waits for the disk")
		}
		if strings.Count(log.String(), "does not die of SIGKILL") < times {
			t.Errorf("the log says %s", log.String())
		}
	}
	hangs(1, func(ctx context.Context) error {
		_, err := s.Pull(ctx, PullRequest{Reference: host + "/app:v1"})
		return err
	})
	nothingInFlight(t, s)
	pulled, over := make(chan struct{}), make(chan struct{})
	go func() { // the next one goes on at once, however often it is started
		defer close(over)
		for {
			select {
			case goOn := <-hung:
				goOn()
			case <-pulled:
				return
			}
		}
	}()
	img := pull(t, s, host+"/app:v1")
	close(pulled)
	<-over
	sound(t, s)
	mend := &repairer{s: s, left: map[string]struct{}{}}
	hangs(2, func(ctx context.Context) error { return mend.replace(ctx, img.Layers[1]) })
	nothingInFlight(t, s)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// openSlow opens a store on a disk that a test can have hang.
func openSlow(t *testing.T, log io.Writer, crew Crew) (*Store, *volume.Slow) {
	t.Helper()
	if err := volume.SlowAvailable(); err != nil {
		t.Skip(err)
	}
	root := t.TempDir()
	slow, err := volume.MountSlow(t.TempDir(), root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slow.Close(); err != nil {
			t.Error(err)
		}
	})
	logs := func(cfg *Config) { cfg.Logger = slog.New(slog.NewTextHandler(log, nil)) }
	return open(t, root, withCrew(crew), logs), slow
}

// safeLog is a log that several goroutines write to.
type safeLog struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestUnpackersWithoutMounts unpacks as on a machine where no mount can be made for a process alone: a layer over
// others is finalized by the daemon then.
func TestUnpackersWithoutMounts(t *testing.T) {
	t.Parallel()
	host := startRegistry(t, "")
	link := entry{Header: tar.Header{Name: "c", Typeflag: tar.TypeLink, Linkname: "d/a"}}
	over := gz(t, file("d/implied/x", "over it"), link)
	push(t, host+"/app:v1", imageOf(t, gz(t, folder("d"), file("d/a", "below")), over))
	var started atomic.Int32
	s := open(t, t.TempDir(), withCrew(crewFunc(func(args, env []string, files []*os.File) (*os.Process, error) {
		started.Add(1)
		return testCrew().Start(args, env, files)
	})))
	dir, err := openPlain(s.disk.Path(catalog.IngestDir))
	if err != nil {
		t.Fatal(err)
	}
	s.pipeline.unpackers.close()
	s.pipeline.unpackers.ingest, s.pipeline.unpackers.plain = dir, true
	img := pull(t, s, host+"/app:v1")
	if got := content(t, s, img, "c"); got != "below" || started.Load() != 2 {
		t.Errorf("the link has %q, %d processes", got, started.Load())
	}
	sound(t, s)
}

// TestUnpackersSeeNoMounts leaves no mount behind that another could see.
func TestUnpackersSeeNoMounts(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := open(t, root, withCrew(testCrew()))
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(text), filepath.Clean(root)) {
		t.Errorf("mounted: %v", err)
	}
	sound(t, s)
}

func wideZstd(t testing.TB, entries ...entry) packed {
	plain := tarOf(t, entries...)
	var buf bytes.Buffer
	w, err := zstd.NewWriter(&buf, zstd.WithWindowSize(64<<20))
	if err == nil {
		_, err = w.Write(plain)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return packed{buf.Bytes(), plain, types.OCILayerZStd}
}

// sized is a layer whose blob has so many bytes.
func sized(n int64) layerRequest { return layerRequest{desc: ocispec.Descriptor{Size: n}} }
