package attempt

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// recorder is a runtime that notes what it is asked for, and fails where a test wants it to.
type recorder struct {
	calls []string
	fail  string
}

func (r *recorder) call(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	r.calls = append(r.calls, text)
	if r.fail != "" && strings.HasPrefix(text, r.fail) {
		return errors.New("no")
	}
	return nil
}

func (r *recorder) RunPod(_ context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	id := fmt.Sprintf("%s/%d", cfg.Metadata.Name, cfg.Metadata.Attempt)
	return id, r.call("run %s %s", id, handler)
}

func (r *recorder) Create(
	_ context.Context, pod string, c *runtimeapi.ContainerConfig, cfg *runtimeapi.PodSandboxConfig,
) (string, error) {
	id := fmt.Sprintf("%s/%d", c.Metadata.Name, c.Metadata.Attempt)
	return id, r.call("create %s in %s, log %s/%s", id, pod, cfg.LogDirectory, c.LogPath)
}

func (r *recorder) Start(_ context.Context, id string) error     { return r.call("start %s", id) }
func (r *recorder) RemovePod(_ context.Context, id string) error { return r.call("remove pod %s", id) }
func (r *recorder) RemoveContainer(_ context.Context, id string) error {
	return r.call("remove %s", id)
}

func ctr(name string, attempt uint32, live bool) Container {
	log := name + ".log"
	if attempt > 0 {
		log = fmt.Sprintf("%s_%d.log", name, attempt)
	}
	state := runtimeapi.ContainerState_CONTAINER_EXITED
	if live {
		state = runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	return Container{ID: fmt.Sprintf("%s/%d", name, attempt), Pod: "p/4", State: state,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt}, LogPath: log,
		}}
}

// elsewhere is a container of an older sandbox, created one that nobody came to start.
func elsewhere(c Container) Container { c.Pod = "p/3"; return c }
func earlier(c Container) Container {
	c.Config.LogPath = strings.ReplaceAll(c.Config.LogPath, "_", ".")
	return c
}
func created(c Container) Container { c.State = runtimeapi.ContainerState_CONTAINER_CREATED; return c }

func TestStart(t *testing.T) {
	for name, c := range map[string]struct {
		ready  bool
		all    []Container
		fail   string
		want   []string
		starts int
		err    string
	}{
		"one that has ended": {true, []Container{ctr("a", 0, false)}, "",
			[]string{"create a/1 in p/4, log /l/a_1.log", "start a/1"}, 1, ""},
		"older attempts go, the last stays": {true, []Container{ctr("a", 3, false), ctr("a", 2, false), ctr("a", 1, false)},
			"",
			[]string{"create a/4 in p/4, log /l/a_4.log", "start a/4", "remove a/2", "remove a/1"}, 1, ""},
		"logs as earlier releases called them": {true, []Container{earlier(ctr("a", 3, false))}, "",
			[]string{"create a/4 in p/4, log /l/a_4.log", "start a/4"}, 1, ""},
		"names that end as logs did": {true, []Container{ctr("a.1", 0, false), ctr("a", 0, false), ctr("a.0", 0, false)}, "",
			[]string{"create a.1/1 in p/4, log /l/a.1_1.log", "start a.1/1", "create a/1 in p/4, log /l/a_1.log", "start a/1",
				"create a.0/1 in p/4, log /l/a.0_1.log", "start a.0/1"}, 3, ""},
		"what runs is left alone": {true, []Container{ctr("a", 1, true), ctr("b", 0, false), ctr("a", 0, false)}, "",
			[]string{"create b/1 in p/4, log /l/b_1.log", "start b/1"}, 1, ""},
		"all run": {true, []Container{ctr("a", 0, true)}, "", nil, 0, ""},
		"a pod that was stopped": {false, []Container{ctr("a", 1, false), ctr("a", 0, false), ctr("b", 0, false)}, "",
			[]string{"run p/5 fast", "create a/2 in p/5, log /l/a_2.log", "start a/2", "create b/1 in p/5, log /l/b_1.log",
				"start b/1", "remove pod p/4"}, 2, ""},
		"a pod that cannot be run": {false, []Container{ctr("a", 0, false)}, "run", []string{"run p/5 fast"}, 0,
			"run the pod"},
		"one that cannot be started keeps the old pod": {false, []Container{ctr("a", 0, false), ctr("b", 0, false)},
			"start a",
			[]string{"run p/5 fast", "create a/1 in p/5, log /l/a_1.log", "start a/1", "create b/1 in p/5, log /l/b_1.log",
				"start b/1"}, 1, "start container a anew: no"},
		"attempts that cannot be started do not pile up": {true, []Container{ctr("a", 2, false), ctr("a", 1, false)}, "start",
			[]string{"create a/3 in p/4, log /l/a_3.log", "start a/3", "remove a/1"}, 0, "start container a anew: no"},
		"one that cannot be made": {true, []Container{ctr("a", 2, false), ctr("a", 1, false)}, "create",
			[]string{"create a/3 in p/4, log /l/a_3.log"}, 0, "start container a anew: no"},
		"one that was made and not started": {true, []Container{created(ctr("a", 1, false)), ctr("a", 0, false)}, "",
			[]string{"start a/1"}, 1, ""},
		"one of the sandbox before": {true, []Container{ctr("b", 1, true), elsewhere(ctr("a", 0, true))}, "",
			[]string{"create a/1 in p/4, log /l/a_1.log", "start a/1", "remove pod p/3"}, 1, ""},
		"what is not wanted": {true, []Container{ctr("not", 0, false)}, "", nil, 0, ""},
	} {
		rt := &recorder{fail: c.fail}
		older := map[bool][]string{true: {"p/3"}}[name == "one of the sandbox before"]
		p := Pod{ID: "p/4", Older: older, Handler: "fast", Ready: c.ready, Containers: c.all,
			Config: &runtimeapi.PodSandboxConfig{
				Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Attempt: 4}, LogDirectory: "/l",
			}}
		started, err := Start(t.Context(), rt, p, func(c Container) bool { return c.Name() != "not" })
		if !reflect.DeepEqual(rt.calls, c.want) || len(started) != c.starts || (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %q, %v, want %q", name, started, rt.calls, err, c.want)
		}
		if p.Config.Metadata.Attempt != 4 {
			t.Errorf("%s: the pod's request was changed", name)
		}
	}
}
