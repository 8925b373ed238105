package volume

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Slow is a directory that shows another one, on a file system whose answers a test can delay or withhold: like a
// network disk whose server is busy or gone. The file system is FUSE, served by the test's own process.
type Slow struct {
	at     string
	server *fuse.Server
	pace   *pace
	open   *handles
}

// SlowAvailable returns what this machine lacks for a Slow, nil for nothing.
func SlowAvailable() error {
	_, err := os.Stat("/dev/fuse")
	return err
}

// MountSlow shows source at the directory at, until Close. It needs root.
func MountSlow(source, at string) (*Slow, error) {
	root, err := fs.NewLoopbackRoot(source)
	if err != nil {
		return nil, fmt.Errorf("show %s: %w", source, err)
	}
	pace, open := &pace{}, &handles{all: map[handle]func(){}}
	never := time.Duration(0)
	raw := fs.NewNodeFS(root, &fs.Options{AttrTimeout: &never, EntryTimeout: &never})
	server, err := fuse.NewServer(paced{counted{raw, open}, pace}, at, &fuse.MountOptions{
		FsName: "slow", Name: "slow", AllowOther: true, DirectMountStrict: true, DirectMountFlags: unix.MS_NOATIME,
		// Reads and writes come here, too. Linux would have them of the files below otherwise, and hold these for as long
		// as a program that was started meanwhile has its copy of the connection.
		MaxStackDepth: -1, // none that Linux takes
	})
	if err != nil {
		return nil, fmt.Errorf("mount a slow file system at %s: %w", at, err)
	}
	go server.Serve()
	d := &Slow{at, server, pace, open}
	if err := server.WaitMount(); err != nil {
		return nil, errors.Join(fmt.Errorf("mount a slow file system at %s: %w", at, err), d.Close())
	}
	return d, nil
}

// Delay has each operation from now on take so much longer.
func (d *Slow) Delay(each time.Duration) {
	d.pace.mu.Lock()
	defer d.pace.mu.Unlock()
	d.pace.delay = each
}

// Hang withholds all answers until it is told to go on. Who waits cannot be killed meanwhile.
func (d *Slow) Hang() (goOn func()) {
	d.pace.mu.Lock()
	defer d.pace.mu.Unlock()
	if d.pace.hung == nil {
		d.pace.hung = make(chan struct{})
	}
	return d.pace.goOn
}

// Waiting is how many operations wait at the moment.
func (d *Slow) Waiting() int {
	d.pace.mu.Lock()
	defer d.pace.mu.Unlock()
	return d.pace.waiting
}

// Close answers what waits, takes the mount away, and lets the directory below go. Whoever has a copy of the mount, or
// a file of it open, gets ENOTCONN from then on.
func (d *Slow) Close() error {
	d.Delay(0)
	d.pace.goOn()
	if err := unix.Unmount(d.at, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", d.at, err)
	}
	d.server.Wait()
	d.open.release()
	return nil
}

// pace is how fast answers are.
type pace struct {
	mu      sync.Mutex // guards all
	delay   time.Duration
	hung    chan struct{} // nil while answers are given
	waiting int
}

func (p *pace) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hung != nil {
		close(p.hung)
		p.hung = nil
	}
}

func (p *pace) wait() {
	p.mu.Lock()
	hung, delay := p.hung, p.delay
	p.waiting++
	p.mu.Unlock()
	if hung != nil {
		<-hung
	}
	time.Sleep(delay)
	p.mu.Lock()
	p.waiting--
	p.mu.Unlock()
}

// handles are the files and directories that the server has open below. Linux reports that one was closed when it has
// time, and not at all once the connection has ended: what is left then, Close releases.
type handles struct {
	mu  sync.Mutex // guards all
	all map[handle]func()
}

type handle struct{ node, fh uint64 }

func (h *handles) opened(node, fh uint64, release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[handle{node, fh}] = release
}

func (h *handles) released(node, fh uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, handle{node, fh})
}

// release is for when the server answers no more.
func (h *handles) release() {
	for _, release := range h.all {
		release()
	}
	clear(h.all)
}

// counted is a file system that knows what is open.
type counted struct {
	fuse.RawFileSystem
	open *handles
}

func (f counted) Create(c <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	s := f.RawFileSystem.Create(c, in, name, out)
	if s.Ok() {
		f.openedFile(out.NodeId, out.Fh)
	}
	return s
}

func (f counted) Open(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	s := f.RawFileSystem.Open(c, in, out)
	if s.Ok() {
		f.openedFile(in.NodeId, out.Fh)
	}
	return s
}

func (f counted) openedFile(node, fh uint64) {
	in := &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: node}, Fh: fh}
	f.open.opened(node, fh, func() { f.RawFileSystem.Release(nil, in) })
}

func (f counted) Release(c <-chan struct{}, in *fuse.ReleaseIn) {
	f.open.released(in.NodeId, in.Fh)
	f.RawFileSystem.Release(c, in)
}

func (f counted) OpenDir(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	s := f.RawFileSystem.OpenDir(c, in, out)
	if s.Ok() {
		in := &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: in.NodeId}, Fh: out.Fh}
		f.open.opened(in.NodeId, in.Fh, func() { f.RawFileSystem.ReleaseDir(in) })
	}
	return s
}

func (f counted) ReleaseDir(in *fuse.ReleaseIn) {
	f.open.released(in.NodeId, in.Fh)
	f.RawFileSystem.ReleaseDir(in)
}

// paced is a file system that waits before the operations by which others notice that it is slow.
type paced struct {
	fuse.RawFileSystem
	pace *pace
}

func (f paced) Lookup(c <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	f.pace.wait()
	return f.RawFileSystem.Lookup(c, h, name, out)
}

func (f paced) GetAttr(c <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	f.pace.wait()
	return f.RawFileSystem.GetAttr(c, in, out)
}

func (f paced) SetAttr(c <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	f.pace.wait()
	return f.RawFileSystem.SetAttr(c, in, out)
}

func (f paced) Mkdir(c <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	f.pace.wait()
	return f.RawFileSystem.Mkdir(c, in, name, out)
}

func (f paced) Unlink(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	f.pace.wait()
	return f.RawFileSystem.Unlink(c, h, name)
}

func (f paced) Rename(c <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	f.pace.wait()
	return f.RawFileSystem.Rename(c, in, from, to)
}

func (f paced) Create(c <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	f.pace.wait()
	return f.RawFileSystem.Create(c, in, name, out)
}

func (f paced) Open(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f.pace.wait()
	return f.RawFileSystem.Open(c, in, out)
}

func (f paced) Read(c <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	f.pace.wait()
	return f.RawFileSystem.Read(c, in, buf)
}

func (f paced) Write(c <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	f.pace.wait()
	return f.RawFileSystem.Write(c, in, data)
}

func (f paced) Writev(c <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	f.pace.wait()
	return f.RawFileSystem.Writev(c, in, data)
}

func (f paced) Fsync(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	f.pace.wait()
	return f.RawFileSystem.Fsync(c, in)
}

func (f paced) StatFs(c <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	f.pace.wait()
	return f.RawFileSystem.StatFs(c, h, out)
}
