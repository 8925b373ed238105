// Package node is a whole Berth node for a test: a daemon with its own root, state, network configuration and
// registries, in a space of its own, and the kubelet's client to speak to it.
//
// Nodes do not see each other. Close removes what runs, stops the daemon and says what was left behind.
package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"

	"berth/test/fixture"
	"berth/test/hygiene"
	"berth/test/isolate"
	"berth/test/timeouts"
)

// The runtimes that tests know.
const (
	Runc = "runc"
	Crun = "crun"
)

// Options are what a test may choose. The zero value is a node with runc and a bridge network.
type Options struct {
	Runtime string   // Runc or Crun
	Cgroups string   // the cgroup driver; when empty, that of BERTH_TEST_CGROUP, or what the daemon chooses
	Fault   bool     // run the binaries whose fault points work
	Config  string   // TOML put before the first table of the daemon's configuration
	Tables  string   // TOML put after its last table
	Network string   // the CNI configuration list; Bridge when empty
	Plugins []string // folders with more CNI plugins
	NRI     bool     // let NRI plugins connect, which may take half a minute for each answer
	Reach   []string // addresses on the machine's loopback that are to be reached at the same address inside
	Starter []string // a command that becomes the daemon: the daemon's own command line follows it
	// Mount mounts something at the daemon's root, inside the node's space.
	Mount func(root string) error
	Setup []func() error // run inside the node's space, before anything else does
}

// Bridge is the network of a node: what a small cluster has, with a subnet that shows nowhere else.
const Bridge = `{"cniVersion":"1.0.0","name":"bt","plugins":[
 {"type":"bridge","bridge":"bt0","isGateway":true,"ipMasq":true,"hairpinMode":true,
  "ipam":{"type":"host-local","dataDir":"%[1]s","ranges":[[{"subnet":"10.88.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}`

// Node is a running node. Its folders all lie in Dir.
type Node struct {
	Dir, Root, State, Socket string
	Logs                     string // pods' log folders
	CNI, Leases              string // network configuration, and host-local's leases
	Certs                    string // certs.d
	Config                   string // the daemon's configuration file
	NRI                      string // the socket of NRI plugins
	Instance                 string // what names everything of this node on the machine
	Space                    *isolate.Space
	Runtime                  cri.RuntimeService
	Images                   cri.ImageManagerService

	options   Options
	bin       string
	clean     hygiene.Snapshot // how the space looked when nothing ran
	listeners []net.Listener
	daemon    *daemon
	mu        sync.Mutex // guards daemon and the two clients
}

var once sync.Once // for what a test process does before its first node

// Open makes a node and starts its daemon.
func Open(o Options) (*Node, error) {
	once.Do(func() {
		klog.SetLogger(klog.Logger{}) // the client logs what it also returns
		Sweep()
	})
	if o.Runtime == "" {
		o.Runtime = Runc
	}
	bin, err := Binaries(o.Fault)
	if err != nil {
		return nil, err
	}
	n := &Node{options: o, bin: bin}
	if err := n.prepare(); err != nil {
		return nil, errors.Join(err, n.discard())
	}
	if err := n.Start(); err != nil {
		return nil, errors.Join(err, n.discard())
	}
	return n, nil
}

func (n *Node) prepare() error {
	var err error
	if n.Dir, err = os.MkdirTemp("", "bt-"); err != nil {
		return err
	}
	// As below /run: who is root in a user namespace only passes through.
	if err := os.Chmod(n.Dir, 0o711); err != nil {
		return err
	}
	n.Root, n.State, n.Socket = n.Dir+"/root", n.Dir+"/run", n.Dir+"/berth.sock"
	n.Logs, n.CNI, n.Leases = n.Dir+"/logs", n.Dir+"/net.d", n.Dir+"/leases"
	n.Certs, n.Config = n.Dir+"/certs.d", n.Dir+"/config.toml"
	n.NRI, n.Instance = n.Dir+"/nri.sock", instance(n.Root)
	for _, dir := range []string{n.Root, n.State, n.Logs, n.CNI, n.Certs} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := errors.Join(writeOwner(n.Dir), writeConfig(n)); err != nil {
		return err
	}
	return makeSpace(n)
}

