package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/helper"
	"berth/internal/image/inflate"
	"berth/test/isolate"
	"berth/test/timeouts"
)

// gunzipper is igzip, and counts how often it is started.
func gunzipper(t *testing.T) (*inflate.Program, *atomic.Int32) {
	t.Helper()
	g := isolate.Group(t)
	runner, starts := &helper.Runner{Root: g.Path()}, new(atomic.Int32)
	run := func(ctx context.Context, name string, cmd *exec.Cmd, started func(int) error) error {
		starts.Add(1)
		return runner.RunStarted(ctx, name, cmd, started)
	}
	p, err := inflate.New("", run, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Skip("igzip or prlimit is not installed: hack/setup test does it: ", err)
	}
	if !p.Usable(t.Context()) {
		t.Fatal("igzip is not usable")
	}
	starts.Store(0)
	return p, starts
}

// testFrom is the size from which on a program inflates layers in tests: more than what is looked at before one is
// started.
const testFrom = 256 << 10

// openGunzip opens a store that has a program for gzip, for smaller layers than usual.
func openGunzip(t *testing.T, p *inflate.Program, changes ...func(*Config)) *Store {
	t.Helper()
	s := open(t, t.TempDir(), append(changes, func(cfg *Config) { cfg.Gunzip = p })...)
	s.pipeline.inflater.from = testFrom
	return s
}

// largeGz is a gzip layer that a program inflates.
func largeGz(t *testing.T, name string) packed {
	t.Helper()
	body := make([]byte, 2*testFrom)
	_, _ = rand.Read(body)
	return gz(t, file(name, lieAbout+string(body)), file("end", "the end"))
}

// lieAbout is what a program of TestProgramFails changes.
const lieAbout = "this is what the layer says"

// both is a layer of the members of two.
func both(a, b packed) packed {
	return packed{slices.Concat(a.blob, b.blob), slices.Concat(a.plain, b.plain), b.kind}
}

// layerGets says how often a layer was asked for.
func layerGets(t *testing.T, p *proxy, l packed) int {
	t.Helper()
	d, err := l.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return p.blobGets()[d.String()]
}

// TestProgramInflates has igzip inflate large gzip layers, and nothing else.
func TestProgramInflates(t *testing.T) {
	host := startRegistry(t, "")
	large, short := largeGz(t, "large"), gz(t)
	for _, c := range []struct {
		name   string
		layer  packed
		starts int32
	}{
		{"large gzip", large, 1},
		{"small gzip", gz(t, file("small", "text")), 0},
		{"large zstd", zst(t, file("zstd", string(large.plain))), 0},
		{"large tar", plainLayer(t, file("tar", string(large.plain))), 0},
		{"many members", both(short, large), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, starts := gunzipper(t)
			s := openGunzip(t, p)
			ref := host + "/a:" + strings.ReplaceAll(c.name, " ", "-")
			push(t, ref, imageOf(t, c.layer))
			pull(t, s, ref)
			if starts.Load() != c.starts {
				t.Errorf("igzip was started %d times", starts.Load())
			}
			sound(t, s)
		})
	}
}

// TestProgramFails has something else in igzip's place: the layer is fetched once more, the library inflates it, and
// the image is what it is without a program. After some such layers in a row the program is not started any more.
func TestProgramFails(t *testing.T) {
	host := startRegistry(t, "")
	real, err := exec.LookPath("igzip")
	if err != nil {
		t.Skip("igzip is not installed: hack/setup test does it")
	}
	sh := func(text string) []string { return []string{"/bin/sh", "-c", text} }
	for name, confine := range map[string][]string{
		"fails at once": sh("exit 1"),
		"says nothing":  sh("cat >/dev/null"),
		"is killed":     sh("head -c 100000 >/dev/null; kill -9 $$"),
		"lies":          sh(real + ` -d -c | LC_ALL=C sed "s/` + lieAbout + `/this is what the layer lies/"`),
		"breaks off":    sh(real + " -d -c | head -c 200000"),
		"says too much": sh(real + " -d -c; echo more"),
	} {
		t.Run(name, func(t *testing.T) {
			front := startProxy(t, host, nil)
			p, starts := gunzipper(t)
			p.Confine = confine
			s := openGunzip(t, p)
			pulls := 1
			if name == "fails at once" {
				pulls = inflate.MaxFailures + 1
			}
			for i := range pulls {
				l, ref := largeGz(t, "large"), fmt.Sprintf("%s/%s:%d", front.host, strings.ReplaceAll(name, " ", "-"), i)
				push(t, ref, imageOf(t, l))
				img := pull(t, s, ref)
				want := 2
				if i == inflate.MaxFailures {
					want = 1
				}
				if got := layerGets(t, front, l); got != want || int(starts.Load()) != min(i+1, inflate.MaxFailures) {
					t.Errorf("pull %d: the layer was fetched %d times, not %d; %d starts", i, got, want, starts.Load())
				}
				if content(t, s, img, "end") != "the end" {
					t.Error("the image is not whole")
				}
			}
			sound(t, s)
		})
	}
}

