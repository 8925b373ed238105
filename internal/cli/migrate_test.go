package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/test/fixture"
	"berth/test/timeouts"
)

// oldNode is a root of containerd with an image under names, and the image's id.
func oldNode(t *testing.T, names ...string) (root *fixture.ContainerdRoot, target ocispec.Descriptor, id string) {
	t.Helper()
	root, err := fixture.NewContainerdRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	img, err := fixture.Recipe{Layers: [][]fixture.File{{{Name: "a", Body: []byte(strings.Join(names, " "))}}}}.Build()
	if err != nil {
		t.Fatal(err)
	}
	if target, err = root.Image(img); err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := root.Name("k8s.io", name, target, nil); err != nil {
			t.Fatal(err)
		}
	}
	return root, target, config.String()
}

// TestMigrateImages takes an image over, once, and leaves a name to the image that has it here.
func TestMigrateImages(t *testing.T) {
	d := startDaemon(t)
	root, _, own := oldNode(t, "quay.io/team/app:v1", "quay.io/team/app:v2")
	args := []string{"migrate", "containerd", "--only", "images", "--root", root.Dir, "--into", t.TempDir()}
	out, errs, code := d.berth(t, append(args, "--dry-run")...)
	if code != 0 || !strings.Contains(out, "quay.io/team/app:v1: would be taken over") {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	out, errs, code = d.berth(t, args...)
	if code != 0 || !strings.Contains(out, "quay.io/team/app:v1: taken over, ") {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	d.images = append(d.images, &runtimeapi.Image{Id: own}, &runtimeapi.Image{Id: "sha256:" + id("ee")})
	d.details = []admin.ImageDetail{
		{ID: own, Tags: []string{"quay.io/team/app:v1"}},
		{ID: "sha256:" + id("ee"), Tags: []string{"quay.io/team/app:v2"}},
	}
	out, errs, code = d.berth(t, args...)
	want := "quay.io/team/app:v1: is here already; Berth has another image of the name quay.io/team/app:v2\n"
	if code != 0 || out != want {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
}

// TestMigrateWhatIsMissing goes on with the others, and fails at the end.
func TestMigrateWhatIsMissing(t *testing.T) {
	d := startDaemon(t)
	root, target, _ := oldNode(t, "quay.io/team/app:v1")
	gone := ocispec.Descriptor{Digest: digest.FromString("gone"), Size: 4}
	for name, desc := range map[string]ocispec.Descriptor{"a.example/gone:v1": gone, "z.example/app:v1": target} {
		if err := root.Name("k8s.io", name, desc, nil); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"migrate", "containerd", "--only", "images", "--root", root.Dir, "--into", t.TempDir()}
	out, errs, code := d.berth(t, args...)
	if code != 1 || !strings.Contains(out, "a.example/gone:v1: not taken over: its manifest or config is not in") ||
		!strings.Contains(out, "quay.io/team/app:v1: taken over") || !strings.Contains(errs, "1 of 2 images") {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
}

// TestMigrateFromWhoRuns says what to do.
func TestMigrateFromWhoRuns(t *testing.T) {
	d := startDaemon(t)
	root, _, _ := oldNode(t, "quay.io/team/app:v1")
	f, err := os.Open(filepath.Join(root.Dir, fixture.ContainerdMetadata))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	_, errs, code := d.berth(t, "migrate", "containerd", "--only", "images", "--root", root.Dir, "--into", t.TempDir())
	if code == 0 || !strings.Contains(errs, "stop it (systemctl stop containerd; its pods run on)") {
		t.Errorf("code %d, %q", code, errs)
	}
}

// TestMigratePins keeps what containerd has pinned, beside what is pinned already, and no pause image.
func TestMigratePins(t *testing.T) {
	d := startDaemon(t)
	root, target, _ := oldNode(t)
	pinned := map[string]string{"io.cri-containerd.pinned": "pinned"}
	for _, name := range []string{"quay.io/team/agent:v1", "registry.k8s.io/pause:3.10"} {
		if err := root.Name("k8s.io", name, target, pinned); err != nil {
			t.Fatal(err)
		}
	}
	into := t.TempDir()
	if err := os.WriteFile(into+"/config.toml", []byte("[images]\npinned = [\"own/*\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"migrate", "containerd", "--only", "images", "--root", root.Dir, "--into", into}
	if out, errs, code := d.berth(t, args...); code != 0 {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	text, err := os.ReadFile(into + "/" + migratedPins)
	if err != nil || !strings.Contains(string(text), "pinned = ['own/*', 'quay.io/team/agent:v1']") {
		t.Errorf("%v: %s", err, text)
	}
}

// TestContainerdRelease asks programs that answer as containerd's packages do, and others.
func TestContainerdRelease(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"2":           {"echo containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7", "2.1.4"},
		"Debian's":    {"echo containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1", "1.6.20~ds1"},
		"says little": {"echo containerd", ""},
		"fails":       {"echo containerd x v1.0; exit 1", ""},
		"is missing":  {"", ""},
	} {
		path := filepath.Join(t.TempDir(), "containerd")
		if c.script != "" {
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		look := func(string) (string, error) {
			_, err := os.Stat(path)
			return path, err
		}
		if got := containerdRelease(t.Context(), look); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestMigrateWaitsForNoFIFO has one in each place of a file that the command reads.
func TestMigrateWaitsForNoFIFO(t *testing.T) {
	d := startDaemon(t)
	for _, name := range []string{"imported.toml", "config.toml", "registries.yaml", "into/" + migratedSettings,
		"into/certs.d/quay.io/hosts.toml"} {
		dir := t.TempDir()
		for file, text := range map[string]string{
			"config.toml":     "version = 2\nimports = [\"imported.toml\"]\n[debug]\nlevel = \"debug\"\n",
			"registries.yaml": "mirrors: {quay.io: {endpoint: [\"https://mirror.example\"]}}\n", "imported.toml": "", name: "",
		} {
			path := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			err := os.WriteFile(path, []byte(text), 0o600)
			if file == name {
				err = errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		type result struct {
			errs string
			code int
		}
		ended := make(chan result, 1)
		go func() {
			_, errs, code := d.berth(t, "migrate", "containerd", "--only", "settings", "--config", dir+"/config.toml",
				"--registries", dir+"/registries.yaml", "--into", dir+"/into")
			ended <- result{errs, code}
		}()
		select {
		case r := <-ended:
			if r.code != 1 || !strings.Contains(r.errs, filepath.Join(dir, name)+": it is not a regular file") {
				t.Errorf("%s: code %d, %q", name, r.code, r.errs)
			}
		case <-time.After(timeouts.For(10 * time.Second)):
			t.Errorf("%s: it waits", name)
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0) // lets it go on
			_ = errors.Join(err, f.Close())
			<-ended
		}
	}
}

// TestMigrateSettings writes what is new, nothing twice, and over no other file unless it is told to.
func TestMigrateSettings(t *testing.T) {
	d := startDaemon(t)
	dir, into := t.TempDir(), t.TempDir()
	config := filepath.Join(dir, "config.toml")
	const text = `version = 2
[debug]
level = "debug"
[plugins."io.containerd.grpc.v1.cri"]
max_container_log_line_size = 99
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
endpoint = ["https://mirror.example"]
[plugins."io.containerd.grpc.v1.cri".registry.configs."mirror.example".auth]
username = "u"
password = "s3cret"
`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"migrate", "containerd", "--only", "settings", "--config", config, "--into", into}
	out, errs, code := d.berth(t, append(args, "-n")...)
	if left, _ := os.ReadDir(into); code != 0 || len(left) != 0 || !strings.Contains(out, "would be written") {
		t.Errorf("dry: code %d, %v, %q %q", code, left, out, errs)
	}
	out, errs, code = d.berth(t, args...)
	for _, want := range []string{
		":3: debug.level = 'debug' → log_level = 'debug'\n", "is not carried over: the longest entry",
		migratedSettings + ": written\n",
		"certs.d/docker.io/hosts.toml: written\n", migratedCredentials + ": written\n",
	} {
		if !strings.Contains(out, want) || code != 0 {
			t.Errorf("code %d, %q: no %q in\n%s", code, errs, want, out)
		}
	}
	if strings.Contains(out+errs, "s3cret") {
		t.Errorf("it shows a password:\n%s%s", out, errs)
	}
	for _, name := range []string{migratedCredentials, "certs.d/docker.io/hosts.toml"} {
		if info, err := os.Stat(filepath.Join(into, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if out, _, code = d.berth(t, args...); code != 0 || strings.Contains(out, "written") {
		t.Errorf("again: code %d, %s", code, out)
	}
	own := filepath.Join(into, migratedSettings)
	if err := os.WriteFile(own, []byte("log_level = \"warn\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code = d.berth(t, args...)
	now, _ := os.ReadFile(own)
	if code != 1 || string(now) != "log_level = \"warn\"\n" || !strings.Contains(out, "left as it is") {
		t.Errorf("over another: code %d, %q %q", code, out, errs)
	}
	if out, _, code = d.berth(t, append(args, "--overwrite")...); code != 0 || !strings.Contains(out, "replaced") {
		t.Errorf("--overwrite: code %d, %s", code, out)
	}
}

// TestMigrateBaseSpec copies the base spec of a runtime to where it stays when containerd goes, and says what of it
// does not count. One that no daemon would take ends the command before it has written anything.
func TestMigrateBaseSpec(t *testing.T) {
	d := startDaemon(t)
	dir, into := t.TempDir(), t.TempDir()
	path, base := filepath.Join(dir, "config.toml"), filepath.Join(dir, "cri-base.json")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path, "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.h]\nbase_runtime_spec = \""+base+
		"\"\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.h.options]\nBinaryName = \"/bin/true\"\n")
	args := []string{"migrate", "containerd", "--only", "settings", "--config", path,
		"--into", into}
	write(base, `{"x":1}`)
	_, errs, code := d.berth(t, args...)
	if left, _ := os.ReadDir(into); code != 1 || len(left) > 0 || !strings.Contains(errs, `unknown field "x"`) {
		t.Errorf("a file that is none: code %d, %v, %q", code, left, errs)
	}
	const text = `{"process":{"cwd":"/srv","capabilities":{"bounding":["CAP_KILL"]}}}`
	write(base, text)
	out, errs, code := d.berth(t, args...)
	copied := filepath.Join(into, "base-specs", "h.json")
	for _, want := range []string{copied + ": written\n", "→ base_spec = '" + copied + "' of the handler: a copy\n",
		base + ": process.cwd is not carried over: "} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("code %d, %q: no %q in\n%s", code, errs, want, out)
		}
	}
	if got, err := os.ReadFile(copied); err != nil || string(got) != text {
		t.Errorf("the copy: %v: %s", err, got)
	}
	now, _ := os.ReadFile(filepath.Join(into, migratedSettings))
	if !strings.Contains(string(now), "base_spec = '"+copied+"'\n") {
		t.Errorf("the settings:\n%s", now)
	}
}

// TestMigrateProxies writes the proxies of containerd's service to where that of Berth has its environment, over
// nothing that is there, and adds them to it when it is told to.
func TestMigrateProxies(t *testing.T) {
	systemctl := filepath.Join(t.TempDir(), "systemctl")
	const script = "#!/bin/sh\necho \"Environment=HTTPS_PROXY=http://u:s3cret@p:1 NO_PROXY=.svc\" asked:$*\n"
	if err := os.WriteFile(systemctl, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	look := func(string) (string, error) { return systemctl, nil }
	for config, want := range map[string]string{
		"/etc/containerd/config.toml": "containerd.service\n", "/var/lib/rancher/k3s/agent/etc/c.toml": " k3s-agent.service ",
	} {
		if out := containerdUnit(t.Context(), config, look); !strings.Contains(out, want) ||
			!strings.Contains(out, "asked:show --property=Environment,EnvironmentFiles,DropInPaths ") {
			t.Errorf("%s: %s", config, out)
		}
	}
	etc := t.TempDir()
	into, file := filepath.Join(etc, "berth"), filepath.Join(etc, "default", "berth")
	env := map[string]string{"HTTPS_PROXY": "http://u:s3cret@p:1"}
	put := func(dryRun bool) (told string, kept int, text string) {
		t.Helper()
		out := &strings.Builder{}
		p := &placer{out: out, dir: into, dryRun: dryRun}
		if err := putEnvironment(p, into, env); err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return out.String(), p.kept, string(now)
	}
	told, _, text := put(false)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || told != file+": written\n" ||
		text != "HTTPS_PROXY=\"http://u:s3cret@p:1\"\n" {
		t.Errorf("%v, %v: %s, %s", info, err, told, text)
	}
	const own = "BERTH_SOCKET=unix:///x\n"
	if err := os.WriteFile(file, []byte(own), 0o644); err != nil {
		t.Fatal(err)
	}
	if told, kept, text := put(true); kept != 0 || text != own || told != file+": would be added to\n" {
		t.Errorf("a dry run: %d, %s, %s", kept, told, text)
	}
	for _, want := range []string{"added to", "is here already"} { // without --overwrite, as nothing is lost
		if told, kept, text := put(false); kept != 0 || text != own+"HTTPS_PROXY=\"http://u:s3cret@p:1\"\n" ||
			told != file+": "+want+"\n" {
			t.Errorf("beside another: %d, %s, %s", kept, told, text)
		}
	}
}
