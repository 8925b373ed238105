package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/op"
	"berth/internal/pod/identity"
	"berth/internal/sandbox"
)

// damaged is a pod whose record cannot be read. It keeps its name and its layers. Where its identity can be read it is
// listed as not ready, and can be stopped and removed.
type damaged struct {
	err      error
	identity *identity.Identity // what else is known of it; nil when that cannot be read either
	pod      *pod               // by what is known of it; nil without an identity
	mayLive  bool               // something was made for it in this boot
}

// what tells of the pod in words.
func (d damaged) what() string {
	if d.identity == nil {
		return d.err.Error() + "; nor can its identity be read: no image layer is removed that was there before this daemon"
	}
	i := d.identity
	return fmt.Sprintf("%v; it is pod %s/%s (uid %s, attempt %d), and can be stopped and removed", d.err, i.Namespace,
		i.Name, i.UID, i.Attempt)
}

// readDamaged finds out what is known of a pod whose record cannot be read.
func readDamaged(s *Pods, id sandbox.ID, why error) damaged {
	_, err := os.Lstat(s.cfg.Run(id))
	d := damaged{err: why, mayLive: err == nil}
	known, err := identity.Read(identityPath(&s.cfg, id))
	if err != nil {
		s.cfg.Log.Error("the pod's identity cannot be read either: no image layer that is there now is removed before it "+
			"is mended", "pod", id, "error", err)
		return d
	}
	d.identity = &known
	r, err := recordOf(s, id, d)
	if err != nil {
		s.cfg.Log.Error("a pod cannot be described by its identity", "pod", id, "error", err)
		return d
	}
	d.pod = s.makePod(r, false)
	return d
}

// recordOf is a record of what is known of a pod without its own: enough to take it down, since what was made for it
// has names that derive from its id.
func recordOf(s *Pods, id sandbox.ID, d damaged) (*sandbox.Record, error) {
	i := d.identity
	options := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if there(s.cfg.RunContainer(id, id)) {
		options.Pid = runtimeapi.NamespaceMode_POD // it has an init
	}
	if there(sandbox.UserNSPin(&s.cfg.Layout, id)) {
		options.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD}
	}
	m, err := sandbox.NewPodConfig(&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: i.Name, Namespace: i.Namespace, Uid: i.UID, Attempt: i.Attempt},
		Labels:   kubeletLabels(i, ""),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: options},
		},
	})
	r := &sandbox.Record{
		ID: id, State: sandbox.Stopping, CreatedAt: i.Created, Handler: i.Handler, Digest: unknown, Config: m,
	}
	if d.mayLive {
		r.Boot = s.cfg.Boot
	}
	if r.CreatedAt.IsZero() { // the identity is of an earlier release: the pod was made before this
		if info, err := os.Stat(s.cfg.Pod(id)); err == nil {
			r.CreatedAt = info.ModTime()
		}
	}
	return r, err
}

// kubeletLabels are the labels by which kubelets find the pod of a sandbox or container.
func kubeletLabels(i *identity.Identity, container string) map[string]string {
	labels := map[string]string{
		"io.kubernetes.pod.name": i.Name, "io.kubernetes.pod.namespace": i.Namespace, "io.kubernetes.pod.uid": i.UID,
	}
	if container != "" {
		labels["io.kubernetes.container.name"] = container
	}
	return labels
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// unknown stands for what nothing but the record has said. It is not empty where a kubelet's client takes a status
// without that field for wrong, such as the image of a container.
const unknown = "unknown"

// addContainers adds the containers for which there are directories. That one of them runs is what its monitor knows.
func (d damaged) addContainers(s *Pods, r *sandbox.Record) error {
	for _, id := range directoriesOf(s, r.ID) {
		name := "unknown-" + string(id[:12])
		m, err := sandbox.NewContainerConfig(&runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Labels: kubeletLabels(d.identity, name),
			Image: &runtimeapi.ImageSpec{Image: unknown},
		})
		if err != nil {
			return err
		}
		r.Containers = append(r.Containers, &sandbox.Container{
			ID: id, State: sandbox.Running, CreatedAt: r.CreatedAt, StartedAt: r.CreatedAt, Digest: unknown, ImageRef: unknown,
			Config: m, Layers: d.identity.Layers, StopSignal: int(syscall.SIGTERM), Cgroup: s.bundle.Cgroup(r, id),
		})
	}
	return nil
}

