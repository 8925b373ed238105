package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// StandIn does what the specs ask of sudo and of systemctl, when this program is called by one of these names. There
// is one unit, the kubelet that the suite has started.
func StandIn(args []string) bool {
	switch filepath.Base(args[0]) {
	case "sudo": // all is root's here
		path, err := exec.LookPath(args[1])
		if err == nil {
			err = syscall.Exec(path, args[1:], os.Environ())
		}
		exit(err)
	case "systemctl":
		exit(systemctl(args[1], slices.Contains(args, "--state=running")))
	default:
		return false
	}
	return true
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func systemctl(verb string, running bool) error {
	k, err := findKubelet()
	if err != nil {
		return err
	}
	switch verb {
	case "list-units":
		if k != nil || !running {
			fmt.Println("kubelet-suite.service loaded active running the kubelet of the suite")
		}
		return nil
	case "reset-failed", "mask":
		return nil
	case "kill", "stop":
		return k.stop()
	case "restart", "start":
		if verb == "restart" {
			err = k.stop()
		}
		return errors.Join(err, startKubelet())
	}
	return fmt.Errorf("systemctl %s: there is nobody to ask for it", verb)
}

// remembered is where a kubelet that is stopped leaves how it was started: its directory, where its errors go, its
// arguments.
const remembered = "/run/kubelet-suite"

// kubelet is the one that runs; nil when none does.
type kubelet struct{ pid int }

func findKubelet() (*kubelet, error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		k := &kubelet{pid: pid}
		if name, _ := os.ReadFile(k.proc("comm")); string(name) == "kubelet\n" && k.runs() {
			return k, nil
		}
	}
	return nil, nil
}

func (k *kubelet) proc(file string) string { return fmt.Sprintf("/proc/%d/%s", k.pid, file) }

// runs says whether it has not ended: one that its parent has not waited for still has a name.
func (k *kubelet) runs() bool {
	cmdline, err := os.ReadFile(k.proc("cmdline"))
	return err == nil && len(cmdline) > 0
}

func (k *kubelet) stop() error {
	if k == nil {
		return nil
	}
	dir, err := os.Readlink(k.proc("cwd"))
	if err != nil {
		return err
	}
	log, err := os.Readlink(k.proc("fd/2"))
	if err != nil {
		return err
	}
	args, err := os.ReadFile(k.proc("cmdline"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(remembered, fmt.Appendf(nil, "%s\x00%s\x00%s", dir, log, args), 0o600); err != nil {
		return err
	}
	for n := range 600 {
		signal := syscall.SIGTERM
		if n > 300 {
			signal = syscall.SIGKILL
		}
		if n%300 == 0 {
			_ = syscall.Kill(k.pid, signal)
		}
		if !k.runs() {
			return nil
		}
		time.Sleep(tenth)
	}
	return fmt.Errorf("the kubelet %d does not end", k.pid)
}

func startKubelet() error {
	text, err := os.ReadFile(remembered)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("no kubelet has been stopped")
	}
	if err != nil {
		return err
	}
	var parts []string
	for part := range bytes.SplitSeq(bytes.TrimSuffix(text, []byte{0}), []byte{0}) {
		parts = append(parts, string(part))
	}
	if len(parts) < 3 {
		return fmt.Errorf("%s holds %q", remembered, text)
	}
	log, err := os.OpenFile(parts[1], os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(parts[2], parts[3:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = parts[0], log, log
	return cmd.Start() // it goes on when this program has ended
}