// instance is the name that a daemon derives from its root: berth for the default one.
func instance(root string) string {
	sum := sha256.Sum256([]byte(root))
	return "berth-" + hex.EncodeToString(sum[:])[:6]
}

func makeSpace(n *Node) error {
	var setup []func() error
	if n.options.Runtime == Crun {
		setup = append(setup, isolate.HideUnified)
	}
	setup = append(setup, n.options.Setup...)
	setup = append(setup, func() error { return restrict(n.State) })
	if mount := n.options.Mount; mount != nil {
		setup = append(setup, func() error { return mount(n.Root) })
	}
	var err error
	if n.Space, err = isolate.NewSpace(setup...); err != nil {
		return err
	}
	for _, addr := range n.options.Reach {
		l, err := n.Space.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("make %s reachable inside: %w", addr, err)
		}
		n.listeners = append(n.listeners, l)
		go fixture.Forward(l, addr)
	}
	n.clean, err = hygiene.Inside(n.Space)
	return err
}

// restrict mounts a directory on itself as Debian mounts /run: no program is started from it, and no device opened.
func restrict(dir string) error {
	const flags = unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV
	// It is shared, and not with the directory below it.
	for _, how := range []uintptr{unix.MS_BIND, unix.MS_PRIVATE, unix.MS_SHARED, unix.MS_BIND | unix.MS_REMOUNT | flags} {
		if err := unix.Mount(dir, dir, "", how, ""); err != nil {
			return fmt.Errorf("mount %s noexec: %w", dir, err)
		}
	}
	return nil
}

// writeConfig writes the daemon's configuration and the network's.
func writeConfig(n *Node) error {
	o := n.options
	if driver := o.cgroupDriver(); driver != "" {
		o.Config += fmt.Sprintf("\ncgroup_driver = %q\n", driver)
	}
	if o.NRI {
		o.Tables += fmt.Sprintf("\n[nri]\nenable = true\nsocket = %q\nplugin_dir = %q\nconfig_dir = %q\n"+
			"request_timeout = \"30s\"\nsynchronization_timeout = \"30s\"\n",
			n.NRI, n.Dir+"/nri.d", n.Dir+"/nri.conf")
	}
	path, err := exec.LookPath(o.Runtime)
	if err != nil {
		return fmt.Errorf("find the runtime: %w", err)
	}
	plugins, err := json.Marshal(append(o.Plugins, "/opt/cni/bin", "/usr/lib/cni")) // a list in TOML as well
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s\n[cni]\nconfig_dir = %q\nplugin_dirs = %s\n[registry]\nconfig_dir = %q\n"+
		"[runtimes]\ndefault = %q\n[runtimes.%s]\npath = %q\n%s\n",
		o.Config, n.CNI, plugins, n.Certs, o.Runtime, o.Runtime, path, o.Tables)
	network := o.Network
	if network == "" {
		network = Bridge
	}
	if strings.Contains(network, "%[1]s") {
		network = fmt.Sprintf(network, n.Leases)
	}
	return errors.Join(
		os.WriteFile(n.Config, []byte(text), 0o644),
		os.WriteFile(n.CNI+"/10-bt.conflist", []byte(network), 0o644),
	)
}

// Start starts the daemon, with more environment if given, and waits until it serves.
func (n *Node) Start(env ...string) error {
	d, err := launch(n, env)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.daemon = d
	n.mu.Unlock()
	return n.connect(d)
}

