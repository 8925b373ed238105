package e2e

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/remotecommand"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/volume"
)

// hostileWays are what hostile containers do, as /webapp hurt knows it. Clients attach to the first and run commands in
// the second, and read nothing.
var hostileWays = []string{"log", "descriptors", "run", "disk", "nest", "fork", "signals", "hosts", "hide"}

// neighbours are hostile containers that share a processor, each with as much of it as the others.
type neighbours struct {
	rig
	all []*ctr
}

// hostileNeighbours starts one of each. The node has limits of processes and of logs.
func (r rig) hostileNeighbours() *neighbours {
	r.Helper()
	n := &neighbours{rig: r}
	for _, way := range hostileWays {
		p := r.podOf("limited", func(c *v1.PodSandboxConfig) { c.Metadata.Name = "hostile-" + way })
		n.all = append(n.all, p.start(webapp("main", "hurt "+way, func(c *v1.ContainerConfig) {
			c.Linux.Resources = &v1.LinuxContainerResources{
				CpuPeriod: 100000, CpuQuota: int64(100000 / len(hostileWays)), CpuShares: 2, MemoryLimitInBytes: 128 << 20,
			}
		})))
	}
	return n
}

// deafReader takes nothing until its context ends.
type deafReader struct{ ctx context.Context }

func (d deafReader) Write([]byte) (int, error) {
	<-d.ctx.Done()
	return 0, io.ErrClosedPipe
}

// hold has clients keep so many sessions of each kind until the function that it returns is called: attached and in
// commands without reading, and connected without having asked for anything.
func (n *neighbours) hold(sessions int) (end func()) {
	n.Helper()
	for _, c := range n.all {
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
			n.Errorf("%s has ended: %s, code %d: %s", c.config.Metadata.Name, st.Reason, st.ExitCode, st.Message)
		}
	}
	far, cancel := context.WithCancel(ctx())
	var clients sync.WaitGroup
	for range sessions {
		attached, _ := n.reach(n.all[0].attachURL(&v1.AttachRequest{Stdout: true}))
		inside, _ := n.reach(n.all[1].execURL(&v1.ExecRequest{Cmd: []string{"yes"}, Stdout: true}))
		for _, address := range []string{attached, inside} {
			clients.Go(func() {
				_ = n.stream(far, "websocket-v5", address, remotecommand.StreamOptions{Stdout: deafReader{far}})
			})
		}
		unused := n.all[1].execURL(&v1.ExecRequest{Cmd: []string{"yes"}, Stdout: true})
		at, err := url.Parse(unused)
		n.ok(err)
		half, err := n.n.Space.DialContext(ctx(), "tcp", at.Host)
		n.ok(err)
		_, err = io.WriteString(half, "POST "+at.RequestURI()+" HTTP/1.1\r\nHost: x\r\n")
		n.ok(err)
		clients.Go(func() {
			<-far.Done()
			_ = half.Close()
		})
	}
	return sync.OnceFunc(func() { cancel(); clients.Wait() })
}

// evict ends containers that have written more than a pod may, as a kubelet does, until it is stopped.
func (n *neighbours) evict(most uint64) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			case <-time.After(500 * time.Millisecond):
			}
			for _, c := range n.all {
				s, err := n.n.Runtime.ContainerStats(ctx(), c.cid)
				if err == nil && s.GetWritableLayer().GetUsedBytes().GetValue() > most {
					_ = n.n.Runtime.StopContainer(ctx(), c.cid, 0)
				}
			}
		}
	}()
	return sync.OnceFunc(func() { close(over); <-done })
}

// gone stops and removes all at once, with a second of grace.
func (n *neighbours) gone() {
	n.Helper()
	began := time.Now()
	var all sync.WaitGroup
	for _, c := range n.all {
		all.Go(func() {
			if err := n.n.Runtime.StopContainer(ctx(), c.cid, 1); err != nil {
				n.Errorf("stop %s: %v", c.config.Metadata.Name, err)
			}
			c.remove()
		})
	}
	all.Wait()
	n.Logf("%d hostile containers were removed after %v", len(n.all), time.Since(began).Round(time.Millisecond))
}

