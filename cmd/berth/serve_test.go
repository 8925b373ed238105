package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/internal/config"
	"berth/test/timeouts"
)

// place is a daemon's own directories, with a monitor, an unpacker and a runtime that nobody asks for anything.
func place(t *testing.T) *config.Config {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("[cni]\nconfig_dir = %q\n[monitor]\npath = %q\n[images]\nunpacker = %q\n"+
		"[runtimes]\ndefault = \"none\"\n[runtimes.none]\npath = %q\n",
		filepath.Join(dir, "cni"), program, program, program)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Flags{
		Path: file, PathSet: true, LogLevel: "error",
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "socket"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// start runs a daemon until the test or the returned function ends it. It answers when start returns.
func start(t *testing.T, cfg *config.Config) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, cfg, config.Flags{}, nil) }()
	conn, err := grpc.NewClient("unix://"+cfg.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for client, deadline := runtimeapi.NewRuntimeServiceClient(conn),
		time.Now().Add(timeouts.For(time.Minute)); ; time.Sleep(10 * time.Millisecond) {
		if _, err = client.Version(ctx, &runtimeapi.VersionRequest{}); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the daemon ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("the daemon does not answer: %v", err)
		}
		conn.ResetConnectBackoff()
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the daemon ended: %v", err)
		}
		if _, err := os.Lstat(cfg.Socket); !os.IsNotExist(err) {
			t.Errorf("the socket after the daemon: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// refused wants a daemon not to start, and to say why.
func refused(t *testing.T, cfg *config.Config, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
	defer cancel()
	if err := serve(ctx, cfg, config.Flags{}, nil); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("got    %v\nwanted %s", err, why)
	}
}

func with(cfg *config.Config, change func(*config.Config)) *config.Config {
	c := *cfg
	change(&c)
	return &c
}

// TestSecondDaemon wants what one daemon uses to be refused to another, which leaves the first as it is.
func TestSecondDaemon(t *testing.T) {
	first, other := place(t), place(t)
	start(t, first)
	refused(t, with(other, func(c *config.Config) { c.Root = first.Root }),
		fmt.Sprintf("another daemon (pid %d) holds the root %s: ", os.Getpid(), first.Root))
	refused(t, with(other, func(c *config.Config) { c.State = first.State }),
		"another daemon, with another root, uses the state directory "+first.State+": ")
	refused(t, with(other, func(c *config.Config) { c.Images.Root = first.ImagesRoot() }),
		"another daemon, with another root, uses the image store "+first.ImagesRoot()+": give this one another images.root")
	refused(t, with(other, func(c *config.Config) { c.Socket = first.Socket }), "another daemon serves "+first.Socket+": ")
	conn, err := net.Dial("unix", first.Socket)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	start(t, other)
}

// TestLockOfAChild has the lock held for a while after a daemon was killed, by what it was just starting.
func TestLockOfAChild(t *testing.T) {
	dir := t.TempDir()
	child, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, func() { _ = child.Close() })
	next, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = next.Close()
}

