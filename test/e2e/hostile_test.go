package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// deepVolumes are as many volumes as an image config holds, each of them 1,950 directories deep.
func deepVolumes() []string {
	out := make([]string, 240)
	for i := range out {
		out[i] = fmt.Sprintf("/hostile%d", i) + strings.Repeat("/d", 1950)
	}
	return out
}

// TestPodGoesDuringHostileCreate stops and removes a pod while a container of it is made from an image that declares
// 468,000 directories as volumes. The removal ends the work in the middle: it does not wait for the last volume.
func TestPodGoesDuringHostileCreate(t *testing.T) {
	each(t, func(r rig) {
		volumes := deepVolumes()
		image := r.hostile("volumes", nil, volumes...)
		for name, edits := range map[string][]func(*v1.PodSandboxConfig){"plain": nil, "userns": {inUserns}} {
			r.sub(name, func(r rig) {
				p := r.pod(edits...)
				created := make(chan error, 1)
				go func() {
					config := p.as(node.Container("main", image, []string{"sleep", "1000"}))
					_, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
					created <- err
				}()
				made := func() int {
					dirs, err := filepath.Glob(filepath.Join(r.n.Root, "pods", p.id, "*", "*", "upper", "hostile*"))
					r.ok(err)
					return len(dirs)
				}
				r.eventually("the volumes are being made", func() bool { return made() > 0 })
				stop := watchMost(made)
				began := time.Now()
				r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
				stopped := time.Since(began)
				r.ok(r.n.Runtime.RemovePodSandbox(ctx(), p.id))
				t.Logf("stopped after %v, removed after %v", stopped, time.Since(began))
				if most := stop(); most >= len(volumes)/2 {
					r.Errorf("%d of %d volumes were made before the pod was gone", most, len(volumes))
				}
				if err := <-created; err == nil {
					r.Error("the container was created in a pod that is gone")
				} else {
					r.wantCode(err, codes.Aborted)
				}
				if _, err := os.Stat(filepath.Join(r.n.Root, "pods", p.id)); !os.IsNotExist(err) {
					r.Errorf("the pod's directory is left: %v", err)
				}
			})
		}
	})
}

// watchMost calls f again and again until the function that it returns is called, which tells the greatest value.
func watchMost(f func() int) (stop func() int) {
	var most, over atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for over.Load() == 0 {
			most.Store(max(most.Load(), int64(f())))
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return func() int {
		over.Store(1)
		<-done
		return int(most.Load())
	}
}
