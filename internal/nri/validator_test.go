package nri

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	validator "github.com/containerd/nri/plugins/default-validator"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/sandbox"
)

// annotated is a pod with a container that is about to be made.
func annotated(t *testing.T, annotations map[string]string) (*sandbox.Record, *sandbox.Container) {
	t.Helper()
	r, c := life(t)
	cfg, err := sandbox.NewPodConfig(&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "n", Uid: "u"}, Annotations: annotations,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Config, c.State = cfg, sandbox.Creating
	return r, c
}

// TestRequiredPlugins wants no container made without the plugins that the node or its pod requires, whether they have
// not come yet, have gone, or could not come because NRI is off.
func TestRequiredPlugins(t *testing.T) {
	const tolerates = "example.com/tolerate"
	required := func(c *Config) {
		c.Validator = &validator.DefaultValidatorConfig{
			Enable: true, RequiredPlugins: []string{"policy"}, TolerateMissingAnnotation: tolerates,
		}
	}
	create := func(t *testing.T, p *Plugins, annotations map[string]string) error {
		t.Helper()
		r, c := annotated(t, annotations)
		defer holdOff(t, p)()
		sp := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
		_, err := p.Adjust(t.Context(), r, c, sp)
		return err
	}
	refused := func(t *testing.T, p *Plugins, annotations map[string]string, name string) {
		t.Helper()
		if err := create(t, p, annotations); err == nil || !strings.Contains(err.Error(), `"`+name+`" not present`) {
			t.Errorf("without the plugin %s: %v", name, err)
		}
	}
	problem := func(p *Plugins) bool {
		return slices.ContainsFunc(p.Status().Problems, func(s string) bool { return strings.Contains(s, "plugin policy") })
	}
	t.Run("it comes and goes", func(t *testing.T) {
		p := openPlugins(t, required)
		if s := p.Status(); s.Plugins != 0 || len(s.Names) > 0 || !problem(p) {
			t.Errorf("status %+v", s)
		}
		refused(t, p, nil, "policy")
		if err := create(t, p, map[string]string{tolerates: "true"}); err != nil {
			t.Errorf("a pod that does without: %v", err)
		}
		w := &witness{}
		takePart(t, p, "10", "policy", w)
		if err := create(t, p, nil); err != nil || problem(p) || !slices.Equal(p.Status().Names, []string{"10-policy"}) {
			t.Errorf("with the plugin: %v, %+v", err, p.Status())
		}
		refused(t, p, map[string]string{"required-plugins.noderesource.dev/pod": `["signer"]`}, "signer")
		w.stub.Stop()
		eventually(t, "no container is made without it again", func() bool { return create(t, p, nil) != nil })
		refused(t, p, nil, "policy")
	})
	t.Run("it dies beside another", func(t *testing.T) {
		p, w := openPlugins(t, required), &witness{}
		takePart(t, p, "10", "policy", w)
		takePart(t, p, "20", "other", &witness{})
		if names := p.Status().Names; !slices.Equal(names, []string{"10-policy", "20-other"}) || problem(p) {
			t.Errorf("with both: %+v", p.Status())
		}
		w.stub.Stop()
		eventually(t, "no container is made without it", func() bool { return create(t, p, nil) != nil })
		if names := p.Status().Names; !slices.Equal(names, []string{"20-other"}) || !problem(p) {
			t.Errorf("with the other: %+v", p.Status())
		}
		takePart(t, p, "10", "policy", &witness{})
		if err := create(t, p, nil); err != nil || problem(p) || len(p.Status().Names) != 2 {
			t.Errorf("when it is back: %v, %+v", err, p.Status())
		}
	})
	t.Run("it is required with its index", func(t *testing.T) {
		p := openPlugins(t, func(c *Config) {
			required(c)
			c.Validator.RequiredPlugins = []string{"10-policy"}
		})
		refused(t, p, nil, "10-policy")
		takePart(t, p, "20", "policy", &witness{})
		refused(t, p, nil, "10-policy")
		if s := p.Status().Problems; len(s) != 1 || !strings.Contains(s[0], "plugin 10-policy") {
			t.Errorf("with another index: %q", s)
		}
		takePart(t, p, "10", "policy", &witness{})
		if err := create(t, p, nil); err != nil || len(p.Status().Problems) > 0 {
			t.Errorf("with the plugin: %v, %+v", err, p.Status())
		}
	})
	t.Run("NRI is off", func(t *testing.T) {
		p := New(Config{})
		required(&p.cfg)
		other := openPlugins(t, nil)
		p.cfg.Socket, p.cfg.Instance, p.cfg.Log = other.cfg.Socket, "second", other.cfg.Log
		if err := p.Start(other.pods); err == nil {
			t.Fatal("it has taken another's socket")
		}
		refused(t, p, nil, "policy")
		if !problem(p) {
			t.Errorf("status %+v", p.Status())
		}
	})
	t.Run("nothing is required", func(t *testing.T) {
		p := openPlugins(t, nil)
		annotation := map[string]string{"required-plugins.noderesource.dev": `["signer"]`}
		if err := create(t, p, annotation); err != nil {
			t.Errorf("without a validator: %v", err)
		}
	})
}

// changer is a plugin that replaces the filter of each container.
type changer struct{ witness }

func (*changer) CreateContainer(
	context.Context, *api.PodSandbox, *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a := &api.ContainerAdjustment{}
	a.SetLinuxSeccompPolicy(&api.LinuxSeccomp{DefaultAction: "SCMP_ACT_ALLOW"})
	return a, nil, nil
}

// TestRefusedAdjustments wants the filter of RuntimeDefault kept from plugins, and one of other containers not.
func TestRefusedAdjustments(t *testing.T) {
	p := openPlugins(t, func(c *Config) {
		c.Validator = &validator.DefaultValidatorConfig{Enable: true, RejectRuntimeDefaultSeccompAdjustment: true}
	})
	s, err := stub.New(&changer{}, stub.WithPluginIdx("10"), stub.WithPluginName("changer"),
		stub.WithSocketPath(p.cfg.Socket), stub.WithOnClose(func() {}))
	if err == nil {
		err = s.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	eventually(t, "the plugin takes part", func() bool { return p.Status().Plugins == 1 })
	for kind, refused := range map[runtimeapi.SecurityProfile_ProfileType]bool{
		runtimeapi.SecurityProfile_RuntimeDefault: true, runtimeapi.SecurityProfile_Unconfined: false,
	} {
		r, c := annotated(t, nil)
		c.Config, err = sandbox.NewContainerConfig(&runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Linux: &runtimeapi.LinuxContainerConfig{
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					Seccomp: &runtimeapi.SecurityProfile{ProfileType: kind},
				},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		sp := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
		_, err := p.Adjust(t.Context(), r, c, sp)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "10-changer") {
			t.Errorf("%s: %v", kind, err)
		}
		if refused == (sp.Linux.Seccomp != nil) {
			t.Errorf("%s: the filter is %v", kind, sp.Linux.Seccomp)
		}
	}
}
