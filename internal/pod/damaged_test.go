package pod

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod/identity"
	"berth/internal/sandbox"
)

// TestRecordThatCannotBeReadForAWhile has the node be short of descriptors when a record is read: the pod comes back
// whole when it can be read, without a restart.
func TestRecordThatCannotBeReadForAWhile(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	b.end(t)
	path := b.cfg.Record(pod)
	was, err := os.ReadFile(path)
	if err = errors.Join(err, os.WriteFile(path, []byte("berth-record pod v99 sha256=00 len=0\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	d, ok := b.Catalog.index.Load().damaged[pod]
	if !ok || d.pod == nil {
		t.Fatalf("it is not damaged: %+v", d)
	}
	if _, err := b.Run(t.Context(), podConfig("a"), ""); !errdefs.IsUnavailable(err) {
		t.Errorf("a second one of its name: %v", err)
	}
	if r, err := b.Catalog.Get(pod); err != nil || r.State != sandbox.Stopping {
		t.Errorf("it is %+v, %v", r, err)
	}
	d.err = &os.PathError{Op: "open", Path: path, Err: syscall.EMFILE}
	b.Catalog.reindex(func(x *index) { x.damaged[pod] = d })
	retryDamaged(b.Pods, pod, d)
	if err := os.WriteFile(path, was, 0o600); err != nil {
		t.Fatal(err)
	}
	wait(t, "the record to be read", func() bool {
		r, err := b.Catalog.Get(pod)
		return err == nil && r.State == sandbox.Ready
	})
	wait(t, "the container", func() bool { _, c, err := b.Catalog.GetContainer(ctr); return err == nil && c.ID == ctr })
	if p := b.Problems(); len(p) != 0 {
		t.Errorf("problems are left: %+v", p)
	}
	if id, err := b.Run(t.Context(), podConfig("a"), ""); err != nil || id != pod {
		t.Errorf("its request again: %s, %v", id, err)
	}
}

// TestRecordThatIsAFIFO has FIFOs be where the records of pods are, and where the identity of one is: nothing waits for
// a writer, and a pod whose identity can be read is stopped and removed like another whose record is damaged.
func TestRecordThatIsAFIFO(t *testing.T) {
	b := open(t)
	pod, _ := started(t, b)
	other, err := b.Run(t.Context(), podConfig("b"), "")
	if err != nil {
		t.Fatal(err)
	}
	b.end(t)
	paths := []string{b.cfg.Record(pod), b.cfg.Record(other), identityPath(&b.cfg, other)}
	for _, path := range paths {
		if err := errors.Join(os.Rename(path, path+".was"), syscall.Mkfifo(path, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	b.reopen(t)
	if d := b.Catalog.index.Load().damaged; d[pod].pod == nil || d[other].err == nil || d[other].pod != nil {
		t.Errorf("damaged: %+v", d)
	}
	if err := errors.Join(b.Stop(t.Context(), pod), b.Remove(t.Context(), pod)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(b.cfg.Pod(pod)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pod's directory is left: %v", err)
	}
	b.end(t)
	for _, path := range paths[1:] {
		if err := os.Rename(path+".was", path); err != nil {
			t.Fatal(err)
		}
	}
	b.reopen(t)
	if err := errors.Join(b.Stop(t.Context(), other), b.Remove(t.Context(), other)); err != nil {
		t.Error(err)
	}
}

// damagedPod is a pod with a container that ran when the daemon ended, and whose record the next one cannot read.
func damagedPod(t *testing.T) (b *bench, pod, ctr sandbox.ID) {
	t.Helper()
	b = open(t)
	pod, ctr = started(t, b)
	b.end(t)
	cannotBeRead(t, b, pod, true)
	b.reopen(t)
	return b, pod, ctr
}

// cannotBeRead has the record of a pod give I/O errors, and its identity be gone unless it is known, while no daemon
// runs. It returns what the record says, and a function that puts both back.
func cannotBeRead(t *testing.T, b *bench, pod sandbox.ID, known bool) (*sandbox.Record, func()) {
	t.Helper()
	r, err := readRecord(&b.cfg, pod, false)
	if err != nil {
		t.Fatal(err)
	}
	path, identity := b.cfg.Record(pod), identityPath(&b.cfg, pod)
	err = errors.Join(os.Rename(path, path+".was"), os.Symlink("/proc/self/mem", path)) // nothing is at its beginning
	if !known {
		err = errors.Join(err, os.Rename(identity, identity+".was"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return r, func() {
		err := os.Rename(path+".was", path)
		if !known {
			err = errors.Join(err, os.Rename(identity+".was", identity))
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// TestRecordIsTakenInAsItWasRead has a record be read and give I/O errors again at once, as on a disk where these come
// and go: the pod is what was read, and no record is put aside.
func TestRecordIsTakenInAsItWasRead(t *testing.T) {
	for name, known := range map[string]bool{"with its identity": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			pod, ctr := started(t, b)
			b.end(t)
			was, putBack := cannotBeRead(t, b, pod, known)
			b.reopen(t)
			d, ok := b.Catalog.index.Load().damaged[pod]
			if !ok || (d.pod != nil) != known {
				t.Errorf("it is not damaged: %+v", d)
			}
			err := takeIn(b.Pods, pod, was)
			if _, e := os.Lstat(b.cfg.Record(pod) + ".damaged"); !errors.Is(e, os.ErrNotExist) {
				t.Errorf("its record is put aside: %v", e)
			}
			putBack()
			if err != nil {
				t.Fatal(err)
			}
			if r, err := b.Catalog.Get(pod); err != nil || r.State != sandbox.Ready || r.Container(ctr) == nil {
				t.Errorf("it is %+v, %v", r, err)
			}
		})
	}
}

// TestStopWhileTheRecordIsWithheld stops a pod whose record the kernel withholds for the moment: that is refused, and
// the pod comes back whole.
func TestStopWhileTheRecordIsWithheld(t *testing.T) {
	b := open(t)
	pod, _ := started(t, b)
	b.end(t)
	path := b.cfg.Record(pod)
	held, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	// Until its lease ends, whoever else opens the file without waiting gets EAGAIN.
	if _, err := unix.FcntlInt(held.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	if err := b.Stop(t.Context(), pod); !errdefs.IsUnavailable(err) || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("its stop: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, "the record to be read", func() bool { return len(b.Catalog.index.Load().damaged) == 0 })
	if r, err := b.Catalog.Get(pod); err != nil || r.State != sandbox.Ready {
		t.Errorf("it is %+v, %v", r, err)
	}
}

// TestCutOffWhileItIsTakenIn has a daemon end where it had put a damaged record of an earlier boot aside, and had not
// written the one in its place. The next one finds the pod as damaged as it was, and removes nothing.
func TestCutOffWhileItIsTakenIn(t *testing.T) {
	b, pod, ctr := damagedPod(t)
	b.end(t)
	record := b.cfg.Record(pod)
	b.unmount(t, pod)
	unmountForTest(t, b.cfg.Rootfs(pod, ctr))
	if err := errors.Join(os.Rename(record, putAside(&b.cfg, pod)), os.RemoveAll(b.cfg.Run(pod))); err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	if _, ok := b.Catalog.index.Load().damaged[pod]; !ok || !there(record) || !there(b.cfg.Pod(pod)) {
		t.Errorf("the pod is damaged: %v; its record is there: %v, and its directory: %v", ok, there(record),
			there(b.cfg.Pod(pod)))
	}
	if err := errors.Join(b.Stop(t.Context(), pod), b.Remove(t.Context(), pod)); err != nil {
		t.Error(err)
	}
}

// TestRecordWithIOErrors stops and removes a pod whose record gives I/O errors, perhaps for good.
func TestRecordWithIOErrors(t *testing.T) {
	b, pod, _ := damagedPod(t)
	if err := errors.Join(b.Stop(t.Context(), pod), b.Remove(t.Context(), pod)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(b.cfg.Pod(pod)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pod's directory is left: %v", err)
	}
}

// TestDamagedPodIsTakenInOnce has clients stop a pod whose record cannot be read at once, of which one comes late: it
// has found the pod damaged before another took it in and stopped it. What the other has written and published stays.
func TestDamagedPodIsTakenInOnce(t *testing.T) {
	b, pod, ctr := damagedPod(t)
	var stops sync.WaitGroup
	for range 8 {
		stops.Go(func() {
			if err := b.Stop(t.Context(), pod); err != nil {
				t.Error(err)
			}
		})
	}
	stops.Wait()
	was, err := b.Catalog.Get(pod)
	if err == nil {
		err = takeIn(b.Pods, pod, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r, err := b.Catalog.Get(pod); err != nil || r != was || len(r.Containers) != 1 || r.Containers[0].ID != ctr {
		t.Errorf("it is %+v, %v, was %+v", r, err, was)
	}
	if _, err := readRecord(&b.cfg, pod, false); err != nil {
		t.Errorf("its record was put aside: %v", err)
	}
}

// TestDamagedRecordThatCannotBePutAside stops a damaged pod again, after the disk has refused to rename its record:
// each container is there once.
func TestDamagedRecordThatCannotBePutAside(t *testing.T) {
	b, pod, ctr := damagedPod(t)
	aside := b.cfg.Record(pod) + ".damaged"
	if err := os.Mkdir(aside, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.Stop(t.Context(), pod); !errors.Is(err, syscall.EISDIR) && !errors.Is(err, syscall.EEXIST) {
			t.Errorf("its stop: %v", err)
		}
	}
	if err := errors.Join(os.Remove(aside), b.Stop(t.Context(), pod)); err != nil {
		t.Fatal(err)
	}
	if r, err := b.Catalog.Get(pod); err != nil || len(r.Containers) != 1 || r.Containers[0].ID != ctr {
		t.Errorf("it is %+v, %v", r, err)
	}
}

func TestPassingErrors(t *testing.T) {
	for err, want := range map[error]bool{
		&os.PathError{Err: syscall.EMFILE}: true, &os.PathError{Err: syscall.EIO}: true, syscall.ENOMEM: true,
		&os.PathError{Err: syscall.ENOENT}: false, errors.New("record is damaged"): false, syscall.EISDIR: false,
	} {
		if passing(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}

// TestDamagedPodKeepsItsNameAlone refuses a pod of the namespace and name of a damaged one, and no other.
func TestDamagedPodKeepsItsNameAlone(t *testing.T) {
	x := &index{damaged: map[sandbox.ID]damaged{
		"a": {err: errors.New("torn"), identity: &identity.Identity{Namespace: "ns", Name: "web"}},
		"b": {err: errors.New("torn")}, // what its name is cannot be read
	}}
	for _, c := range []struct {
		namespace, name string
		refused         bool
	}{{"ns", "web", true}, {"ns", "db", false}, {"other", "web", false}, {"other", "db", false}} {
		err := x.checkDamaged(&runtimeapi.PodSandboxMetadata{Namespace: c.namespace, Name: c.name})
		if errdefs.IsUnavailable(err) != c.refused || (err != nil) != c.refused {
			t.Errorf("%s/%s: %v", c.namespace, c.name, err)
		}
	}
}

// TestDamagedRecordKeepsItsAge spoils the record of a sandbox in whose place another has come, after it was written
// last: the sandbox is still the older one, or a kubelet would take it for the pod's last and end the other.
func TestDamagedRecordKeepsItsAge(t *testing.T) {
	b := open(t)
	first, err := b.Run(t.Context(), podConfig("a"), "")
	if err == nil {
		err = b.Stop(t.Context(), first)
	}
	cfg := podConfig("a")
	cfg.Metadata.Attempt = 1
	next, e := b.Run(t.Context(), cfg, "")
	if err = errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	was, err := b.Catalog.Get(first)
	if err != nil {
		t.Fatal(err)
	}
	b.end(t)
	later := time.Now().Add(time.Second) // the flusher's work
	if err := errors.Join(os.WriteFile(b.cfg.Record(first), []byte("?"), 0o600),
		os.Chtimes(b.cfg.Pod(first), later, later)); err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	if _, damaged := b.Catalog.index.Load().damaged[first]; !damaged {
		t.Fatal("the record can be read")
	}
	older, err := b.Catalog.Get(first)
	newer, e := b.Catalog.Get(next)
	if err = errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	if !older.CreatedAt.Equal(was.CreatedAt) || !older.CreatedAt.Before(newer.CreatedAt) {
		t.Errorf("the first was created at %v, and told at %v, the next at %v", was.CreatedAt, older.CreatedAt,
			newer.CreatedAt)
	}
}
