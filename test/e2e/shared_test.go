package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// TestPodFilesAreBounded has a container write 16 MiB to each of the files that its pod gives it: they are full after
// little more than they had, so that the node's directory, which all pods share, is not.
func TestPodFilesAreBounded(t *testing.T) {
	const room = 1 << 20 // pod.etcRoom
	each(t, func(r rig) {
		for name, edits := range map[string][]func(*v1.PodSandboxConfig){"plain": nil, "userns": {inUserns}} {
			r.sub(name, func(r rig) {
				p := r.pod(edits...)
				const script = `for f in hostname hosts resolv.conf; do
 dd if=/dev/zero of=/etc/$f bs=64k count=256 2>&1 | grep -o 'No space left on device'
done`
				r.wantText("what dd says", p.output(busybox("writer", script, p.like())),
					"No space left on device\nNo space left on device\nNo space left on device")
				text := p.output(busybox("reader", "cat /etc/hostname /etc/hosts /etc/resolv.conf | wc -c", p.like()))
				total, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
				r.ok(err)
				if hosts, err := os.Stat("/etc/hosts"); err == nil && (total < room/2 || total > 2*room+hosts.Size()) {
					r.Errorf("the files have %d bytes, wanted about %d", total, room)
				}
				other := r.pod(slices.Concat(edits, []func(*v1.PodSandboxConfig){func(c *v1.PodSandboxConfig) {
					c.Metadata.Name, c.Hostname = c.Metadata.Name+"-other", "other"
				}})...)
				name := other.output(busybox("main", "cat /etc/hostname", other.like()))
				r.wantText("the name of another pod", name, "other")
			})
		}
	})
}

func annotated(name, value string) func(*v1.PodSandboxConfig) {
	return func(c *v1.PodSandboxConfig) {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[name] = value
	}
}

// TestHandlerLimits has what a handler says of /dev/shm and of ulimits reach its pods and containers.
func TestHandlerLimits(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(runtime)
			if err != nil {
				t.Fatal(err)
			}
			base := t.TempDir() + "/base.json"
			const limits = `{"ociVersion":"1.0.2","process":{"rlimits":[
 {"type":"RLIMIT_NOFILE","soft":77,"hard":88},{"type":"RLIMIT_CORE","soft":5,"hard":5}]}}`
			if err := os.WriteFile(base, []byte(limits), 0o644); err != nil {
				t.Fatal(err)
			}
			r := ownNode(t, node.Options{Runtime: runtime, Tables: fmt.Sprintf(`
[runtimes.limited]
path = %[1]q
base_spec = %[2]q
ulimits = ["nofile=50:60", "fsize=1048576"]
shm_size = 33554432
max_shm_size = 100663296
`, program, base)})
			r.pull("busybox:latest")
			r.sub("ulimits", func(r rig) {
				c := r.podOf("limited").start(busybox("main", "ulimit -Sn; ulimit -Hn; ulimit -f; sleep 1000"))
				c.logged("60\n")
				// fsize is in blocks of 512 bytes. The limit of the base that the handler does not name is left.
				r.wantText("limits of the container", c.exec("sh", "-c", "ulimit -Hn; ulimit -f"), "60\n2048")
				r.wantText("limits of its first process", c.text("stdout"), "50\n60\n2048")
				for _, l := range c.spec().RuntimeSpec.Process.Rlimits {
					if l.Type == "RLIMIT_CORE" && (l.Soft != 5 || l.Hard != 5) {
						r.Errorf("the limit of the base is %+v", l)
					}
				}
			})
			shm := func(p *pod) string { return p.output(busybox("df", "df -m /dev/shm | tail -1 | awk '{print $2}'")) }
			r.sub("shm", func(r rig) {
				for i, c := range []struct {
					handler, annotation, value, want string
				}{
					{"", "", "", "64"},
					{"limited", "", "", "32"},
					{"limited", "pod.berth/shm-size", "96Mi", "96"},
					{"", "pod.berth/shm-size", "200Mi", "200"},
					{"", "io.kubernetes.cri-o.ShmSize", "1Mi", "1"},
				} {
					edit := func(pc *v1.PodSandboxConfig) { pc.Metadata.Name = fmt.Sprint("shm-", i) }
					edits := []func(*v1.PodSandboxConfig){edit}
					if c.annotation != "" {
						edits = append(edits, annotated(c.annotation, c.value))
					}
					r.wantText(fmt.Sprint("size in MiB: ", c), shm(r.podOf(c.handler, edits...)), c.want)
				}
			})
			r.sub("refused", func(r rig) {
				for _, c := range []struct{ handler, value, word string }{
					{"limited", "97Mi", "max_shm_size"}, {"", "much", "quantity"}, {"", "0", "/dev/shm"}, {"", "-1", "quantity"},
					{"", "10E", "8 EiB"}, {"", "", "quantity"}, {"", "1e999999999", "quantity"},
				} {
					pod := r.n.Pod(unique(r.T), annotated("pod.berth/shm-size", c.value))
					_, err := r.n.Runtime.RunPodSandbox(ctx(), pod, c.handler)
					r.wantCode(err, codes.InvalidArgument, "pod.berth/shm-size", c.word)
				}
			})
		})
	}
}
