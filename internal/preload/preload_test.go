package preload

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/image"
	"berth/internal/image/progress"
)

const a, b, c = "r.example/a:v1", "r.example/b:v1", "other.example/c:v1"

// TestTakesIn imports archives and pulls what lists name: at the start, when a file comes, and when it changes. Over a
// restart it does nothing again.
func TestTakesIn(t *testing.T) {
	r := newRig(t)
	r.put("1.tar", a)
	r.start()
	r.has(a)
	r.put("list.txt", "# what else\n"+b+"\n"+c+" # from elsewhere\n\n")
	r.has(b, c)
	r.wantPins(c, a, b)
	r.restart()
	if got := of(r.store, pinned); !slices.Equal(got, []string{c, a, b}) {
		t.Errorf("pinned before anything was looked at: %q", got)
	}
	r.quiet()
	if got, names := of(r.store, imported), of(r.store, asked); len(got) != 1 || len(names) != 2 {
		t.Errorf("imported %q, pulled %q", got, names)
	}
	r.put("1.tar", "r.example/new:v1")
	r.has("r.example/new:v1")
	r.wantPins(c, b, "r.example/new:v1")
	r.put("2.tar.zst", "nameless-1")
	r.wantPins(c, b, "r.example/new:v1", "sha256:nameless-1")
	r.ok(os.Remove(r.path("list.txt")))
	r.ok(os.Remove(r.path("2.tar.zst")))
	r.wantPins("r.example/new:v1")
	r.has(a, b, c)
	if all := r.d.Problems(); len(all) != 0 {
		t.Error(all)
	}
}

