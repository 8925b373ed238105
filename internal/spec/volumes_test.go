package spec

import (
	"cmp"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestVolumesFirst has mounts added to a spec and all of them sorted by depth, as for CDI and NRI. Volumes come first
// as Build has them, but for those that an added mount covers.
func TestVolumesFirst(t *testing.T) {
	in := testInput(t, sections{{"container", `{"mounts":[{"container_path":"/data","host_path":"/x"}],` +
		`"linux":{"security_context":{"readonly_rootfs":true,"namespace_options":{"pid":"CONTAINER"}}}}`}})
	for _, v := range []string{"/var/lib/app", "/opt/vendor/cache", "/srv"} {
		in.Volumes = append(in.Volumes, Volume{Path: v, Source: "/root" + v})
	}
	sp, _, err := Build(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	order := func() (all []string) {
		for _, m := range sp.Mounts {
			all = append(all, m.Destination)
		}
		return all
	}
	built := order()
	VolumesFirst(sp, in.Volumes)
	if got := order(); !slices.Equal(got, built) {
		t.Errorf("without a change the order is %v, was %v", got, built)
	}
	sp.Mounts = slices.DeleteFunc(sp.Mounts, func(m specs.Mount) bool { return m.Destination == "/srv" })
	sp.Mounts = append(sp.Mounts, specs.Mount{Destination: "/opt/vendor"}, specs.Mount{Destination: "/srv", Source: "/y"})
	slices.SortStableFunc(sp.Mounts, func(x, y specs.Mount) int {
		return cmp.Compare(depth(x.Destination), depth(y.Destination))
	})
	VolumesFirst(sp, in.Volumes)
	got := order()
	if got[0] != "/var/lib/app" || slices.Contains(got, "/opt/vendor/cache") {
		t.Errorf("the order is %v", got)
	}
	srv := slices.IndexFunc(sp.Mounts, func(m specs.Mount) bool { return m.Destination == "/srv" })
	if sp.Mounts[srv].Source != "/y" || len(got) != len(built) {
		t.Errorf("the mount that took the place of a volume: %v", sp.Mounts)
	}
}
