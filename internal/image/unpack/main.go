package unpack

import (
	"context"
	"crypto"
	_ "crypto/sha256" // the digests that layers have
	_ "crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/image/ahead"
	"berth/internal/image/inflate/tail"
	"berth/internal/image/layer"
)

// Main does the job that the argument says, and answers the daemon. It returns the process's exit code.
func Main(args []string) int {
	var job Job
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &job) != nil {
		printError("berth-unpack is started by the Berth daemon, not by hand")
		return 2
	}
	c := &control{fd: controlFD}
	if err := serve(job, c); err != nil {
		printError(err.Error())
		return 1
	}
	return 0
}

// serve does a job, and those that follow. A job that failed is the last.
func serve(job Job, c *control) error {
	w, err := begin(job, c)
	for {
		var answer *Answer
		if err == nil {
			answer, err = w.do(job)
		}
		if err != nil {
			return c.answer(Message{Failure: failureOf(err)})
		}
		if err := c.answer(Message{Answer: answer}); err != nil || !job.More {
			return err
		}
		var fds []int
		if job, fds, err = c.next(); errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = w.enter(job, fds)
		}
	}
}

func printError(text string) { _, _ = unix.Write(errorsFD, []byte(text+"\n")) }

// worker does one job after the other.
type worker struct {
	control  *control
	blob     int   // descriptor of the blob
	trees    []int // of the layers below, the topmost first
	unmarked []bool
}

// begin confines the process, for the first job and all that follow.
func begin(job Job, c *control) (*worker, error) {
	if err := Confine(job); err != nil {
		return nil, fmt.Errorf("confine the unpacker: %w", err)
	}
	layer.WithoutProc = true
	layer.AskWindows(c.window(job.Memory))
	w := &worker{control: c, blob: blobFD}
	for i := range job.Lowers {
		w.trees = append(w.trees, lowersFD+i)
	}
	w.unmarked = job.unmarkedTrees()
	return w, nil
}

// enter makes the directory of another layer the root. The process has no descriptor that leads out of it but those of
// trees, which are roots of mounts themselves.
func (w *worker) enter(job Job, fds []int) error {
	w.blob = fds[0]
	w.trees = append(slices.Clone(fds[2:]), w.trees...)
	w.unmarked = append(job.unmarkedTrees(), w.unmarked...)
	if err := unix.Fchdir(fds[1]); err != nil {
		return fmt.Errorf("enter the layer's directory: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("make the layer's directory the root: %w", err)
	}
	return unix.Close(fds[1])
}

// unmarkedTrees says of each tree that comes with the job whether it is known to have no opaque directory.
func (j Job) unmarkedTrees() []bool {
	return append(j.Unmarked, make([]bool, j.Lowers)...)[:j.Lowers:j.Lowers]
}

func (w *worker) do(job Job) (*Answer, error) {
	defer unix.Close(w.blob)
	if job.Finalize {
		return w.finalize(job)
	}
	return w.unpack(job)
}

// Heap that the collector leaves alone: most layers are done before they have allocated so much.
const (
	restingHeap = 24 << 20
	leastHeap   = 4 << 20 // what the collector's percentage is of, at least
	// fixedMemory is what the runtime maps beside its heap: the tables of its arenas, most of them never touched.
	fixedMemory = 48 << 20
)

// Environment has the runtime of a process for the job use as many threads as there are stages with something to do,
// and collect garbage late. It begins so: to change it later would stop all threads each time.
func (j Job) Environment() []string {
	return []string{
		"GOMAXPROCS=" + strconv.Itoa(max(1, min(j.Threads, runtime.NumCPU()))),
		"GOGC=" + strconv.Itoa(100*restingHeap/leastHeap),
		"GOMEMLIMIT=" + strconv.FormatInt(heapLimit(j.Memory), 10),
	}
}

// MemoryFor is the memory that a process may map for a layer within the limits: what is kept of the layer, once more
// where it grows and once more where directories move, beside the runtime, buffers, and garbage until it is collected.
func MemoryFor(lim layer.Limits) int64 { return fixedMemory + 2*restingHeap + 3*lim.Memory }

// WindowMemory is what is added for a zstd window: there is a smaller one until that is collected.
func WindowMemory(size int64) int64 { return 2 * size }

// heapLimit leaves a tenth of what may be mapped to what the runtime does not count.
func heapLimit(memory int64) int64 { return (memory - fixedMemory) / 10 * 9 }

func (w *worker) unpack(job Job) (*Answer, error) {
	ctx := context.Background()
	sum, err := digester(job.Algorithm)
	if err != nil {
		return nil, err
	}
	var plain io.Reader
	behind := tail.New(fdReader(w.blob), job.Mark)
	if plain = behind; job.Mark == 0 {
		if plain, err = layer.Decompress(ctx, fdReader(w.blob), job.Proven); err != nil {
			return nil, err
		}
	}
	stream := ahead.Read(plain, sum)
	res, err := layer.UnpackConfined(ctx, stream, "/", job.Limits)
	if err != nil {
		return nil, err // what goes on ends with the process
	}
	stream.Close()
	a := &Answer{Diff: job.Algorithm + ":" + hex.EncodeToString(sum.Sum(nil)), Mark: behind.Held(), Result: res}
	if res.Waits {
		err = res.Save("/")
	}
	return a, err
}

func digester(algorithm string) (hash.Hash, error) {
	kinds := map[string]crypto.Hash{"sha256": crypto.SHA256, "sha384": crypto.SHA384, "sha512": crypto.SHA512}
	kind, known := kinds[algorithm]
	if !known {
		return nil, fmt.Errorf("unknown digest algorithm %q", clip(algorithm))
	}
	return kind.New(), nil
}

func (w *worker) finalize(job Job) (*Answer, error) {
	ctx := context.Background()
	res, err := layer.LoadResult(ctx, "/", job.Limits)
	if err != nil {
		return nil, err
	}
	trees := layer.Trees{Roots: w.trees, Unmarked: w.unmarked, Opaque: w.control.opaque, Kept: true, Looks: job.Looks}
	if err := layer.FinalizeConfined(ctx, "/", res, trees); err != nil {
		return nil, err
	}
	return &Answer{Result: res}, nil
}

// fdReader reads a blocking descriptor.
type fdReader int

func (r fdReader) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(r), p)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// control talks to the daemon.
type control struct{ fd int }

