package systemd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestContainer has parents in each form become the slice of a container, or be refused with words about what is wrong.
func TestContainer(t *testing.T) {
	u := &Units{Instance: "berth"}
	const slice = "kubepods-burstable-pod0f_1e.slice"
	deepest := "/" + strings.TrimSuffix(strings.Repeat("a/", 52), "/")
	for parent, want := range map[string]string{
		// Slices stay as they are.
		slice: slice,
		"/kubepods.slice/kubepods-burstable.slice/" + slice: slice,
		"/kubepods-pod1.slice":                              "kubepods-pod1.slice",
		"-.slice":                                           "-.slice",
		`a\x2db.slice`:                                      `a\x2db.slice`,
		// Paths become what a kubelet makes of them.
		"/kubepods/burstable/pod0f-1e": slice,
		"/kubepods":                    "kubepods.slice",
		"kubepods":                     "kubepods.slice",
		"/kubepods/pod0f_1e":           "kubepods-pod0f_1e.slice",
		"/-":                           "_.slice",
		"/a-/-b":                       "a_-_b.slice",
		"/a/../b":                      "",
		"/v1.2/.x":                     "v1.2-.x.slice",
		deepest:                        strings.Repeat("a-", 51) + "a.slice",
		"/" + strings.Repeat("x", 249): strings.Repeat("x", 249) + ".slice",
	} {
		got, err := u.Container(parent, "abc")
		if want == "" {
			if err == nil {
				t.Errorf("%s became %s", parent, got)
			}
			continue
		}
		if got != want+":berth:abc" || err != nil {
			t.Errorf("%s: %s, %v; wanted %s", parent, got, err, want)
		}
	}
	for parent, word := range map[string]string{
		"/":                                  "root",
		".":                                  "no name of a cgroup",
		"..":                                 "no name of a cgroup",
		".slice":                             "does not name a slice",
		"a--b.slice":                         "nothing may be empty between its dashes",
		"x.service":                          "unit of systemd",
		"/kubepods.slice/pod1":               "unit of systemd",
		"/system.slice/x.service/inner":      "unit of systemd",
		"/kubepods/pod:1":                    `has ':'`,
		"kubepods-pod1.slice:berth":          `has ':'`,
		"/kubepods/pod 1":                    `has ' '`,
		"/kubepods/pod@1":                    `has '@'`,
		"/kubepods/pöd":                      `has 'ö'`,
		`/a\b`:                               "can be converted",
		"a b.slice":                          `has ' '`,
		"a@b.slice":                          `has '@'`,
		"/" + strings.Repeat("x", 250):       "256 bytes long, and systemd takes 255",
		deepest + "/a":                       "53 levels",
		strings.Repeat("a-", 60) + "a.slice": "61 levels",
	} {
		got, err := u.Container(parent, "abc")
		if err == nil || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), "cgroup driver is systemd") {
			t.Errorf("%q: %q, %v; wanted an error with %q", parent, got, err, word)
		}
	}
}

// TestPath wants the place of a parent to be that of the slice in which its containers are.
func TestPath(t *testing.T) {
	u := &Units{Instance: "berth"}
	for parent, want := range map[string]string{
		"/kubepods/burstable/pod-1":            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod_1.slice",
		"/kubepods-pod1.slice":                 "/kubepods.slice/kubepods-pod1.slice",
		"/kubepods.slice/kubepods-pod1.slice":  "/kubepods.slice/kubepods-pod1.slice",
		(&Units{Instance: "berth"}).Parent(id): "/berth.slice/berth-pods.slice/berth-pods-" + id + ".slice",
	} {
		if got, err := u.Path(parent); got != want || err != nil {
			t.Errorf("%s: %s, %v; wanted %s", parent, got, err, want)
		}
	}
	if got, err := u.Path("/kubepods/pod:1"); err == nil {
		t.Errorf("a bad parent is at %s", got)
	}
}

// TestRemoveParent looks at which slices go with the last container: those that a parent was converted to, up to the
// first that somebody configured, that has something else in it, or that was given as a slice.
func TestRemoveParent(t *testing.T) {
	u := real(t)
	top := "test" + random(3)
	parent := "/" + top + "/burstable/pod-1"
	leaf := top + "-burstable-pod_1.slice"
	run := func(slice, scope string) (end func()) {
		t.Helper()
		h, err := startHolder(monitorScope(t, u).Holder)
		if err != nil {
			t.Fatal(err)
		}
		properties := []property{set("Slice", slice), set("PIDs", []uint32{h.pid()})}
		if err := u.Manager.startScope(t.Context(), scope, properties); err != nil {
			t.Fatal(err)
		}
		path, err := u.Path(slice)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "the scope is there", func() bool { return there(u, path+"/"+scope) })
		return func() {
			h.end()
			within(t, "the scope is gone", func() bool { return !there(u, path+"/"+scope) })
		}
	}
	remove := func(parent string) {
		t.Helper()
		if err := u.RemoveParent(t.Context(), parent); err != nil {
			t.Error(err)
		}
	}
	at := func(slice string) string {
		path, err := u.Path(slice)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	endOne := run(leaf, scopeOf(u, "one"))
	endTwo := run(leaf, scopeOf(u, "two"))
	endOne()
	remove(parent) // another container is in it
	if active, err := u.Manager.active(t.Context(), scopeOf(u, "two")); !active || err != nil || !there(u, at(leaf)) {
		t.Errorf("the slice went with one of two, or its container is not active: %v, %v", active, err)
	}
	endTwo()
	remove("/x/" + parent) // another slice, which is not there
	remove(at(leaf))       // given as a slice
	if !there(u, at(leaf)) {
		t.Fatal("a slice that was given as one is gone")
	}
	systemctl(t, "set-property", "--runtime", top+".slice", "CPUWeight=77")
	t.Cleanup(func() {
		systemctl(t, "revert", top+".slice")
		_ = u.Manager.stopAlone(context.Background(), top+".slice")
		_ = os.Remove(filepath.Join(u.Mount, at(top+".slice")))
	})
	remove(parent)
	remove(parent) // again
	if there(u, at(top+"-burstable.slice")) || !there(u, at(top+".slice")) {
		t.Error("what is left is not the slice that was configured, and that alone")
	}
	for _, slice := range []string{leaf, top + "-burstable.slice"} {
		within(t, slice+" is stopped", func() bool {
			active, err := u.Manager.active(t.Context(), slice)
			return !active && err == nil
		})
	}
}
