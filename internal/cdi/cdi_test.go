package cdi

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"berth/internal/annotation"
	"berth/internal/limit"
	"berth/internal/look"
	"berth/test/timeouts"
)

const gpu = `{"cdiVersion":"0.7.0","kind":"vendor.com/gpu",
 "containerEdits":{"env":["ALL=1"]},
 "devices":[{"name":"one","containerEdits":{"env":["GPU=one"],
  "deviceNodes":[{"path":"/dev/gpu0","hostPath":"/dev/null","permissions":"r"}],
  "mounts":[{"hostPath":"/etc","containerPath":"/vendor","options":["ro","rbind"]}],
  "hooks":[{"hookName":"createContainer","path":"/bin/true"}],
  "additionalGids":[44]}}]}`

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func bare() *specs.Spec { return &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}} }

func TestInject(t *testing.T) {
	dir := t.TempDir()
	d := &Devices{Dirs: []string{filepath.Join(dir, "absent"), dir}, Log: slog.New(slog.DiscardHandler)}
	if err := d.Inject(t.Context(), bare(), nil); err != nil {
		t.Errorf("nothing asked for: %v", err)
	}
	err := d.Inject(t.Context(), bare(), []string{"vendor.com/gpu=one"})
	if !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "vendor.com/gpu=one") ||
		!strings.Contains(err.Error(), dir) {
		t.Errorf("an unknown device: %v", err)
	}
	write(t, dir, "gpu.json", gpu) // found at once
	write(t, dir, "broken.json", "{")
	sp := bare()
	if err := d.Inject(t.Context(), sp, []string{"vendor.com/gpu=one"}); err != nil {
		t.Fatal(err)
	}
	dev := sp.Linux.Devices
	if len(dev) != 1 || dev[0].Path != "/dev/gpu0" || dev[0].Type != "c" || dev[0].Major != 1 || dev[0].Minor != 3 {
		t.Errorf("devices %+v", dev)
	}
	if allow := sp.Linux.Resources.Devices; len(allow) != 1 || !allow[0].Allow || allow[0].Access != "r" {
		t.Errorf("allowed devices %+v", allow)
	}
	if !slices.Equal(sp.Process.Env, []string{"ALL=1", "GPU=one"}) ||
		!slices.Equal(sp.Process.User.AdditionalGids, []uint32{44}) {
		t.Errorf("process %+v", sp.Process)
	}
	if len(sp.Mounts) != 1 || sp.Mounts[0].Destination != "/vendor" || len(sp.Hooks.CreateContainer) != 1 {
		t.Errorf("mounts %+v, hooks %+v", sp.Mounts, sp.Hooks)
	}
	err = d.Inject(t.Context(), bare(), []string{"vendor.com/gpu=one", "vendor.com/gpu=two"})
	if !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "=two") ||
		strings.Contains(err.Error(), "=one") || !strings.Contains(err.Error(), "broken.json") {
		t.Errorf("one of two is unknown: %v", err)
	}
}

func TestNames(t *testing.T) {
	if annotation.KeyDevices != cdi.AnnotationPrefix {
		t.Errorf("devices are asked for by %q, and the library says %q", annotation.KeyDevices, cdi.AnnotationPrefix)
	}
	got, err := Names([]string{"v.com/c=a"}, map[string]string{"cdi.k8s.io/plugin_1": "v.com/c=b,v.com/c=a", "other": "x"})
	if err != nil || !slices.Equal(got, []string{"v.com/c=a", "v.com/c=b"}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "gpu", "v.com/c", "v.com/c=", "/c=a"} {
		if _, err := Names([]string{bad}, nil); err == nil || !strings.Contains(err.Error(), "CDI device") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A FIFO or an endless file among the descriptions is refused and named, and nobody waits for it. When it is gone the
// devices are found.
func TestDescriptionThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	d := &Devices{Dirs: []string{dir}, Log: slog.New(slog.DiscardHandler)}
	write(t, dir, "gpu.json", gpu)
	fifo, endless, masked := filepath.Join(dir, "x.json"), filepath.Join(dir, "y.yaml"), filepath.Join(dir, "z.yaml")
	if err := errors.Join(unix.Mkfifo(fifo, 0o644), os.Symlink("/dev/zero", endless),
		os.Symlink("/dev/null", masked)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
	defer cancel()
	for range look.AtOnce {
		err := d.Inject(ctx, bare(), []string{"vendor.com/gpu=one"})
		if !errors.Is(err, limit.ErrNotRegular) || !strings.Contains(err.Error(), fifo) ||
			!strings.Contains(err.Error(), endless) {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(fifo), os.Remove(endless)); err != nil {
		t.Fatal(err)
	}
	if err := d.Inject(ctx, bare(), []string{"vendor.com/gpu=one"}); err != nil {
		t.Error(err)
	}
}

// Descriptions that cannot be read, because their disk hangs, hold a container up no longer than its caller waits.
func TestDescriptionThatHangs(t *testing.T) {
	dir, end := t.TempDir(), make(chan struct{})
	defer close(end)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	sp, ended := bare(), make(chan error, 1)
	go func() {
		d := &Devices{Dirs: []string{dir}, Log: slog.New(slog.DiscardHandler), reading: func() { <-end }}
		ended <- d.Inject(ctx, sp, []string{"vendor.com/gpu=one"})
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), dir) {
			t.Errorf("got %v", err)
		}
	case <-time.After(timeouts.For(time.Minute)):
		t.Error("it hangs")
	}
}

// However many containers ask for what hangs, few threads wait for it; and when it ends, others are served.
func TestReadersThatHangAreFew(t *testing.T) {
	end := make(chan struct{})
	d := &Devices{Dirs: []string{t.TempDir()}, Log: slog.New(slog.DiscardHandler), reading: func() { <-end }}
	before := runtime.NumGoroutine()
	for range 2 * look.AtOnce {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if err := d.Inject(ctx, bare(), []string{"vendor.com/gpu=one"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		cancel()
	}
	// What ended the contexts may be about to end itself.
	n := runtime.NumGoroutine() - before
	for end := time.Now().Add(timeouts.For(10 * time.Second)); n > look.AtOnce &&
		time.Now().Before(end); n = runtime.NumGoroutine() - before {
		time.Sleep(time.Millisecond)
	}
	if n > look.AtOnce {
		t.Errorf("%d go on", n)
	}
	close(end)
	if err := d.Inject(t.Context(), bare(), []string{"vendor.com/gpu=one"}); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("after that: %v", err)
	}
}