// TestProgramFailsInARepair has a layer be fetched for a repair while the program for gzip does not work: the library
// inflates it then too.
func TestProgramFailsInARepair(t *testing.T) {
	host := startRegistry(t, "")
	p, starts := gunzipper(t)
	p.Confine = []string{"/bin/sh", "-c", "exit 1"}
	s := openGunzip(t, nil)
	push(t, host+"/large:v1", imageOf(t, largeGz(t, "large")))
	img := pull(t, s, host+"/large:v1")
	damageLayer(t, s, img, 0)
	s.pipeline.inflater.program = p
	repairs(t, s, 1, true, "")
	if starts.Load() != 1 || content(t, s, img, "end") != "the end" {
		t.Errorf("%d starts, the layer's last file has %q", starts.Load(), content(t, s, img, "end"))
	}
	sound(t, s)
}

// TestProgramRefuses wants layers that are bad to be refused in the words of a daemon without a program.
func TestProgramRefuses(t *testing.T) {
	host := startRegistry(t, "")
	good := largeGz(t, "large")
	for name, c := range map[string]struct {
		layer packed
		fetch int
		words string
	}{
		"text behind it":  {packed{slices.Concat(good.blob, []byte("text")), good.plain, good.kind}, 2, "after its end"},
		"a bad checksum":  {packed{flipped(good.blob, -8), good.plain, good.kind}, 2, "invalid checksum"},
		"cut short":       {packed{good.blob[:len(good.blob)-5000], good.plain, good.kind}, 2, "it is cut short"},
		"another diff id": {packed{good.blob, []byte("another"), good.kind}, 2, "not the sha256:"},
		"packed twice":    {packed{packedTwice(good), good.blob, good.kind}, 2, "read layer tar"},
		"a bad tar":       {noisyGz(t, bytes.Repeat([]byte("no tar "), 1<<17)), 2, "read layer tar"},
		"too much":        {noisyGz(t, hugeTar(t)), 1, "images.max_layer_bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			front := startProxy(t, host, nil)
			ref := front.host + "/bad:" + strings.ReplaceAll(name, " ", "-")
			push(t, ref, imageOf(t, c.layer))
			texts := map[bool]string{}
			for _, with := range []bool{false, true} {
				p, starts := gunzipper(t)
				if !with {
					p = nil
				}
				s := openGunzip(t, p, func(cfg *Config) { cfg.MaxLayerBytes = 4 << 20 })
				before := layerGets(t, front, c.layer)
				_, err := s.Pull(t.Context(), PullRequest{Reference: ref})
				if err == nil || !strings.Contains(err.Error(), c.words) || inflateError(err) {
					t.Errorf("with a program %v: %v, want %q", with, err, c.words)
				}
				texts[with] = fmt.Sprint(err)
				if got := layerGets(t, front, c.layer) - before; with && (starts.Load() != 1 || got != c.fetch) {
					t.Errorf("%d starts; the layer was fetched %d times, not %d", starts.Load(), got, c.fetch)
				}
				nothingInFlight(t, s)
			}
			if texts[true] != texts[false] {
				t.Errorf("with a program %q, without %q", texts[true], texts[false])
			}
		})
	}
}

// packedTwice is a layer in another one's place in which it is packed once more.
func packedTwice(l packed) []byte {
	return part(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, l.blob)
}

func inflateError(err error) bool {
	var left *inflate.Error
	return errors.As(err, &left)
}

func flipped(b []byte, at int) []byte {
	out := bytes.Clone(b)
	out[(at+len(out))%len(out)] ^= 0x55
	return out
}

// noisyGz is a layer of anything, which with the noise behind it is large enough for a program.
func noisyGz(t *testing.T, plain []byte) packed {
	t.Helper()
	noise := make([]byte, 2*testFrom)
	_, _ = rand.Read(noise)
	plain = append(bytes.Clone(plain), noise...)
	return packed{part(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, plain), plain, gz(t).kind}
}

// hugeTar is one file of 6 MiB.
func hugeTar(t *testing.T) []byte {
	t.Helper()
	plain := tarOf(t, file("huge", strings.Repeat("x", 6<<20)))
	return plain[:len(plain)-1024]
}

// TestProgramLeavesNoTrace ends a pull while igzip works.
func TestProgramLeavesNoTrace(t *testing.T) {
	host := startRegistry(t, "")
	ref := host + "/a:v1"
	push(t, ref, imageOf(t, largeGz(t, "large")))
	p, starts := gunzipper(t)
	ctx, cancel := context.WithCancel(t.Context())
	run := p.Run
	p.Run = func(c context.Context, name string, cmd *exec.Cmd, started func(int) error) error {
		return run(c, name, cmd, func(pid int) error {
			err := started(pid)
			cancel()
			return err
		})
	}
	s := openGunzip(t, p)
	if _, err := s.Pull(ctx, PullRequest{Reference: ref}); !errors.Is(err, context.Canceled) || starts.Load() != 1 {
		t.Errorf("%v after %d starts", err, starts.Load())
	}
	nothingInFlight(t, s) // and gunzipper looks for processes
}