// directoriesOf are the containers of a pod that have a directory.
func directoriesOf(s *Pods, pod sandbox.ID) (all []sandbox.ID) {
	for _, dir := range []string{filepath.Join(s.cfg.Pod(pod), "c"), filepath.Join(s.cfg.Run(pod), "c")} {
		entries, _ := os.ReadDir(dir) // what cannot be listed is found by a later Stop, which fails meanwhile
		for _, e := range entries {
			if id := sandbox.ID(e.Name()); id.Valid() && id != pod && !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	return all
}

// findToEnd returns the pod with that id, for stopping or removing it. A damaged one is taken in for that: by its
// record, where that can be read by now, or else by what is known without.
func findToEnd(s *Pods, id sandbox.ID) (*pod, error) {
	if d, ok := s.Catalog.index.Load().damaged[id]; ok {
		if d.pod == nil {
			return nil, fail.New(errdefs.ErrUnavailable, "pod %s: %s: mend its record and restart the daemon", id, d.what())
		}
		r, err := readRecord(&s.cfg, id, false)
		switch {
		case err == nil:
		case lacking(err):
			return nil, fail.New(errdefs.ErrUnavailable, "pod %s: its record cannot be read for the moment: ask again: %w", id,
				err)
		default:
			r = nil
		}
		if err := takeIn(s, id, r); err != nil {
			return nil, err
		}
	}
	return s.Catalog.find(id)
}

// intake takes damaged pods in, one at a time.
type intake struct{ mu sync.Mutex } // held during it; the catalog's may be locked below it

// takeIn has a damaged pod be one like others: by r, its record, which was read by now, or, where that is nil, by what
// is known without. Then the record that cannot be read is put aside, and is removed with the pod. Where another has
// taken it in meanwhile, it is left as it is: the record on the disk is that one's. Nor is anything changed with an
// error.
func takeIn(s *Pods, id sandbox.ID, r *sandbox.Record) error {
	s.intake.mu.Lock()
	defer s.intake.mu.Unlock()
	d, still := s.Catalog.index.Load().damaged[id]
	if !still {
		return nil
	}
	if r == nil {
		r = d.pod.record().Clone()
		if err := d.addContainers(s, r); err != nil {
			return err
		}
		err := os.Rename(s.cfg.Record(id), putAside(&s.cfg, id))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("put the damaged record of pod %s aside: %w", id, err)
		}
	}
	p := s.makePod(r, false)
	s.Catalog.reindex(func(x *index) {
		delete(x.damaged, id)
		enlist(x, p, r)
	})
	s.cfg.Log.Warn("a pod whose record could not be read is taken in", "pod", id, "state", r.State, "was", d.err)
	readExits(p)
	s.worker.background(func(ctx context.Context) {
		_ = p.lane.Do(s.worker.ctx, ctx, op.Op{Kind: opAdopt, Run: func(ctx context.Context) error { return adopt(ctx, p) }})
		resume(ctx, p)
	})
	return nil
}

// putAside is where the record of a damaged pod that was taken in without it is.
func putAside(cfg *Config, id sandbox.ID) string { return cfg.Record(id) + ".damaged" }

// retryDamaged tries again to read a record that a passing error kept from being read.
func retryDamaged(s *Pods, id sandbox.ID, d damaged) {
	if !passing(d.err) {
		return
	}
	s.worker.retry(func() error {
		if _, still := s.Catalog.index.Load().damaged[id]; !still {
			return nil
		}
		r, err := readRecord(&s.cfg, id, false)
		if err != nil {
			return err
		}
		return takeIn(s, id, r)
	})
}

// passing says that an error is the node's, and may be gone in a moment.
func passing(err error) bool { return lacking(err) || errors.Is(err, syscall.EIO) }

// lacking says that the node lacks something for a while. It is not so of an I/O error, which may also stay for good: a
// pod must be able to end all the same.
func lacking(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(sandbox.PassingErrnos, errno)
}

// checkDamaged refuses to make a pod of the namespace and name of a damaged one, whose processes may run.
func (x *index) checkDamaged(m *runtimeapi.PodSandboxMetadata) error {
	for id, d := range x.damaged {
		if i := d.identity; i != nil && i.Name == m.GetName() && i.Namespace == m.GetNamespace() {
			why := fail.New(errdefs.ErrUnavailable,
				"pod %s of this name may run, and its record cannot be read: stop and remove that one first, or mend the "+
					"record and restart the daemon: %w", id, d.err)
			return fail.About(fail.Detail{Pod: string(id)}, "pod %s/%s: %w", i.Namespace, i.Name, why)
		}
	}
	return nil
}

// Nameless is how many pods there may be that live and whose names are unknown: any of them could be made twice.
func Nameless(s *Pods) (n int) {
	for _, d := range s.Catalog.index.Load().damaged {
		if d.identity == nil && d.mayLive {
			n++
		}
	}
	return n
}
