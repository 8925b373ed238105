package spec

import (
	"maps"
	"reflect"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
)

// TestDeviceRules puts the rules of a base among those of a container: the last that fits counts.
func TestDeviceRules(t *testing.T) {
	n := int64(7)
	rule := func(allow bool, kind string, major *int64, access string) specs.LinuxDeviceCgroup {
		return specs.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: major, Access: access}
	}
	none, all := rule(false, "", nil, "rwm"), rule(true, "", nil, "rwm")
	asked, more, less := rule(true, "c", &n, "rw"), rule(true, "b", &n, "r"), rule(false, "c", nil, "m")
	type rules = []specs.LinuxDeviceCgroup
	for name, c := range map[string]struct{ ours, base, want rules }{
		"no rules in the base": {rules{none, asked}, nil, rules{none, asked}},
		"what tools print":     {rules{none, asked}, rules{none}, rules{none, asked}},
		"what tools print, and more": {
			rules{none, asked}, rules{rule(false, "a", nil, "rwm"), more}, rules{none, more, asked}},
		"all is taken back":              {rules{none, asked}, rules{more, none}, rules{none, asked}},
		"a denial of some":               {rules{none, asked}, rules{more, less}, rules{none, more, less, asked}},
		"all are allowed":                {rules{none, asked}, rules{all}, rules{none, all, asked}},
		"a privileged container has all": {rules{all}, rules{none, less}, rules{all}},
	} {
		if got := deviceRules(c.ours, c.base); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v; wanted %+v", name, got, c.want)
		}
	}
}

// TestBaseLeavesTheRequest has a base, and what changes a spec afterwards, add to limits that the request names. The
// request is what a record keeps, and stays as it was.
func TestBaseLeavesTheRequest(t *testing.T) {
	base, err := ParseBase([]byte(`{"linux":{"resources":{"unified":{"memory.high":"50000000"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	in := testInput(t, sections{{"container",
		`{"linux":{"resources":{"unified":{"memory.oom.group":"1"}},"security_context":{"namespace_options":{"pid":"CONTAINER"}}}}`}})
	in.Host.CgroupV2, in.Handler.Base = true, base
	container, pod := proto.Clone(in.Container), proto.Clone(in.Pod)
	sp, _, err := Build(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"memory.oom.group": "1", "memory.high": "50000000"}
	if got := sp.Linux.Resources.Unified; !maps.Equal(got, want) {
		t.Errorf("the limits are %v, wanted %v", got, want)
	}
	sp.Linux.Resources.Unified["pids.max"] = "7"
	if !proto.Equal(in.Container, container) || !proto.Equal(in.Pod, pod) {
		t.Errorf("the request is now %v of %v, was %v of %v", in.Container, in.Pod, container, pod)
	}
	update, _, err := Resources(in.Container.Linux.Resources, in.Host)
	if err != nil {
		t.Fatal(err)
	}
	update.Unified["pids.max"] = "7"
	if !proto.Equal(in.Container, container) {
		t.Errorf("the request for an update is now %v", in.Container)
	}
}