// TestOneDigestForTars digests a layer that is not compressed once: its blob is its tar.
func TestOneDigestForTars(t *testing.T) {
	l := plainLayer(t, file("f", "text"))
	for _, c := range []struct {
		promised digest.Digest
		alg      digest.Algorithm
		once     bool
	}{
		{digest.FromBytes(l.blob), digest.SHA256, true},
		{digest.FromBytes(l.blob), digest.SHA512, false},
		{"", digest.SHA256, false},
	} {
		desc := ocispec.Descriptor{Digest: c.promised, Size: int64(len(l.blob))}
		blob := newBlobReader(bytes.NewReader(l.blob), desc, func(int64) {})
		s := open(t, t.TempDir())
		plain, err := s.pipeline.inflater.open(t.Context(), blob, layerRequest{})
		if err != nil {
			t.Fatal(err)
		}
		sum, result := plainDigest(plain, blob, layerRequest{diffID: c.alg.FromString("")})
		if (sum == nil) != c.once {
			t.Errorf("%s of a blob by %q: a digest of its own: %v", c.alg, c.promised, sum != nil)
		}
		to := io.Discard
		if sum != nil {
			to = sum
		}
		if _, err := io.Copy(to, plain); err != nil || result() != c.alg.FromBytes(l.plain) {
			t.Errorf("%s: %s, %v", c.alg, result(), err)
		}
		_ = plain.Close()
	}
	host := startRegistry(t, "")
	push(t, host+"/a:v1", wrongDiffID(t, l))
	s := open(t, t.TempDir())
	if _, err := s.Pull(t.Context(), PullRequest{Reference: host + "/a:v1"}); !errors.Is(err, errdefs.ErrDataLoss) {
		t.Error(err)
	}
}

// TestProgramBesideUnpacker has igzip, or the process that unpacks what it writes, go wrong in each way: the image is
// right or the pull fails and says why, and nothing is left of either (gunzipper looks for processes).
func TestProgramBesideUnpacker(t *testing.T) {
	host := startRegistry(t, "")
	layer := largeGz(t, "large")
	push(t, host+"/a:v1", imageOf(t, layer))
	for name, c := range map[string]struct {
		program string // the signal that igzip gets before it begins
		crew    Crew
		cancel  bool
		says    string
		fetched int
	}{
		"all is well":     {crew: testCrew(), fetched: 1},
		"igzip is killed": {program: "KILL", crew: testCrew(), fetched: 2},
		"igzip is stopped": {
			program: "STOP", crew: testCrew(), cancel: true, says: "canceled", fetched: 1,
		},
		"the unpacker is killed":  {crew: shells("kill -KILL $$"), says: "signal: killed", fetched: 1},
		"the unpacker is stopped": {crew: shells("kill -STOP $$"), cancel: true, says: "canceled", fetched: 1},
		"it reads nothing":        {crew: shells("exec sleep 1000"), cancel: true, says: "canceled", fetched: 1},
		"the unpacker cannot be started": {
			crew: crewFunc(func([]string, []string, []*os.File) (*os.Process, error) { return nil, unix.EMFILE }),
			says: "start the unpacker: too many open files", fetched: 1,
		},
		"it does not wait": {crew: shells(emptyLayer + "mkdir fs; " + answer), says: "diff id", fetched: 2},
		"it tells no mark": {
			crew: shells(emptyLayer + "mkdir fs; cat >/dev/null; " + answer), says: "diff id", fetched: 2,
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			front := startProxy(t, host, nil)
			p, _ := gunzipper(t)
			ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
			defer cancel()
			run := p.Run
			p.Run = func(ctx context.Context, name string, cmd *exec.Cmd, started func(int) error) error {
				if c.program != "" {
					cmd.Args = append([]string{"sh", "-c", "kill -" + c.program + ` $$; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
					cmd.Path = "/bin/sh"
				}
				return run(ctx, name, cmd, func(pid int) error {
					err := started(pid)
					if c.cancel {
						time.AfterFunc(100*time.Millisecond, cancel)
					}
					return err
				})
			}
			s := openGunzip(t, p, withCrew(c.crew))
			img, err := s.Pull(ctx, PullRequest{Reference: front.host + "/a:v1"})
			if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if c.says == "" && (err != nil || content(t, s, img, "end") != "the end") {
				t.Errorf("the image is not whole: %v", err)
			}
			if got := layerGets(t, front, layer); got != c.fetched {
				t.Errorf("the layer was fetched %d times", got)
			}
			nothingInFlight(t, s)
		})
	}
}
