package pod

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/sandbox"
)

// fill puts a value of its own into every string of m and of all messages below it.
func fill(m protoreflect.Message, depth int, planted map[string]protoreflect.FieldDescriptor) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		value := func(of protoreflect.FieldDescriptor, fresh protoreflect.Value) (protoreflect.Value, bool) {
			switch of.Kind() {
			case protoreflect.StringKind, protoreflect.BytesKind:
				secret := fmt.Sprintf("--%s=pl\"anted-%d", f.Name(), len(planted))
				planted[secret] = f
				if of.Kind() == protoreflect.BytesKind {
					return protoreflect.ValueOfBytes([]byte(secret)), true
				}
				return protoreflect.ValueOfString(secret), true
			case protoreflect.MessageKind:
				if depth == 0 {
					return fresh, false
				}
				fill(fresh.Message(), depth-1, planted)
				return fresh, true
			}
			return fresh, false
		}
		switch {
		case f.IsMap():
			all := m.Mutable(f).Map()
			if v, ok := value(f.MapValue(), all.NewValue()); ok && f.MapKey().Kind() == protoreflect.StringKind {
				all.Set(protoreflect.ValueOfString("a.key").MapKey(), v)
			}
		case f.IsList():
			all := m.Mutable(f).List()
			if v, ok := value(f, all.NewElement()); ok {
				all.Append(v)
			}
		default:
			if v, ok := value(f, m.NewField(f)); ok {
				m.Set(f, v)
			}
		}
	}
}

// TestSituationsHideWhatPodsHold plants a value in every field of a pod's and a container's configuration, has an
// error quote all of them, and looks for them in what is told.
func TestSituationsHideWhatPodsHold(t *testing.T) {
	planted := map[string]protoreflect.FieldDescriptor{}
	podCfg, ctrCfg := &runtimeapi.PodSandboxConfig{}, &runtimeapi.ContainerConfig{}
	fill(podCfg.ProtoReflect(), 6, planted)
	fill(ctrCfg.ProtoReflect(), 6, planted)
	long := "-----BEGIN KEY-----\nfirst+line/of+a/key\nsecond+line/of+a/key\n-----END KEY-----"
	ctrCfg.Envs = append(ctrCfg.Envs, &runtimeapi.KeyValue{Key: "KEY", Value: []byte(long)})
	pm, err := sandbox.NewPodConfig(podCfg)
	if err != nil {
		t.Fatal(err)
	}
	cm, err := sandbox.NewContainerConfig(ctrCfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &sandbox.Record{Config: pm, Containers: []*sandbox.Container{{Config: cm}}}
	text := "create: "
	for secret := range planted {
		_, half, _ := strings.Cut(secret, "=")
		text += fmt.Sprintf("%s %q (%s) ", secret, secret, half)
	}
	text += "at line second+line/of+a/key of " + fmt.Sprintf("%q", long) + " in the mount namespace"
	got := hide(text, r)
	shown, hiddenOnes := 0, 0
	for secret, f := range planted {
		_, half, _ := strings.Cut(secret, "=")
		told := strings.Contains(got, half) || strings.Contains(got, strings.ReplaceAll(half, `"`, `\"`))
		harmless := shownFields[f.Name()] || shownMessages[f.Parent().Name()]
		switch {
		case told && !harmless:
			t.Errorf("the value of %s is told", f.FullName())
		case !told && harmless:
			t.Errorf("the value of %s is not told", f.FullName())
		case told:
			shown++
		default:
			hiddenOnes++
		}
	}
	if shown < 10 || hiddenOnes < 20 {
		t.Errorf("%d values are shown, %d hidden: were all planted?", shown, hiddenOnes)
	}
	if strings.Contains(got, "line/of") || !strings.Contains(got, "in the mount namespace") {
		t.Errorf("got %s", got)
	}
}

// TestSituationsTellOfWhatHangs has a network plugin hang while a pod is made, and an undo fail, while somebody holds
// the lock of the pod's record, as a disk that hangs does.
func TestSituationsTellOfWhatHangs(t *testing.T) {
	b := open(t)
	idle, err := b.Run(t.Context(), podConfig("idle"), "")
	if err != nil {
		t.Fatal(err)
	}
	cfg := podConfig("stuck")
	cfg.Annotations = map[string]string{"vault": "hunter2-of-the-pod"}
	stuck, err := b.Run(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	b.net.failDel(errors.New("the plugin says hunter2-of-the-pod"))
	defer b.net.failDel(nil)
	if err := b.Stop(t.Context(), stuck); err == nil {
		t.Fatal("the stop succeeded")
	}
	hold := make(chan struct{})
	b.net.mu.Lock()
	b.net.hold = hold
	b.net.mu.Unlock()
	ended := make(chan error, 1)
	go func() {
		_, err := b.Run(t.Context(), podConfig("hangs"), "")
		ended <- err
	}()
	find := func(name string) Situation {
		all := Situations(b.Pods)
		i := slices.IndexFunc(all, func(s Situation) bool { return s.Name == "default/"+name })
		if i < 0 {
			return Situation{}
		}
		return all[i]
	}
	wait(t, "the step that hangs", func() bool { return find("hangs").Step == "pod: network" })
	held := b.Pods.Catalog.index.Load().pods
	for _, p := range held {
		p.mu.Lock()
	}
	if s := find("hangs"); s.Operation != opCreate || s.Since.IsZero() || s.StepSince.Before(s.Since) || s.Callers != 1 ||
		s.State != string(sandbox.Creating) {
		t.Errorf("of the pod that hangs it is said %+v", s)
	}
	if s := find("stuck"); !strings.Contains(s.Failed, "undo step network: the plugin says [hidden]") || s.Tries < 1 ||
		s.FailedSince.IsZero() {
		t.Errorf("of the pod that is stuck it is said %+v", s)
	}
	if s := find("idle"); !s.Idle() || s.Pod != string(idle) || s.State != string(sandbox.Ready) {
		t.Errorf("of the pod that waits for nothing it is said %+v", s)
	}
	if all := Situations(b.Pods); all[len(all)-1].Name != "default/idle" {
		t.Errorf("what waits does not come first: %+v", all)
	}
	for _, p := range held {
		p.mu.Unlock()
	}
	close(hold)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
