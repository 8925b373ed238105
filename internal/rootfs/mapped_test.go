package rootfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/userns"
	"berth/test/volume"
)

// TestMain is also the program that holds a user namespace.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "hold" {
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	os.Exit(m.Run())
}

// testUserns is a user namespace whose uids are 100000 and on, its gids 200000 and on.
func testUserns(t *testing.T) IDMap {
	t.Helper()
	runtime.LockOSThread()
	h, err := userns.Hold("/proc/self/exe", 0, userns.Mapping{
		UIDs: []userns.Range{{Inside: 0, Host: 100000, Size: 65536}},
		GIDs: []userns.Range{{Inside: 0, Host: 200000, Size: 65536}},
	})
	must(t, err)
	t.Cleanup(func() {
		h.End()
		runtime.UnlockOSThread()
	})
	return IDMap{h.Path("user"), 100000, 200000}
}

func owner(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}

func wantOwner(t *testing.T, path, want string) {
	t.Helper()
	if got := owner(t, path); got != want {
		t.Errorf("%s belongs to %s, not %s", path, got, want)
	}
}

// inside runs a shell script as root of the user namespace.
func inside(t *testing.T, ns IDMap, script string) string {
	t.Helper()
	out, err := exec.Command("nsenter", "--user="+ns.UserNS, "sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// reachable makes a directory that others may pass through.
func reachable(t *testing.T) string {
	base := needRoot(t)
	must(t, os.Chmod(filepath.Dir(base), 0o755))
	must(t, os.Chmod(base, 0o755))
	return base
}

func TestPrepareMapped(t *testing.T) {
	base, ns := reachable(t), testUserns(t)
	o := Options{Lower: layers(t, base, 3), IDs: ns}
	must(t, os.WriteFile(o.Lower[2]+"/roots", []byte("root's"), 0o600))
	for name, single := range map[string]bool{"new": true, "old": false} {
		if was := oneByOne; !single {
			oneByOne = func() bool { return false }
			defer func() { oneByOne = was }()
		} else if !oneByOne() {
			continue
		}
		dir, at := base+"/"+name, base+"/"+name+"-root"
		for range 2 { // the second time over what is there
			must(t, Prepare(dir, at, o))
		}
		wantOwner(t, at, "100012:200034") // the top layer's root is 12:34
		wantOwner(t, at+"/roots", "100000:200000")
		inside(t, ns, "cd "+at+"; cat roots; chmod 755 .; echo changed > roots; mkdir -p made/deep; rm own1; chown 7:8 made")
		must(t, MkdirAllAs(t.Context(), at, "/volume/deep", 0o755, 100000, 200000))
		wantOwner(t, at+"/volume/deep", "100000:200000")
		// What is written is kept with the ids that the container sees.
		wantOwner(t, dir+"/upper/made", "7:8")
		wantOwner(t, dir+"/upper/made/deep", "0:0")
		wantOwner(t, dir+"/upper/roots", "0:0")
		if content(t, o.Lower[2]+"/roots") != "root's" {
			t.Error("a layer was changed")
		}
		must(t, Unmount(at))
		must(t, Remove(dir))
	}
	if _, _, err := Usage(t.Context(), base, 0); err != nil {
		t.Error(err)
	}
}

func TestPrepareMappedReadOnly(t *testing.T) {
	base, ns := reachable(t), testUserns(t)
	all := layers(t, base, 2)
	for name, lower := range map[string][]string{"one": all[:1], "two": all} {
		dir, at := base+"/"+name, base+"/"+name+"-root"
		must(t, Prepare(dir, at, Options{Lower: lower, IDs: ns, ReadOnly: true}))
		if err := os.WriteFile(at+"/x", nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: written: %v", name, err)
		}
		wantOwner(t, at+"/all", "100000:200000")
		must(t, Unmount(at))
	}
}

func TestPrepareMappedFails(t *testing.T) {
	base, ns := reachable(t), testUserns(t)
	lower := layers(t, base, 1)
	for name, o := range map[string]Options{
		"no namespace":  {Lower: lower, IDs: IDMap{UserNS: base + "/none"}},
		"not one":       {Lower: lower, IDs: IDMap{UserNS: lower[0] + "/all"}},
		"no such layer": {Lower: []string{base + "/none"}, IDs: ns},
		"unmappable":    {Lower: []string{"/proc/sys"}, IDs: ns},
	} {
		if err := Prepare(base+"/dir", base+"/root", o); err == nil {
			t.Errorf("%s: prepared", name)
		}
		if mounted, err := isMount(base + "/root"); mounted || err != nil {
			t.Errorf("%s: mounted all the same: %v", name, err)
		}
	}
}

// TestStage has a volume with another file system mounted in it, both of a kind whose ids each kernel maps.
func TestStage(t *testing.T) {
	base, ns := reachable(t), testUserns(t)
	vol, dir := base+"/vol", base+"/staged"
	for _, at := range []string{vol, vol + "/sub"} {
		must(t, os.Mkdir(at, 0o755))
		volume.Mounted(t, at, volume.Ext4, 16)
	}
	must(t, unix.Mount("", vol, "", unix.MS_REC|unix.MS_SHARED, ""))
	must(t, os.Chown(vol+"/sub", 3, 4))
	write(t, vol+"/file", "data")

	must(t, Stage(t.Context(), vol, dir+"/plain", Staging{}))
	must(t, Stage(t.Context(), vol, dir+"/ro", Staging{ReadOnly: true}))
	must(t, Stage(t.Context(), vol, dir+"/mapped", Staging{IDs: ns}))
	must(t, Stage(t.Context(), vol+"/file", dir+"/file", Staging{IDs: ns, ReadOnly: true}))
	must(t, Stage(t.Context(), vol, dir+"/follows", Staging{Follow: true}))
	must(t, Stage(t.Context(), vol+"/file", dir+"/follows", Staging{})) // it is there already

	write(t, dir+"/plain/sub/x", "x")
	for _, p := range []string{dir + "/ro/y", dir + "/ro/sub/y", dir + "/file"} {
		if err := os.WriteFile(p, nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s can be written: %v", p, err)
		}
	}
	wantOwner(t, dir+"/mapped/file", "100000:200000")
	wantOwner(t, dir+"/mapped/sub", "100003:200004")
	inside(t, ns, "echo z > "+dir+"/mapped/file")
	wantOwner(t, dir+"/file", "100000:200000")
	if content(t, dir+"/file") != "z\n" {
		t.Error("the file is not the volume's")
	}

	must(t, os.Mkdir(vol+"/later", 0o755))
	must(t, MakeTmpfs(vol+"/later", Tmpfs{Mode: 0o755}))
	for name, want := range map[string]bool{"plain": false, "follows": true} {
		if got, _ := isMount(dir + "/" + name + "/later"); got != want {
			t.Errorf("a later mount of the host shows in %s: %v", name, got)
		}
	}
	for range 2 {
		must(t, Unstage(dir))
	}
	for _, p := range []string{vol, vol + "/sub", vol + "/later"} {
		if mounted, _ := isMount(p); !mounted {
			t.Errorf("the host's own mount %s is gone", p)
		}
	}
	must(t, UnmakeTmpfs(vol+"/later"))
}

func TestTryMapped(t *testing.T) {
	base, ns := needRoot(t), testUserns(t)
	must(t, os.Mkdir(base+"/layers", 0o700))
	must(t, os.MkdirAll(base+"/writable/try-mapped/upper/made", 0o700)) // a killed one was here
	must(t, TryMapped(base+"/layers", base+"/writable", ns))
	must(t, TryRecursive())
	for _, d := range []string{"/layers", "/writable"} {
		if left, err := os.ReadDir(base + d); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", d, left, err)
		}
	}
	ramfs := mounted(t, "ramfs", 0, "")
	var cannot *NoIDMapError
	if err := TryMapped(ramfs, base+"/writable", ns); !errors.As(err, &cannot) {
		t.Errorf("layers on ramfs: %v", err)
	}
	if err := TryMapped(base+"/layers", ramfs, ns); !errors.As(err, &cannot) {
		t.Errorf("writable on ramfs: %v", err)
	}
}

func TestStageOptions(t *testing.T) {
	base, vol := needRoot(t), mounted(t, "tmpfs", unix.MS_RELATIME, "") // whose options no machine has a say in
	for i, c := range []struct {
		options []string
		want    int64
	}{
		{[]string{"noexec", "nosuid", "nodev"}, unix.ST_NOEXEC | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_RELATIME},
		{[]string{"noatime", "nodiratime"}, unix.ST_NOATIME | unix.ST_NODIRATIME},
		{[]string{"noatime", "relatime"}, unix.ST_RELATIME}, {[]string{"strictatime"}, 0},
		{[]string{"nosymfollow"}, 0x2000 | unix.ST_RELATIME},
	} {
		at := fmt.Sprint(base, "/staged/", i)
		must(t, Stage(t.Context(), vol, at, Staging{Options: c.options}))
		var st unix.Statfs_t
		must(t, unix.Statfs(at, &st))
		const all = unix.ST_NOEXEC | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOATIME |
			unix.ST_NODIRATIME | unix.ST_RELATIME | 0x2000
		if st.Flags&all != c.want {
			t.Errorf("%v: flags %x, wanted %x", c.options, st.Flags&all, c.want)
		}
	}
	if err := Stage(t.Context(), vol, base+"/staged/bad", Staging{Options: []string{"suid"}}); err == nil ||
		!strings.Contains(err.Error(), `"suid"`) {
		t.Errorf("%v", err)
	}
	must(t, Unstage(base+"/staged"))
}

func TestStageFails(t *testing.T) {
	base, ns := reachable(t), testUserns(t)
	var none *NoIDMapError
	err := Stage(t.Context(), "/proc/sys", base+"/staged/a", Staging{IDs: ns})
	if !errors.As(err, &none) || none.Type != "proc" || !strings.Contains(err.Error(), "/proc/sys") {
		t.Errorf("ids of /proc: %v", err)
	}
	if err := Stage(t.Context(), base+"/none", base+"/staged/b", Staging{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
	must(t, Unstage(base+"/staged"))
}

func TestMkdirAllAsKeepsItsPowers(t *testing.T) {
	base := needRoot(t)
	must(t, os.MkdirAll(base+"/closed/others", 0o700))
	must(t, os.Chown(base+"/closed/others", 5, 5))
	must(t, MkdirAllAs(t.Context(), base, "/closed/others/mine", 0o755, 100000, 200000))
	wantOwner(t, base+"/closed/others/mine", "100000:200000")
	must(t, os.Mkdir(base+"/roots", 0o755))
	wantOwner(t, base+"/roots", "0:0")
}
