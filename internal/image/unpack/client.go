package unpack

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// Arguments are those of a process that is to do the job.
func (j Job) Arguments() ([]string, error) {
	raw, err := encode(j)
	return []string{string(raw)}, err
}

// Files are a process's descriptors, in their order.
func Files(blob, errors, dir, control *os.File, lowers []*os.File) []*os.File {
	return append([]*os.File{blob, errors, errors, dir, control}, lowers...)
}

// Send gives a process that waits for it another job, with the descriptors that belong to it. It does not wait.
func (j Job) Send(control *os.File, blob, dir *os.File, trees []*os.File) error {
	raw, err := encode(j)
	if err != nil {
		return err
	}
	fds := []int{int(blob.Fd()), int(dir.Fd())}
	for _, f := range trees {
		fds = append(fds, int(f.Fd()))
	}
	conn, err := control.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = conn.Control(func(fd uintptr) {
		sent = unix.Sendmsg(int(fd), raw, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	return errors.Join(err, os.NewSyscallError("sendmsg", sent))
}

// Receive reads what a process says next; io.EOF when it is gone.
func Receive(control *os.File, buf []byte) (Message, error) {
	var m Message
	n, err := control.Read(buf)
	if err != nil {
		return m, err
	}
	if n == len(buf) {
		return m, fmt.Errorf("the unpacker says more than %d bytes at once", len(buf)-1)
	}
	if err := json.Unmarshal(buf[:n], &m); err != nil {
		return m, fmt.Errorf("the unpacker does not make sense: %w", err)
	}
	return m, nil
}

// MessageBuffer is one for Receive.
func MessageBuffer() []byte { return make([]byte, maxMessage+1) }

// Reply answers a question.
func Reply(control *os.File, yes bool) error {
	answer := []byte{answerNo}
	if yes {
		answer[0] = answerYes
	}
	_, err := control.Write(answer)
	return err
}

// Widen lets a process map the memory for a window. One that is gone needs none.
func Widen(pid int, memory, window int64) error {
	most := memory + WindowMemory(limit.ZstdWindow.Limit)
	l := unix.Rlimit{Cur: uint64(memory + WindowMemory(window)), Max: uint64(most)}
	if err := unix.Prlimit(pid, unix.RLIMIT_DATA, &l, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("give the unpacker memory for a window of %d bytes: %w", window, err)
	}
	return nil
}

// TimerSlack is for the timers of a process. The Go runtime looks after its threads every 20 µs, and a layer of some
// megabytes was interrupted a hundred times for that, which took a tenth of its processor time.
const TimerSlack = 4 * time.Millisecond

// Capabilities are those that a process is to be born with. It gives up chroot itself.
func Capabilities() []int {
	return []int{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SETFCAP, unix.CAP_SYS_CHROOT,
	}
}