// TestWaitsForWriters has an archive written in pieces, with pauses longer than the time in which a file settles, by
// one who keeps it open, and by one who does not.
func TestWaitsForWriters(t *testing.T) {
	r := newRig(t)
	r.start()
	f, err := os.Create(r.path("open.tar"))
	r.ok(err)
	for _, piece := range []string{a, " ", b, " ", c} {
		_, err = f.WriteString(piece)
		r.ok(err)
		time.Sleep(300 * time.Millisecond)
	}
	if got := of(r.store, imported); len(got) != 0 {
		t.Errorf("imported while it is written: %q", got)
	}
	r.ok(f.Close())
	r.has(a, b, c)
	if got := of(r.store, imported); !slices.Equal(got, []string{a + " " + b + " " + c}) {
		t.Errorf("imported %q", got)
	}
	for range 5 {
		f, err = os.OpenFile(r.path("pieces.tar"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		r.ok(err)
		_, err = f.WriteString("piece ")
		r.ok(err)
		r.ok(f.Close())
		time.Sleep(20 * time.Millisecond)
	}
	r.has("piece")
	r.eventually("the whole is imported", func() bool {
		all := of(r.store, imported)
		return all[len(all)-1] == strings.Repeat("piece ", 5)
	})
}

// TestChangedWhileRead has an archive that becomes another one in the middle of its import: what came of that counts
// for nothing, and the new content is imported.
func TestChangedWhileRead(t *testing.T) {
	r := newRig(t)
	r.put("x.tar", a)
	changed := false
	r.reading = func(f *os.File) {
		if !changed {
			changed = true
			r.ok(os.WriteFile(r.path("x.tar"), []byte(a[:1]+"-other:v2"), 0o644))
		}
	}
	r.start()
	r.has(a[:1] + "-other:v2")
	r.wantPins(a[:1] + "-other:v2")
	r.quiet()
	if got := of(r.store, imported); len(got) != 2 {
		t.Errorf("imported %q", got)
	}
}

// TestWrongFiles has all sorts of things in the directory that are no archive and no list. Each is told of, none is
// opened that must not be, and none delays the one that is right.
func TestWrongFiles(t *testing.T) {
	r := newRig(t)
	r.ok(unix.Mkfifo(r.path("fifo.tar"), 0o644))
	r.ok(unix.Mkfifo(r.path("fifo.txt"), 0o644))
	r.ok(os.Symlink("/etc/passwd", r.path("link.txt")))
	r.ok(os.Symlink("nowhere", r.path("link.tar")))
	r.ok(os.Mkdir(r.path("dir.tar"), 0o755))
	r.put("bad.tar", "bad")
	r.put("empty.tar", "")
	r.put("readme.md", "hello")
	r.put("open.tar", a)
	r.ok(os.Chmod(r.path("open.tar"), 0o666))
	r.put("lines.txt", b+"\nUPPER CASE\n\x00\n"+strings.Repeat("x", 70_000)+"\n-x\n"+c+"\n")
	r.put("large.txt", strings.Repeat("r.example/x:v1\n", 100_000))
	r.put("zgood.tar", "r.example/good:v1")
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	r.ok(err)
	defer unix.Close(sock)
	r.ok(unix.Bind(sock, &unix.SockaddrUnix{Name: r.path("s.tar")}))
	others := os.Geteuid() == 0
	if others {
		r.put("others.tar", a)
		r.ok(os.Chown(r.path("others.tar"), 1000, 0))
		r.ok(unix.Mknod(r.path("tty.tar"), unix.S_IFCHR|0o600, 5<<8))
	}
	r.start()
	r.has("r.example/good:v1", b, c)
	for name, says := range map[string]string{
		"fifo.tar": "it is no file", "fifo.txt": "it is no file", "link.txt": "symbolic link",
		"link.tar": "symbolic link", "dir.tar": "", "bad.tar": "not a whole tar", "empty.tar": "it is empty",
		"readme.md": "its name is that of no archive", "open.tar": "others may write to it (mode 0666)",
		"lines.txt": "line 2: ", "large.txt": "more than the 1048576 bytes", "s.tar": "it is no file",
	} {
		r.problem(r.path(name), says)
	}
	if others {
		r.problem(r.path("others.tar"), "it belongs to the user 1000")
		r.problem(r.path("tty.tar"), "it is no file")
	}
	r.quiet() // what cannot come right by itself is not read again
	r.ok(os.Chmod(r.path("open.tar"), 0o644))
	r.put("bad.tar", "r.example/better:v1")
	r.has(a, "r.example/better:v1")
	r.problem(r.path("open.tar"), "")
	r.problem(r.path("bad.tar"), "")
	r.ok(os.Remove(r.path("fifo.tar")))
	r.ok(os.Remove(r.path("empty.tar")))
	r.problem(r.path("fifo.tar"), "")
	r.problem(r.path("empty.tar"), "")
}

// TestListThatCannotBeRead has the kernel withhold a list for a while, in its second version. What was pinned by the
// first one stays pinned, and the second one is read when it can be.
func TestListThatCannotBeRead(t *testing.T) {
	r := newRig(t)
	r.put("l.txt", a+"\n"+b)
	r.start()
	r.has(a, b)
	r.wantPins(a, b)
	next := filepath.Join(t.TempDir(), "l.txt")
	r.ok(os.WriteFile(next, []byte(a+"\n"+b+"\n"+c), 0o644))
	held, err := os.OpenFile(next, os.O_RDWR, 0)
	r.ok(err)
	defer held.Close()
	// Until its lease ends, whoever else opens the file without waiting gets EAGAIN.
	_, err = unix.FcntlInt(held.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	r.ok(err)
	r.ok(os.Rename(next, r.path("l.txt")))
	r.problem(r.path("l.txt"), unix.EAGAIN.Error())
	time.Sleep(200 * time.Millisecond)
	r.wantPins(a, b)
	r.ok(held.Close())
	r.has(a, b, c)
	r.wantPins(c, a, b)
	r.problem(r.path("l.txt"), "")
}

// TestSwappedFile puts a FIFO and a link into the place of a file after it was looked at.
func TestSwappedFile(t *testing.T) {
	r := newRig(t)
	r.ok(unix.Mkfifo(r.path("x.tar"), 0o644))
	r.ok(os.Symlink("/etc/passwd", r.path("y.tar")))
	for _, name := range []string{"x.tar", "y.tar"} {
		if f, _, err := openFile(r.dir, name); err == nil || f != nil {
			t.Errorf("%s was opened", name)
		}
	}
}

// TestOneRegistryHoldsUpNobody has a registry that does not answer at all, and one that fails at first: names of
// others, and archives, come all the same.
func TestOneRegistryHoldsUpNobody(t *testing.T) {
	r := newRig(t)
	hang := make(chan struct{})
	r.Cleanup(func() { close(hang) })
	tries := 0
	r.pulling = func(name string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch hostOf(name) {
		case "hung.example":
			r.mu.Unlock()
			<-hang
			r.mu.Lock()
			return errRegistry
		case "weak.example":
			if tries++; tries < 4 {
				return errRegistry
			}
		}
		return nil
	}
	hung := "hung.example/1\nhung.example/2\nhung.example/3\nhung.example/4\nhung.example/5\n"
	r.put("a.txt", hung+"weak.example/x:v1\n"+a+"\n"+c)
	r.start()
	r.has(a, c)
	r.has("weak.example/x:v1")
	r.put("later.tar", b)
	r.has(b)
	if names := of(r.store, asked); slices.Contains(names, "hung.example/2:latest") {
		t.Errorf("two names are pulled of a registry that does not answer: %q", names)
	}
	r.problem(r.path("a.txt"), "")
}

// TestFailedPullIsTold has a name that cannot be pulled, until a reload finds that it can.
func TestFailedPullIsTold(t *testing.T) {
	r := newRig(t)
	works := make(chan struct{})
	r.pulling = func(string) error {
		select {
		case <-works:
			return nil
		default:
			return errRegistry
		}
	}
	r.put("a.txt", a)
	r.open()
	r.d.pace.retry.First, r.d.pace.retry.Max = time.Hour, time.Hour
	r.d.Start()
	r.problem(r.path("a.txt"), "does not answer")
	close(works)
	r.d.TryAgain()
	r.has(a)
	r.problem(r.path("a.txt"), "")
}

// TestEndsDelayNoLook has pulls fail again and again, which the daemon hears of each time. What is planned for a time
// is done all the same: a list and an archive are read that have just been put there.
func TestEndsDelayNoLook(t *testing.T) {
	r := newRig(t)
	r.pulling = func(name string) error {
		if name == a {
			return errRegistry
		}
		return nil
	}
	r.open()
	r.d.pace.every, r.d.pace.blind = time.Hour, time.Hour
	r.d.pace.settled = 300 * time.Millisecond
	r.d.pace.retry.First, r.d.pace.retry.Max = 10*time.Millisecond, 10*time.Millisecond
	r.put("a.txt", a)
	r.d.Start()
	r.eventually("the first list is read", func() bool { return len(of(r.store, asked)) > 2 })
	r.put("b.txt", b)
	r.has(b)
	r.put("c.tar", c)
	r.has(c)
}

// TestRemovedImages wants pinned images back, from an archive and from a registry, and leaves removed those that are
// not pinned: a garbage collection would remove them again.
func TestRemovedImages(t *testing.T) {
	for _, pin := range []bool{true, false} {
		t.Run(fmt.Sprint(pin), func(t *testing.T) {
			r := newRig(t)
			r.pin = pin
			r.put("a.tar", a)
			r.put("b.txt", b)
			r.start()
			r.has(a, b)
			r.eventually("the record has all", func() bool {
				m, _ := readMemory(r.record, r.dir)
				return len(m.Files) == 2 && m.Files["a.tar"].Durable && m.Files["b.txt"].Pulled[b]
			})
			r.remove(a)
			r.remove(b)
			if pin {
				r.has(a, b)
				return
			}
			r.quiet()
			r.restart()
			r.quiet()
			if _, there := r.Get(a); there || len(of(r.store, pinned)) != 0 {
				t.Errorf("it came back; pinned are %q", of(r.store, pinned))
			}
			r.put("b.txt", b+"\n"+c) // another list
			r.has(b, c)
		})
	}
}

// TestTagThatMoved has the name of an archive's image move to another image: the archive does not take it back.
func TestTagThatMoved(t *testing.T) {
	r := newRig(t)
	r.put("a.tar", a)
	r.start()
	r.has(a)
	r.mu.Lock()
	delete(r.images, "sha256:"+a)
	r.mu.Unlock()
	r.quiet()
}

// TestPowerCut has an archive that was imported, and noted, and whose image was not on the disk when the power failed.
func TestPowerCut(t *testing.T) {
	r := newRig(t)
	r.pin, r.fragile = false, true
	r.put("a.tar", a)
	r.start()
	r.has(a)
	r.eventually("it is noted", func() bool { m, _ := readMemory(r.record, r.dir); return len(m.Files) == 1 })
	r.d.Close()
	r.remove(a)
	r.start()
	r.has(a)
}

// TestDamagedRecord has a record that nobody can read: all is taken in again.
func TestDamagedRecord(t *testing.T) {
	r := newRig(t)
	r.put("a.tar", a)
	r.start()
	r.has(a)
	r.eventually("it is noted", func() bool { m, _ := readMemory(r.record, r.dir); return len(m.Files) == 1 })
	r.d.Close()
	r.ok(os.WriteFile(r.record, []byte("berth-record preload v1 sha256=00 len=9\nnull"), 0o600))
	r.start()
	r.eventually("it is imported again", func() bool { return len(of(r.store, imported)) == 2 })
}

// TestDirectoryComesAndGoes has the directory be made after the start, replaced, refused and removed.
func TestDirectoryComesAndGoes(t *testing.T) {
	r := newRig(t)
	r.ok(os.Remove(r.dir))
	r.start()
	r.problem(r.dir, "")
	r.ok(os.Mkdir(r.dir, 0o755))
	r.put("a.tar", a)
	r.has(a)
	r.ok(os.Mkdir(r.dir+".new", 0o755))
	r.ok(os.WriteFile(r.dir+".new/b.tar", []byte(b), 0o644))
	r.ok(os.Rename(r.dir, r.dir+".old"))
	r.ok(os.Rename(r.dir+".new", r.dir))
	r.has(b)
	r.wantPins(b)
	r.put("c.tar", c) // the new directory is watched
	r.has(c)
	r.ok(os.Chmod(r.dir, 0o777))
	r.put("d.tar", "r.example/d:v1")
	r.problem(r.dir, "others may write to it (mode 0777)")
	if _, there := r.Get("r.example/d:v1"); there {
		t.Error("who may write to it names images")
	}
	r.wantPins(c, b) // what was there before is not let go for it
	r.ok(os.Chmod(r.dir, 0o755))
	r.has("r.example/d:v1")
	r.problem(r.dir, "")
	r.ok(os.RemoveAll(r.dir))
	r.wantPins()
}

// refusing is a store that refuses every archive.
type refusing struct {
	*store
	kind  error
	reads atomic.Int32
}

func (s *refusing) Import(context.Context, io.Reader, func(progress.Event)) ([]image.Image, error) {
	s.reads.Add(1)
	return nil, fail.New(s.kind, "not this one")
}

// TestArchiveIsReadAgainInTime has an import fail that may succeed the next time: that comes when it is due, long
// before the directory is looked at anyway.
func TestArchiveIsReadAgainInTime(t *testing.T) {
	r := newRig(t)
	s := &refusing{store: r.store, kind: errdefs.ErrUnavailable}
	r.put("a.tar", "some gigabytes")
	r.open()
	d := Open(Config{Path: r.dir, Pin: true, Store: s, SetPins: r.setPins, Record: r.record,
		Log: slog.New(slog.DiscardHandler)})
	d.pace = r.d.pace
	d.pace.every, d.pace.blind = time.Hour, time.Hour
	d.Start()
	defer d.Close()
	r.eventually("it is read again and again", func() bool { return s.reads.Load() > 2 })
}

// TestArchiveThatCannotComeRight has archives that have no image for this machine, that cannot be unpacked here, and
// that are not whole: each is read once. One that a busy store refuses is read again.
func TestArchiveThatCannotComeRight(t *testing.T) {
	for kind, again := range map[error]bool{errdefs.ErrNotFound: false, errdefs.ErrFailedPrecondition: false,
		errdefs.ErrInvalidArgument: false, errdefs.ErrUnavailable: true} {
		t.Run(kind.Error(), func(t *testing.T) {
			r := newRig(t)
			s := &refusing{store: r.store, kind: kind}
			r.put("a.tar", "some gigabytes")
			r.open()
			d := Open(Config{Path: r.dir, Pin: true, Store: s, SetPins: r.setPins, Record: r.record,
				Log: slog.New(slog.DiscardHandler)})
			d.pace = r.d.pace
			d.Start()
			defer d.Close()
			if again {
				r.eventually("it is read again", func() bool { return s.reads.Load() > 1 })
				return
			}
			r.eventually("it is read", func() bool { return s.reads.Load() > 0 })
			time.Sleep(2500 * time.Millisecond) // in which the other one is read again
			if n := s.reads.Load(); n > 1 {
				t.Errorf("it was read %d times", n)
			}
		})
	}
}