// takes is what lies on the disk below a directory, file systems mounted there apart.
func takes(dir string) (bytes int64) {
	var top unix.Stat_t
	if unix.Lstat(dir, &top) != nil {
		return 0
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Dev != top.Dev {
			return fs.SkipDir
		}
		bytes += st.Blocks * 512
		return nil
	})
	return bytes
}

// logRate and logBurst are those of the handler "limited".
const logRate, logBurst = 100_000, 1 << 20

// TestHostileNeighbours has good pods beside hostile ones: all that is asked of them succeeds, nothing of the node is
// full, and the hostile ones can be removed and leave nothing.
func TestHostileNeighbours(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			program, err := exec.LookPath(runtime)
			if err != nil {
				t.Fatal(err)
			}
			v, err := volume.Make(t.TempDir(), volume.Ext4, 8<<10)
			if err != nil {
				t.Fatal(err)
			}
			r := ownNode(t, node.Options{
				Runtime: runtime, Mount: func(root string) error { return v.Mount(root) },
				Tables: fmt.Sprintf("[runtimes.limited]\npath = %q\npids_limit = 64\nlog_rate = %d\nlog_burst = %d\n",
					program, logRate, logBurst),
			})
			r.pull("busybox:latest")
			began := time.Now()
			n := r.hostileNeighbours()
			stopEvicting := n.evict(256 << 20)
			defer stopEvicting()
			release := n.hold(20)
			defer release()
			before := r.goodPod("before")
			for i := range 3 {
				g := r.goodPod(fmt.Sprint("beside-", i))
				for _, c := range []*ctr{before, g} {
					for page := range 5 {
						c.answers(fmt.Sprintf("/page-%d-%d", i, page))
					}
					c.exec("true")
				}
				r.ok(r.n.Runtime.StopContainer(ctx(), g.cid, 30))
				g.remove()
			}
			n.nothingFull(time.Since(began))
			release()
			stopEvicting()
			n.gone()
			before.remove()
			pods, err := r.n.Runtime.ListPodSandbox(ctx(), nil)
			r.ok(err)
			if len(pods) != 0 {
				r.Errorf("%d pods are left", len(pods))
			}
			if state := takes(r.n.State); state > 4<<20 {
				r.Errorf("%d bytes are left of the state", state)
			}
		})
	}
}

// goodPod runs a web server.
func (r rig) goodPod(name string) *ctr {
	r.Helper()
	c := r.podOf("limited", func(c *v1.PodSandboxConfig) { c.Metadata.Name = name }).start(webapp("main", "serve"))
	c.logged("listening")
	return c
}

// answers asks for a page, which is to come, and to stand in the log.
func (c *ctr) answers(path string) {
	c.Helper()
	text, err := c.n.Get("http://" + c.ip() + ":8080" + path)
	c.ok(err)
	if !strings.HasPrefix(text, "Hello from ") {
		c.Errorf("the answer is %q", text)
	}
	c.logged("GET " + path)
}

// nothingFull checks what is used of the disk, the logs and the state after some time beside hostile containers.
func (n *neighbours) nothingFull(after time.Duration) {
	n.Helper()
	var st unix.Statfs_t
	n.ok(n.n.Space.Do(func() error { return unix.Statfs(n.n.Root, &st) }))
	share := max(1-float64(st.Bfree)/float64(st.Blocks), 1-float64(st.Ffree)/float64(st.Files))
	logs, state := takes(n.n.Logs), takes(n.n.State)
	n.Logf("after %v: %.0f %% of the disk, %d KiB of logs, %d KiB of state", after.Round(time.Second), 100*share,
		logs>>10, state>>10)
	if share > 0.9 {
		n.Errorf("%.0f %% of the disk are used", 100*share)
	}
	if most := int64(len(n.all)+2) * int64(logBurst+logRate*after.Seconds()); logs > most {
		n.Errorf("the logs take %d bytes, wanted %d at most", logs, most)
	}
	if state > 16<<20 {
		n.Errorf("the state takes %d bytes", state)
	}
}