// answer says how a job went.
func (c *control) answer(m Message) error {
	if err := c.say(m); err != nil {
		return fmt.Errorf("answer the daemon: %w", err)
	}
	return nil
}

// next waits for another job, with the descriptors of the blob, of the directory and of trees; io.EOF when there is
// none.
func (c *control) next() (job Job, fds []int, err error) {
	buf, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*(2+MostTrees)))
	n, m := 0, 0
	for n, m, _, _, err = unix.Recvmsg(c.fd, buf, rights, unix.MSG_CMSG_CLOEXEC); errors.Is(err, unix.EINTR); {
		n, m, _, _, err = unix.Recvmsg(c.fd, buf, rights, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return Job{}, nil, fmt.Errorf("wait for another job: %w", err)
	}
	if n == 0 {
		return Job{}, nil, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err == nil && len(messages) == 1 {
		fds, err = unix.ParseUnixRights(&messages[0])
	}
	if err == nil {
		err = json.Unmarshal(buf[:n], &job)
	}
	if err == nil && len(fds) != 2+job.Lowers {
		err = fmt.Errorf("another job comes with %d descriptors", len(fds))
	}
	return job, fds, err
}

func (c *control) say(m Message) error {
	raw, err := encode(m)
	if err != nil {
		return err
	}
	_, err = unix.Write(c.fd, raw)
	return err
}

// ask says a message and returns the byte that answers it.
func (c *control) ask(m Message) (byte, error) {
	if err := c.say(m); err != nil {
		return 0, err
	}
	var answer [1]byte
	_, err := io.ReadFull(fdReader(c.fd), answer[:])
	return answer[0], err
}

// window asks the daemon for the memory of a zstd window, and makes use of it.
func (c *control) window(memory int64) func(size int64) error {
	var most int64
	return func(size int64) error {
		if _, err := c.ask(Message{Window: size}); err != nil { // there is no answer but yes
			return fmt.Errorf("ask the daemon for a window: %w", err)
		}
		most = max(most, size)
		debug.SetMemoryLimit(heapLimit(memory + WindowMemory(most)))
		return nil
	}
}

func (c *control) opaque(tree int, path string) (bool, error) {
	answer, err := c.ask(Message{Opaque: &Place{tree, []byte(path)}})
	if err != nil {
		return false, fmt.Errorf("ask the daemon: %w", err)
	}
	return answer == answerYes, nil
}
