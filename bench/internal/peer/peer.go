// Package peer starts container runtimes for the benchmark, each with folders, a socket and a network of its own, and
// otherwise configured alike: the same OCI runtime, the same CNI plugins, the same images. It expects a /run that
// nobody else uses.
package peer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"berth/bench/internal/kubelet"
)

// Setup says where things are. Without pods CgroupParent, Idle and all images may be empty, and nothing is pulled.
type Setup struct {
	Programs     string // folder of containerd, its shim and runc
	Plugins      string // folder of the CNI plugins
	Berth        string // folder of berth and berth-monitor
	Before       string // the same of another build, which is measured as "before"
	Handler      string // more keys of Berth's handler, in TOML
	BeforeUnpack string // what images.unpack of that is; "" where it is the default, or there is no such key
	Dir          string // for everything that the runtimes write
	CgroupParent string
	Images       Images
	Idle         []string
}

// Runc is the OCI runtime of all.
func (s Setup) Runc() string { return filepath.Join(s.Programs, "runc") }

// Peer is a runtime that was started.
type Peer struct {
	kubelet.Runtime

	command func() *exec.Cmd
	cmd     *exec.Cmd
	done    chan struct{}
	log     string
}

// kind is what differs from runtime to runtime.
type kind struct {
	name, bridge, subnet string
	config               func(s Setup, name, dir string) string
	command              func(s Setup, config string) *exec.Cmd
	files                func(s Setup) map[string]string // more files beside the configuration; may be nil
}

// Names are the runtimes that are compared with each other, in the order of the report's columns. Start also knows
// Before and CRIO.
var Names = []string{"berth", "containerd"}

// Before is the name of another build of Berth.
const Before = "before"

var kinds = map[string]kind{
	"berth":      {"berth", "bnb0", "10.240.0.0/16", berthConfig, berthCommand, nil},
	"containerd": {"containerd", "bnc0", "10.241.0.0/16", containerdConfig, containerdCommand, nil},
	Before:       {Before, "bno0", "10.243.0.0/16", beforeConfig, beforeCommand, nil},
	CRIO:         {CRIO, "bnr0", "10.244.0.0/16", crioConfig, crioCommand, crioFiles},
}

// Start starts a runtime and waits until it is ready for pods.
func (s Setup) Start(ctx context.Context, name string) (*Peer, error) {
	k, ok := kinds[name]
	if !ok {
		return nil, fmt.Errorf("no runtime %q: there are %v", name, Names)
	}
	dir := filepath.Join(s.Dir, name)
	if err := WriteNetwork(filepath.Join(dir, "net.d"), k.bridge, k.subnet); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(state(name), 0o711); err != nil {
		return nil, err
	}
	files := map[string]string{}
	if k.files != nil {
		files = k.files(s)
	}
	files["config.toml"] = k.config(s, name, dir)
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	config := filepath.Join(dir, "config.toml")
	p := &Peer{command: func() *exec.Cmd { return k.command(s, config) }, log: filepath.Join(dir, "log")}
	p.Name, p.Socket, p.Image, p.Idle = name, socket(name), s.Images.Pod, s.Idle
	p.Dir, p.CgroupParent = filepath.Join(s.Dir, "pods"), filepath.Join(s.CgroupParent, name)
	p.Counted = s.CgroupParent != ""
	if err := p.launch(); err != nil {
		return nil, err
	}
	return p, p.await(ctx)
}

// state is where a runtime keeps what dies with a boot: on /run, as on any node, which here is private and short enough
// for the names of sockets.
func state(name string) string { return filepath.Join("/run", name) }

func socket(name string) string { return filepath.Join(state(name), "cri.sock") }

func (p *Peer) launch() error {
	cmd := p.command()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own, so that ^C is answered by removing pods while the runtime still runs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	if p.Counted {
		return kubelet.CountProcessorTime(p.CgroupParent, cmd.Process.Pid)
	}
	return nil
}

// await connects and pulls, and gives up at once when the daemon ends.
func (p *Peer) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	go func() {
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := p.Connect(ctx)
	if err == nil && p.Image != "" {
		err = p.Pull(ctx)
	}
	if err != nil {
		text, _ := os.ReadFile(p.log)
		return fmt.Errorf("%w; the last lines of its log:\n%s", err, tail(text, 2000))
	}
	return nil
}

func tail(text []byte, most int) []byte { return text[max(0, len(text)-most):] }

// Restart ends the daemon, which takes until gone, and begins another. It does not wait for that to answer.
func (p *Peer) Restart() (gone time.Duration, err error) {
	begin := time.Now()
	if err := p.end(); err != nil {
		return 0, err
	}
	gone = time.Since(begin)
	return gone, p.launch()
}

// Stop ends the daemon as a service manager does.
func (p *Peer) Stop() error {
	_ = p.Close()
	return p.end()
}

func (p *Peer) end() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within 20 s of SIGTERM", p.Name)
	}
}
