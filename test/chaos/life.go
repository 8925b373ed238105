package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// life is what one pod goes through, from the pull of its image to its removal.
type life struct {
	*client
	s      *stage
	random *rand.Rand
	image  string
	name   string
	config *cri.PodSandboxConfig
	id     string // of the pod, when it is there
}

func newLife(s *stage, random *rand.Rand, client, n int) *life {
	l := newLifeOf(s, fmt.Sprintf("pod-%d-%d", client, n))
	l.random = random
	l.image = s.images[client*imagesEach+random.IntN(imagesEach)]
	l.config.PortMappings = []*cri.PortMapping{{HostPort: int32(20000 + client), ContainerPort: 8080}}
	return l
}

// newLifeOf has the request for a pod as a kubelet makes it.
func newLifeOf(s *stage, name string) *life {
	l := &life{client: s.client, s: s, name: name}
	l.config = &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: l.name, Namespace: "chaos", Uid: "uid-" + l.name},
		Hostname:     l.name,
		LogDirectory: filepath.Join(s.logs, l.name),
		Labels:       map[string]string{"io.kubernetes.pod.name": l.name, "io.kubernetes.pod.uid": "uid-" + l.name},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: cgroupOf(s, l.name),
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
			},
		},
	}
	return l
}

// live goes through all of it. What is lost is counted; a pod with a request that is stuck is given up.
func (l *life) live() {
	err := l.run()
	if err == nil {
		err = l.containers()
	}
	if l.id != "" && !errors.Is(err, errStuck) {
		err = errors.Join(err, l.removePod(l.id))
	}
	if errors.Is(err, errStuck) {
		l.s.report.lose(Stuck, "%s (%s): %v", l.name, l.id, err)
		if l.s.Peer == Berth && l.id != "" {
			l.s.keep(filepath.Join(filepath.Dir(l.s.socket), "pods", l.id, "m.log"), filepath.Join(l.name, "m.log"))
		}
		return
	}
	if l.random.IntN(2) == 0 {
		err = l.repeat("remove image", func(ctx context.Context) error {
			_, err := l.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: l.image}})
			return err
		})
		if err != nil {
			l.s.report.lose(Stuck, "%s: %v", l.image, err)
		}
	}
	_ = os.RemoveAll(l.config.LogDirectory)
}

// run pulls the image and runs the pod.
func (l *life) run() error {
	if err := l.pull(); err != nil {
		return err
	}
	if err := os.MkdirAll(l.config.LogDirectory, 0o755); err != nil {
		return err
	}
	return l.repeat("run pod", func(ctx context.Context) error {
		resp, err := l.pods.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: l.config})
		l.id = resp.GetPodSandboxId()
		l.s.history.made(l.id, l.id)
		return err
	})
}

func (l *life) pull() error {
	return l.repeat("pull "+l.image, func(ctx context.Context) error {
		_, err := l.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: l.image}})
		return err
	})
}

// containers run one or two, one beside the other.
func (l *life) containers() error {
	var all []*container
	for i := range 1 + l.random.IntN(2) {
		all = append(all, l.choose(fmt.Sprintf("c%d", i)))
	}
	for _, c := range all {
		if err := c.start(); err != nil {
			return err
		}
	}
	for _, c := range all {
		if err := c.execs(); err != nil {
			return err
		}
	}
	if err := l.isReady(); err != nil {
		return err
	}
	for _, c := range all {
		if err := c.finish(); err != nil {
			return err
		}
	}
	return nil
}

// isReady wants the pod to be there and ready, for nobody has stopped it.
func (l *life) isReady() error {
	var state cri.PodSandboxState
	err := l.repeat("status of pod", func(ctx context.Context) error {
		resp, err := l.pods.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: l.id})
		state = resp.GetStatus().GetState()
		return definite(err)
	})
	if err == nil && state != cri.PodSandboxState_SANDBOX_READY {
		err = final{fmt.Errorf("it is %s", state)}
	}
	if errors.As(err, new(final)) {
		l.s.report.lose(LostPod, "pod %s (%s): %v", l.name, l.id, err)
		l.id = ""
	}
	return err
}

// definite makes NotFound an error that is not asked about again.
func definite(err error) error {
	if status.Code(err) == codes.NotFound {
		return final{err}
	}
	return err
}

// choose makes up a container, and what is to come of it.
func (l *life) choose(name string) *container {
	c := &container{l: l, name: name}
	code := 3 + l.random.IntN(100)
	switch l.random.IntN(5) {
	case 0: // many lines at once
		c.log = numbered{ends, 2000 + l.random.IntN(8000)}
		c.args, c.code = fmt.Sprintf("count 0s %d %d", c.log.most, code), int32(code)
	case 1: // a job of a second or so
		c.log = numbered{ends, 20 + l.random.IntN(80)}
		c.args, c.code = fmt.Sprintf("count 10ms %d %d", c.log.most, code), int32(code)
	case 2, 3: // a service that is stopped
		c.log, c.code, c.grace = numbered{how: obeys}, obedient, 60
		c.args = fmt.Sprintf("count %dms 1000000000 0", 1+l.random.IntN(20))
	case 4: // one that is killed
		c.log, c.code = numbered{how: isKilled}, 137
		c.args = fmt.Sprintf("count %dms 1000000000 0", 1+l.random.IntN(20))
	}
	return c
}

// obedient is the exit code of a container that ends at SIGTERM.
const obedient = 42

// isMark says whether an argument is the mark of a container.
func isMark(arg string) bool { return strings.HasPrefix(arg, "chaos=") }

// pause waits for a moment, so that strikes meet a pod that runs.
func (l *life) pause() { time.Sleep(time.Duration(l.random.IntN(300)) * time.Millisecond) }
