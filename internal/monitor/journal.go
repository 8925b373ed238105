package monitor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// journalFile, in a container's run directory, has what was taken of its streams and is not in its log yet, and how far
// the log is. It outlives this process: a monitor that takes over goes on where this one was killed.
const journalFile = "journal"

// The file is a window for each of stdout and stderr, the first of which begins after the head. Only the first page of
// a window is there all the time; the rest is made while output flows, and given back when it has been quiet. The
// beginning of a line and as much as a pipe holds fit into a window.
const (
	page        = 4 << 10
	headSize    = 1 << 10
	windowSize  = 64<<10 + maxLine + page
	journalSize = 2 * windowSize
)

// layout is what a journal begins with. It changes with anything that is written there, and with how entries are made:
// those of a batch that was cut off are made again.
const layout = 0x6265727468_0002

// head is the beginning of a journal. Offsets are those in the file.
type head struct {
	layout uint64
	turn   uint64      // counts the changes of notes; the last one of turn is which of them holds
	taken  [2][2]int64 // by stream: up to where it was taken. The kernel itself writes it with the taking
	notes  [2]note
}

// note says how far the log is.
type note struct {
	side [2]uint64 // by stream: which of taken holds
	done [2]int64  // by stream: what is before this is in the log, or was dropped
	log  fileID    // the last log that was written to
	// dropped and torn are the log's.
	dropped int64
	torn    bool
	excess  excess
	bucket  bucket
	batch   batch
}

// batch is what is being written to the log: the entries of a stream from note.done to here, made at that time, after a
// notice if something was dropped before. size is the log's before it. A stream of 0 is that nothing is.
type batch struct {
	stream   int64
	to       int64
	at, size int64
}

// fileID names a file whatever it is called.
type fileID struct{ device, inode uint64 }

// journal is that file. The note is guarded by the output's writing.
type journal struct {
	fd   int // -1: there is no room for a file, and this is memory that goes with the process
	path string
	mem  []byte
	head *head
}

// makeJournal makes a container's journal.
func makeJournal(dir string) (*journal, error) {
	path := filepath.Join(dir, journalFile)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	if err := unix.Ftruncate(fd, journalSize); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	j, err := mapJournal(fd, path)
	if err == nil {
		j.begin()
	}
	return j, err
}

// memoryJournal makes a journal that is no file.
func memoryJournal() (*journal, error) {
	mem, err := mapped(-1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	j := &journal{fd: -1, mem: mem, head: (*head)(unsafe.Pointer(&mem[0]))}
	j.begin()
	return j, nil
}

// errLayout says that a journal is one that this release does not read, now or later.
var errLayout = errors.New("it is of another layout: what was taken and not logged is lost")

// openJournal opens the journal that another monitor has left.
func openJournal(dir string) (*journal, error) {
	path := filepath.Join(dir, journalFile)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && st.Size != journalSize {
		err = errLayout
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	j, err := mapJournal(fd, path)
	if err == nil && !j.sound() {
		j.close()
		err = fmt.Errorf("%s: %w", path, errLayout)
	}
	return j, err
}

// id is the file's; that of one in memory is none.
func (j *journal) id() (id fileID) {
	var st unix.Stat_t
	if j.fd >= 0 && unix.Fstat(j.fd, &st) == nil {
		id = idOf(&st)
	}
	return id
}

// mapJournal maps the file. What is touched of it is there before, also where its file system is full. The head stays
// in memory: the kernel gives up an offset that it cannot write at once.
func mapJournal(fd int, path string) (*journal, error) {
	var err error
	for at := int64(0); at < journalSize; at += windowSize {
		if err == nil {
			err = fallocate(fd, 0, at, page)
		}
	}
	var mem []byte
	if err == nil {
		mem, err = mapped(fd, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	_ = unix.Mlock(mem[:page])
	return &journal{fd: fd, path: path, mem: mem, head: (*head)(unsafe.Pointer(&mem[0]))}, nil
}

// uninterrupted repeats a call that ends because a signal has come, as package os does: each child that ends sends one.
func uninterrupted(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// fallocate is that of the kernel. In Linux 6.6 and before a tmpfs breaks it off for any signal.
func fallocate(fd int, mode uint32, off, size int64) error {
	return uninterrupted(func() error { return unix.Fallocate(fd, mode, off, size) })
}

func mapped(fd, flags int) ([]byte, error) {
	at, err := unix.MmapPtr(fd, 0, nil, journalSize, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(at), journalSize), nil
}

// begin makes the head of a journal that has nothing yet.
func (j *journal) begin() {
	var n note
	for i := range n.done {
		n.done[i] = windowStart(i)
		j.head.taken[i][0] = n.done[i]
	}
	j.set(&n)
	atomic.StoreUint64(&j.head.layout, layout)
}

// sound says whether the head makes sense. One whose maker was killed before it was done has nothing.
func (j *journal) sound() bool {
	switch j.head.layout {
	case 0:
		j.begin()
	case layout:
	default:
		return false
	}
	n := j.note()
	for i := range n.done {
		taken := j.head.taken[i][n.side[i]&1]
		if n.side[i] > 1 || n.done[i] < windowStart(i) || taken < n.done[i] || taken > windowEnd(i) {
			return false
		}
	}
	b := n.batch
	if b.stream < 0 || b.stream > 2 {
		return false
	}
	i := max(b.stream-1, 0)
	return b.stream == 0 || b.to >= n.done[i] && b.to <= j.head.taken[i][n.side[i]]
}

func (j *journal) note() *note { return &j.head.notes[j.head.turn%2] }

// set replaces the note, at once as far as a process can see that comes after this one was killed.
func (j *journal) set(n *note) {
	turn := j.head.turn + 1
	j.head.notes[turn%2] = *n
	atomic.StoreUint64(&j.head.turn, turn)
}

// close lets go of it.
func (j *journal) close() {
	_ = unix.MunmapPtr(unsafe.Pointer(&j.mem[0]), journalSize)
	if j.fd >= 0 {
		_ = unix.Close(j.fd)
	}
}

// remove lets go of it when nothing in it is needed any more. It says whether the file is elsewhere by now, among what
// is owed to the logs of deleted containers.
func (j *journal) remove() (moved bool) {
	j.close()
	if j.fd < 0 {
		return false
	}
	return os.Remove(j.path) != nil
}
