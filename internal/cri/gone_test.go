package cri

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/bundle"
	"berth/internal/cgroup"
	"berth/internal/cgroup/limits"
	"berth/internal/fail"
	"berth/internal/network"
	"berth/internal/pod"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// driver is a runtime that has nothing to do. It has lost itself when missing is set.
type driver struct {
	pod.Runtime
	missing *bool
}

func (driver) Launch(context.Context, string) error                                    { return nil }
func (driver) Shutdown(context.Context, string) error                                  { return nil }
func (driver) KillAll(context.Context, string, string) error                           { return nil }
func (driver) Start(context.Context, string, string, runtime.Log, time.Duration) error { return nil }
func (d driver) Delete(context.Context, string, string, runtime.Handler) error {
	if *d.missing {
		return errdefs.ErrNotFound
	}
	return nil
}
func (driver) Create(context.Context, string, runtime.Create) (runtime.Process, error) {
	return runtime.Process{PID: 1}, nil
}

// wires is a network to which nothing is attached.
type wires struct{ pod.Network }

func (wires) Attach(context.Context, network.Pod) (network.Result, error) {
	return network.Result{}, nil
}
func (wires) Detach(context.Context, network.Pod) error { return nil }
func (wires) Deadline() time.Duration                   { return time.Minute }

// openPods opens pods without anything on the host below them, whose runtime may lose itself.
func openPods(t *testing.T, missing *bool) *pod.Pods {
	t.Helper()
	dir := t.TempDir()
	cgroups := limits.Direct{Direct: cgroup.Direct{Instance: "berth-test"}}
	pods, err := pod.Open(pod.Config{
		Layout: sandbox.Layout{Root: dir + "/r", State: dir + "/s", Instance: "berth-test", NetNS: dir + "/netns"},
		Boot:   "boot", Runtime: driver{missing: missing}, Network: wires{}, Log: slog.New(slog.DiscardHandler),
		Dirty: func(string) {}, UserNS: func(string) error { return nil }, Cgroups: cgroups,
		Bundle: bundle.Builder{Init: "/bin/true", Cgroups: cgroups, Handlers: bundle.Handlers{
			Find: func(string) (runtime.Handler, error) { return runtime.Handler{Name: "runc"}, nil },
			Spec: func(string) (runtime.Handler, spec.Handler, error) {
				return runtime.Handler{Name: "runc"}, spec.Handler{}, nil
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/netns", 0o755); err != nil {
		t.Fatal(err)
	}
	return pods
}

// bare is a pod in the node's namespaces.
func bare(name string, pid runtimeapi.NamespaceMode) *runtimeapi.RunPodSandboxRequest {
	node := runtimeapi.NamespaceMode_NODE
	return &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "b", Uid: "c"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: node, Ipc: node, Pid: pid},
		}},
	}}
}

// A stop or a removal that fails because something it needs is not there is no success: only a pod that is not there is
// stopped and removed already.
func TestStopThatDoesNotFindWhatItNeedsFails(t *testing.T) {
	missing := false
	pods := openPods(t, &missing)
	s := &Server{Pods: pods, Catalog: &pods.Catalog}
	resp, err := s.RunPodSandbox(t.Context(), bare("a", runtimeapi.NamespaceMode_POD)) // with an init
	if err != nil {
		t.Fatal(err)
	}
	missing = true
	id := resp.PodSandboxId
	if _, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); !fail.Is(err,
		errdefs.ErrFailedPrecondition) {
		t.Errorf("StopPodSandbox answers %v", err)
	}
	if _, err := s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); !fail.Is(err,
		errdefs.ErrFailedPrecondition) {
		t.Errorf("RemovePodSandbox answers %v", err)
	}
	missing = false
	if _, err := s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Errorf("RemovePodSandbox with all that it needs: %v", err)
	}
	pods.Close() // no more tries
	for _, id := range []string{"", "0123"} {
		if _, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Errorf("a pod that is not there: %v", err)
		}
	}
}