func TestSocketThatIsThere(t *testing.T) {
	cfg := place(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	start(t, cfg)()
	if err := os.WriteFile(cfg.Socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, cfg, "socket "+cfg.Socket+": something is there that is no socket: ")
	if text, err := os.ReadFile(cfg.Socket); string(text) != "precious" {
		t.Errorf("the file: %q, %v", text, err)
	}
}

func TestWhatIsMissing(t *testing.T) {
	cfg := place(t)
	file := cfg.Monitor.Path
	none := filepath.Join(filepath.Dir(file), "none")
	refused(t, with(cfg, func(c *config.Config) {
		c.Root = filepath.Join(file, "root")
	}), "root directory: mkdir "+file+": not a directory")
	refused(t, with(cfg, func(c *config.Config) {
		c.State = filepath.Join(file, "state")
	}), "state directory: mkdir "+file+": not a directory")
	refused(t, with(cfg, func(c *config.Config) {
		c.Socket = filepath.Join(file, "s")
	}), "socket directory: mkdir "+file+": not a directory")
	refused(t, with(cfg, func(c *config.Config) { c.Monitor.Path = none }), "find the monitor: monitor.path: ")
	refused(t, with(cfg, func(c *config.Config) { c.Images.Unpacker = none }), "find the unpacker: images.unpacker: ")
	refused(t, with(cfg, func(c *config.Config) { c.Runtimes.Default = "gone" }), "find the runtime gone: it is in none "+
		"of /usr/local/sbin, ")
	if _, err := os.Lstat(cfg.Socket); !os.IsNotExist(err) {
		t.Errorf("a socket is left: %v", err)
	}
	start(t, cfg)
}

// TestRootThatCannotBeWritten wants a disk that was filled, or made read-only, to keep the daemon from making a new
// root and not from serving the pods of an old one.
func TestRootThatCannotBeWritten(t *testing.T) {
	cfg := place(t)
	if err := os.Mkdir(cfg.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	mount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("none", cfg.Root, "tmpfs", flags, "size=256k"); err != nil {
			t.Fatal(err)
		}
	}
	mount(0)
	t.Cleanup(func() { _ = unix.Unmount(cfg.Root, unix.MNT_DETACH) })
	start(t, cfg)()
	if err := os.WriteFile(filepath.Join(cfg.Root, "fill"), make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	start(t, cfg)()
	mount(unix.MS_REMOUNT | unix.MS_RDONLY)
	stop := start(t, cfg)
	refused(t, with(place(t), func(c *config.Config) {
		c.Root = cfg.Root
	}), "another daemon holds the root "+cfg.Root+": ")
	stop()
	refused(t, with(cfg, func(c *config.Config) { c.Root = filepath.Join(cfg.Root, "new") }), "new: read-only file system")
}

// TestImagesElsewhere puts the image store on a file system that cannot hold layers, and on one that can.
func TestImagesElsewhere(t *testing.T) {
	cfg := place(t)
	mount := func(kind string) string {
		t.Helper()
		dir := t.TempDir()
		if err := unix.Mount("none", dir, kind, 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		return filepath.Join(dir, "images")
	}
	unfit, fit := mount("ramfs"), mount("tmpfs")
	refused(t, with(cfg, func(c *config.Config) { c.Images.Root = unfit }),
		"start images: the file system of "+unfit+" cannot hold image layers: it has no trusted.* extended attributes: "+
			"operation not supported: set images.root to ")
	top, err := cgroup.Tracking(cfg.State)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.Stat(filepath.Join(top, cfg.Instance())); !os.IsNotExist(err) {
		t.Errorf("the daemon that could not start left a cgroup: %v, %v", left, err)
	}
	start(t, with(cfg, func(c *config.Config) { c.Images.Root = fit }))
	if _, err := os.Stat(filepath.Join(fit, "layers")); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(fit, "*", "try-*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestWritableCgroupsOfV1 configures a handler with cgroup_writable where there is no cgroup v2.
func TestWritableCgroupsOfV1(t *testing.T) {
	if cgroup.Mode() == cgroup.V2 {
		t.Skip("this machine is on cgroup v2, where the key is fine")
	}
	cfg := place(t)
	refused(t, with(cfg, func(c *config.Config) {
		h := c.Runtimes.Handlers["none"]
		h.CgroupWritable = true
		c.Runtimes.Handlers = map[string]config.Handler{"none": h}
	}), "runtimes.none.cgroup_writable: needs cgroup v2, and this host is on ")
}

func TestSystemPath(t *testing.T) {
	const all = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for path, want := range map[string]string{
		"": all, all: all, "/usr/bin:/bin": "/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin",
		"/opt/bin:" + all: "/opt/bin:" + all,
	} {
		if got := withSystemPath(path); got != want {
			t.Errorf("%q became %q, wanted %q", path, got, want)
		}
	}
}
