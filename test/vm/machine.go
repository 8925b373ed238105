package vm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Machine is a virtual machine with disks of its own. It can be started, cut off and started again on the same disks.
type Machine struct {
	Scale int // how many times longer than on the host things may take in it
	// Durable makes what the node has flushed outlive Cut, and takes time. Set it before the first Boot.
	Durable bool

	img   Image
	accel accelerator
	dir   string // its disks and its console
	cmd   *exec.Cmd
	out   *bufio.Scanner
	raw   *os.File     // gets a copy of out; may be nil
	said  bytes.Buffer // by the emulator itself
}

// New makes a machine whose second disk holds a copy of the directory payload. Nothing runs yet.
//
// The node runs the payload's program `run` at each boot, in the directory of that disk, with what it says going to
// Next, and powers off when it has ended.
func New(img Image, payload string) (*Machine, error) {
	dir, err := os.MkdirTemp("", "bt-vm-")
	if err != nil {
		return nil, err
	}
	m := &Machine{img: img, accel: accelerate(img), dir: dir}
	m.Scale = m.accel.scale
	if err := m.disks(payload); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Machine) disks(payload string) error {
	if err := run("qemu-img", "create", "-q", "-f", "qcow2", "-b", m.img.Disk, "-F", "raw",
		m.file("root.qcow2")); err != nil {
		return err
	}
	return run("mke2fs", "-q", "-t", "ext4", "-d", payload, "-F", m.file("payload.img"), "2G")
}

func (m *Machine) file(name string) string { return filepath.Join(m.dir, name) }

// program is the emulator for this machine's architecture.
func program() string {
	if runtime.GOARCH == "arm64" {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// Boot starts the machine.
func (m *Machine) Boot() error {
	cache := "unsafe"
	if m.Durable {
		cache = "writeback"
	}
	m.cmd = exec.Command(program(), append([]string{
		"-machine", "q35", "-m", "4096", "-smp", strconv.Itoa(max(2, runtime.NumCPU())), "-display", "none", "-no-reboot",
		"-monitor", "none", "-nic", "none",
		"-kernel", m.img.Kernel, "-initrd", m.img.Initrd, "-append",
		"root=/dev/vda rw console=ttyS0 panic=-1 systemd.show_status=1 quiet " + m.img.Append,
		"-drive", "if=virtio,format=qcow2,cache=" + cache + ",file=" + m.file("root.qcow2"),
		"-drive", "if=virtio,format=raw,cache=unsafe,file=" + m.file("payload.img"),
		"-serial", "file:" + m.file("console"), "-serial", "stdio"}, m.accel.flags...)...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	m.said.Reset()
	m.cmd.Stderr = &m.said
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if m.cmd.Stdin, err = os.Open(os.DevNull); err != nil {
		return err
	}
	m.out = bufio.NewScanner(out)
	m.out.Buffer(nil, 1<<20)
	if err := m.cmd.Start(); err != nil {
		return fmt.Errorf("start the virtual machine: %w", err)
	}
	return nil
}

// record copies what the machine says to a file.
func (m *Machine) record(path string) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	m.raw, err = os.Create(path)
	return err
}

// Next returns the next line that the payload says, or io.EOF when the machine is off.
func (m *Machine) Next() (string, error) {
	if m.out.Scan() {
		line := strings.TrimRight(m.out.Text(), "\r")
		if m.raw != nil {
			_, _ = fmt.Fprintln(m.raw, line)
		}
		return line, nil
	}
	if err := m.out.Err(); err != nil {
		return "", err
	}
	return "", io.EOF
}

// Await ends when the machine is off, or cuts it off when ctx ends.
func (m *Machine) Await(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- m.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("the emulator ended with %w: %s", err, strings.TrimSpace(m.said.String()))
		}
		return nil
	case <-ctx.Done():
		_ = m.cmd.Process.Kill()
		<-done
		return fmt.Errorf("the virtual machine is not off: %w", context.Cause(ctx))
	}
}

// Cut takes the power away: what the node had not written to its disks is lost.
func (m *Machine) Cut() error {
	if m.cmd == nil {
		return nil
	}
	_ = m.cmd.Process.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = m.Await(ctx) // that it was killed is known
	m.cmd = nil
	return nil
}

// keep copies a folder of the second disk to a folder here, which it replaces.
func (m *Machine) keep(folder, to string) error {
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(filepath.Dir(to), 0o755)); err != nil {
		return err
	}
	if err := run("debugfs", "-R", "rdump /"+folder+" "+filepath.Dir(to), m.file("payload.img")); err != nil {
		return err
	}
	if _, err := os.Stat(to); err != nil { // debugfs has told nobody that there is no such folder
		return fmt.Errorf("the machine has left no results: %w", err)
	}
	return nil
}

// Console is the last that the kernel and systemd said.
func (m *Machine) Console(lines int) string {
	text, _ := os.ReadFile(m.file("console"))
	return tail(string(text), lines)
}

// Close cuts the machine off and removes its disks.
func (m *Machine) Close() error {
	if m.raw != nil {
		_ = m.raw.Close()
	}
	return errors.Join(m.Cut(), os.RemoveAll(m.dir))
}

// tail is the end of a text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