// connect waits for the daemon and makes fresh clients: the old ones would wait out their backoff.
func (n *Node) connect(d *daemon) error {
	deadline := time.Now().Add(timeouts.For(time.Minute))
	for {
		runtime, images, err := dial(n.Socket)
		if err == nil {
			n.disconnect()
			n.mu.Lock()
			n.Runtime, n.Images = runtime, images
			n.mu.Unlock()
			return nil
		}
		if d.ended() {
			return fmt.Errorf("the daemon ended: %s\n%s", d.state(), n.DaemonLog(20))
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the daemon does not serve: %w\n%s", err, n.DaemonLog(20))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// serves asks a daemon for its version, over a connection of its own: the kubelet's client keeps that of a daemon which
// did not answer, and hundreds of them come together while a slow one starts.
func serves(ctx context.Context, endpoint string) error {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	_, err = runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
	return errors.Join(err, conn.Close())
}

// dial makes clients for the daemon at socket. It does not wait for one.
func dial(socket string) (cri.RuntimeService, cri.ImageManagerService, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeouts.For(5*time.Second))
	defer cancel()
	endpoint := "unix://" + socket
	if err := serves(ctx, endpoint); err != nil {
		return nil, nil, err
	}
	runtime, err := remote.NewRemoteRuntimeServiceBuilder().WithEndpoint(endpoint).
		WithConnectionTimeout(timeouts.For(2 * time.Minute)).WithTracerProvider(nil).Build(ctx)
	if err != nil {
		return nil, nil, err
	}
	images, err := remote.NewRemoteImageServiceBuilder().WithEndpoint(endpoint).
		WithConnectionTimeout(timeouts.For(2 * time.Minute)).WithTracerProvider(nil).Build(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, runtime.Close(ctx))
	}
	return runtime, images, nil
}

func (n *Node) disconnect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.Runtime != nil {
		_ = n.Runtime.Close(context.Background())
		_ = n.Images.Close(context.Background())
		n.Runtime, n.Images = nil, nil
	}
}

// Kill9 kills the daemon as a crash would, and waits until it is gone.
func (n *Node) Kill9() error {
	if err := n.current().signal(syscall.SIGKILL); err != nil {
		return err
	}
	return n.Died(timeouts.For(30 * time.Second))
}

// Stop ends the daemon with SIGTERM, as systemd would. Pods go on. It is an error if the daemon does not exit with 0.
func (n *Node) Stop() error {
	d := n.current()
	if d == nil || d.ended() {
		return nil
	}
	if err := d.signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := n.Died(timeouts.For(30 * time.Second)); err != nil {
		return fmt.Errorf("SIGTERM: %w\n%s", err, n.DaemonLog(20))
	}
	if !d.succeeded() {
		return fmt.Errorf("after SIGTERM the daemon ended with %s\n%s", d.state(), n.DaemonLog(20))
	}
	return nil
}

// Died waits until the daemon has ended. It is an error if it has not within the timeout.
func (n *Node) Died(timeout time.Duration) error {
	d := n.current()
	if d.ended() {
		return nil
	}
	select {
	case <-d.done:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("the daemon still runs after %s", timeout)
	}
}

// Restart kills the daemon as a crash would, and starts it again.
func (n *Node) Restart() error {
	if err := n.Kill9(); err != nil {
		return err
	}
	return n.Start()
}

// Pid is the process id of the daemon.
func (n *Node) Pid() int { return n.current().cmd.Process.Pid }

func (n *Node) current() *daemon {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.daemon
}

// Get fetches a page from inside the node, so that it reaches pods by their address.
func (n *Node) Get(url string) (string, error) {
	client := &http.Client{
		Timeout:   timeouts.For(10 * time.Second),
		Transport: &http.Transport{DialContext: n.Space.DialContext, DisableKeepAlives: true},
	}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// Command is the berth command line for this node's daemon. Run it with Space.Run.
func (n *Node) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(n.bin, "berth"), args...)
	cmd.Env = append(os.Environ(), "BERTH_SOCKET="+n.Socket, "BERTH_CONFIG="+n.Config)
	return cmd
}
