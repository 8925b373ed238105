package spec

import (
	"reflect"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
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
