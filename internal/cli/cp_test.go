package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/admin"
)

// machineOf is a container whose programs and files are this machine's.
func machineOf(ctx context.Context, req *admin.ExecRequest, recv func() (*admin.AttachInput, error),
	send func(*admin.AttachOutput) error,
) error {
	r, w := io.Pipe()
	go func() {
		for {
			in, err := recv()
			if err != nil || in.CloseStdin {
				_ = w.Close()
				return
			}
			_, _ = w.Write(in.Stdin)
		}
	}()
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, req.Command[0], req.Command[1:]...)
	cmd.Stderr = &errs
	if req.Stdin {
		cmd.Stdin = r
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	code := cmd.ProcessState.ExitCode()
	_ = send(&admin.AttachOutput{Stdout: out, Stderr: errs.Bytes()})
	return send(&admin.AttachOutput{Exit: &code})
}

// tree is all files below a directory, with what is in them or where they lead.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.Walk(dir, func(file string, info os.FileInfo, err error) error {
		if err != nil || file == dir {
			return err
		}
		text, _ := filepath.Rel(dir, file)
		switch {
		case info.IsDir():
			text += "/"
		case info.Mode()&os.ModeSymlink != 0:
			link, _ := os.Readlink(file)
			text += "->" + link
		default:
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			text += "=" + string(data)
		}
		all = append(all, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

func TestCopy(t *testing.T) {
	for name, c := range map[string]struct {
		make     string // a script, in a directory with src
		from, to string // % is the container, @ the directory
		want     string // below @/dst
	}{
		"a file out":            {"mkdir dst", "%:@/src/f", "@/dst", "f=1"},
		"a file out, renamed":   {"mkdir dst", "%:@/src/f", "@/dst/g", "g=1"},
		"over a file":           {"mkdir dst; echo old >dst/g", "%:@/src/f", "@/dst/g", "g=1"},
		"a directory out":       {"mkdir dst", "%:@/src", "@/dst", "src/ src/d/ src/d/g=2 src/f=1 src/l->f"},
		"a directory out, anew": {"", "%:@/src", "@/dst", "d/ d/g=2 f=1 l->f"},
		"what is in it":         {"mkdir dst", "%:@/src/.", "@/dst", "d/ d/g=2 f=1 l->f"},
		"hard links": {"mkdir dst; ln src/f src/d/h; ln src/l src/k", "%:@/src", "@/dst",
			"src/ src/d/ src/d/g=2 src/d/h=1 src/f=1 src/k->f src/l->f"},
		"hard links, the content": {"mkdir dst; ln src/f src/d/h", "%:@/src/.", "@/dst", "d/ d/g=2 d/h=1 f=1 l->f"},
		"a link, followed":        {"mkdir dst", "-L %:@/src/l", "@/dst", "l=1"},
		"a link in":               {"mkdir dst", "@/src/l", "%:@/dst/n", "n->f"},
		"a link in, followed":     {"mkdir dst", "-L @/src/l", "%:@/dst/n", "n=1"},
		"links in, followed": {"mkdir dst o; printf 3 >o/p; ln -s ../../o src/d/o", "-L @/src", "%:@/dst/n",
			"n/ n/d/ n/d/g=2 n/d/o/ n/d/o/p=3 n/f=1 n/l=1"},
		"a linked directory in":   {"mkdir dst; ln -s src s", "-L @/s", "%:@/dst", "s/ s/d/ s/d/g=2 s/f=1 s/l=1"},
		"a file in":               {"mkdir dst", "@/src/f", "%:@/dst", "f=1"},
		"a file in, renamed":      {"mkdir dst", "@/src/f", "%:@/dst/g", "g=1"},
		"a directory in":          {"mkdir dst", "@/src", "%:@/dst", "src/ src/d/ src/d/g=2 src/f=1 src/l->f"},
		"a directory in, renamed": {"mkdir dst", "@/src", "%:@/dst/n", "n/ n/d/ n/d/g=2 n/f=1 n/l->f"},
		"what is in it, in":       {"mkdir dst", "@/src/.", "%:@/dst", "d/ d/g=2 f=1 l->f"},
	} {
		d, dir := populated(t), t.TempDir()
		d.exec = machineOf
		script := exec.Command("sh", "-c", "mkdir -p src/d; printf 1 >src/f; printf 2 >src/d/g; ln -s f src/l; "+c.make)
		script.Dir = dir
		if out, err := script.CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		args := strings.Fields(strings.NewReplacer("@", dir, "%", "postgres").Replace("cp " + c.from + " " + c.to))
		_, errs, code := d.berth(t, args...)
		if got := tree(t, filepath.Join(dir, "dst")); got != c.want || code != 0 {
			t.Errorf("%s: code %d, %q, %s, want %s", name, code, errs, got, c.want)
		}
	}
}

// TestCopyFollowsNoCircle copies directories in whose links lead to each other: what never ends is left out and named.
func TestCopyFollowsNoCircle(t *testing.T) {
	d, dir := populated(t), t.TempDir()
	d.exec = machineOf
	script := exec.Command("sh", "-c", "mkdir dst a b a/c; ln -s ../b a/b; ln -s ../a b/a; ln -s ../.. a/c/up; "+
		"ln -s nowhere a/n; printf 1 >b/f")
	script.Dir = dir
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	_, errs, code := d.berth(t, "cp", "-L", dir+"/a", "postgres:"+dir+"/dst")
	if got := tree(t, filepath.Join(dir, "dst")); got != "a/ a/b/ a/b/f=1 a/c/" || code != 1 {
		t.Errorf("code %d, %q, %s", code, errs, got)
	}
	for _, want := range []string{
		"/b/a leads to a directory above it", "/a/c/up leads to a directory above it", "nowhere",
	} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q does not tell: %s", errs, want)
		}
	}
}

// TestCopyReplacesFilesAlone refuses to put a file where a FIFO, a device or a directory is, and writes through the
// link that was named as destination.
func TestCopyReplacesFilesAlone(t *testing.T) {
	for name, c := range map[string]struct {
		make     string
		from, to string
		fails    bool
		is       string // what is there then, as stat has it
	}{
		"a FIFO":               {"mkfifo p", "src/f", "p", true, "p: fifo"},
		"a link to a FIFO":     {"mkfifo p; ln -s p l", "src/f", "l", true, "l: symbolic link"},
		"a device":             {"ln -s /dev/null l", "src/f", "l", true, "l: symbolic link"},
		"a directory, a FIFO":  {"mkfifo p", "src", "p", true, "p: fifo"},
		"a link over a FIFO":   {"mkfifo p", "src/k", "p", true, "p: fifo"},
		"below a directory":    {"mkdir -p to/src; mkfifo to/src/f", "src", "to", true, "to/src/f: fifo"},
		"a link over a dir":    {"mkdir -p to/src/k", "src", "to", true, "to/src/k: directory"},
		"a link to a file":     {"mkdir d; echo old >d/g; ln -s d/g l", "src/f", "l", false, "l: symbolic link"},
		"a link, what it is":   {"mkdir d; echo old >d/g; ln -s d/g l", "src/f", "l", false, "d/g: regular file"},
		"below, a link":        {"mkdir -p to/src; ln -s f to/src/k", "src", "to", false, "to/src/k: symbolic link"},
		"below, where it is":   {"mkdir -p to/src; ln -s nowhere to/src/f", "src", "to", false, "to/src/f: regular file"},
		"a link to a new file": {"ln -s d l", "src/f", "l", false, "l: regular file"},
	} {
		d, dir := populated(t), t.TempDir()
		d.exec = machineOf
		script := exec.Command("sh", "-c", "mkdir src; printf 1 >src/f; ln -s f src/k; "+c.make)
		script.Dir = dir
		if out, err := script.CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		_, errs, code := d.berth(t, "cp", "postgres:"+dir+"/"+c.from, dir+"/"+c.to)
		at, _, _ := strings.Cut(c.is, ":")
		is, err := exec.Command("stat", "-c", dir+"/"+at+": %F", dir+"/"+at).CombinedOutput()
		got := strings.TrimSpace(strings.TrimPrefix(string(is), dir+"/"))
		if err != nil || got != c.is || (code != 0) != c.fails {
			t.Errorf("%s: code %d, %q, there is %s, want %s", name, code, errs, got, c.is)
		}
	}
}

// TestCopyInOfWhatChanges copies a directory while files of it vanish or become shorter. What can be copied is copied
// where the archive can go on, and the command fails and names the file.
func TestCopyInOfWhatChanges(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(src string) error
		said      string
		want      string // in the container, beside the large file a
	}{
		"a file vanishes": {
			func(src string) error { return os.Remove(src + "/m") }, "/src/m: no such file", "z=9"},
		"a directory vanishes": {
			func(src string) error { return os.RemoveAll(src + "/d") }, "/src/d: no such file", "m=5 z=9"},
		"a file becomes shorter": {
			func(src string) error { return os.Truncate(src+"/a", 1<<20) }, "/src/a became shorter", ""},
	} {
		d, dir := populated(t), t.TempDir()
		src := filepath.Join(dir, "src")
		script := exec.Command("sh", "-c", "mkdir -p src/d dst; head -c 3000000 /dev/zero >src/a; printf 5 >src/m; "+
			"printf 9 >src/z")
		script.Dir = dir
		if out, err := script.CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		d.exec = func(ctx context.Context, req *admin.ExecRequest, recv func() (*admin.AttachInput, error),
			send func(*admin.AttachOutput) error,
		) error {
			if !req.Stdin {
				return machineOf(ctx, req, recv, send)
			}
			var once sync.Once
			return machineOf(ctx, req, func() (*admin.AttachInput, error) {
				in, err := recv()
				once.Do(func() { err = errors.Join(err, c.meanwhile(src)) })
				return in, err
			}, send)
		}
		_, errs, code := d.berth(t, "cp", src+"/.", "postgres:"+dir+"/dst")
		if code != 1 || !strings.Contains(errs, c.said) {
			t.Errorf("%s: code %d, %q", name, code, errs)
		}
		var rest []string // without a, d
		for _, text := range strings.Fields(tree(t, filepath.Join(dir, "dst"))) {
			if text[0] == 'm' || text[0] == 'z' {
				rest = append(rest, text)
			}
		}
		if got := strings.Join(rest, " "); got != c.want {
			t.Errorf("%s: copied %s, want %s", name, got, c.want)
		}
	}
}

// TestCopyLeavesTheModesOfDirectories has a container whose directories everybody may write copied over directories of
// this machine, which keep their modes, and to a new place, which gets the container's.
func TestCopyLeavesTheModesOfDirectories(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"the content, over":     {"%:@/src/.", "@/dst", "dst=700 dst/src=710 dst/d=777 "},
		"a directory, over":     {"%:@/src", "@/dst", "dst=700 dst/src=710 dst/src/d=777 "},
		"the content, anew":     {"%:@/src/.", "@/new", "new=777 new/d=777 "},
		"the content, anew, in": {"%:@/src/.", "@/dst/a/b/", "dst=700 dst/a/b=777 dst/a/b/d=777 "},
		"a directory, anew":     {"%:@/src", "@/new", "new=777 new/d=777 "},
		// Inwards the modes below are this machine's.
		"the content, in":         {"@/src/.", "%:@/dst", "dst=700 dst/d=777 "},
		"a directory, in, over":   {"@/src", "%:@/dst", "dst=700 dst/src=710 dst/src/d=777 "},
		"a directory, in, anew":   {"@/src", "%:@/new", "new=777 new/d=777 "},
		"a directory, in, inside": {"@/src", "%:@/dst/a", "dst=700 dst/a=777 dst/a/d=777 "},
	} {
		d, dir := populated(t), t.TempDir()
		d.exec = machineOf
		script := exec.Command("sh", "-c", "mkdir -p src/d dst/src && chmod 777 src src/d && chmod 700 dst && "+
			"chmod 710 dst/src")
		script.Dir = dir
		if out, err := script.CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		args := strings.Fields(strings.NewReplacer("@", dir, "%", "postgres").Replace("cp " + c.from + " " + c.to))
		_, errs, code := d.berth(t, args...)
		for _, want := range strings.Fields(c.want) {
			at, mode, _ := strings.Cut(want, "=")
			if info, err := os.Stat(filepath.Join(dir, at)); err != nil || fmt.Sprintf("%o", info.Mode().Perm()) != mode {
				t.Errorf("%s: code %d, %q, want %s: %v, %v", name, code, errs, want, info.Mode(), err)
			}
		}
	}
}

// TestCopyFromAHostileContainer has containers send what was not asked for.
func TestCopyFromAHostileContainer(t *testing.T) {
	file := func(name string) *tar.Header { return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o4777} }
	link := func(name, to string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	dir := &tar.Header{Name: "x", Typeflag: tar.TypeDir, Mode: 0o755}
	for name, c := range map[string]struct {
		entries []*tar.Header
		fails   bool
		want    string
	}{
		"another name":        {[]*tar.Header{file("y")}, true, ""},
		"a longer name":       {[]*tar.Header{file("xy")}, true, ""},
		"a link in its place": {[]*tar.Header{link("x", "../mine"), file("x/f")}, true, "x->../mine"},
		"a link in its place, to what lies beside it": {[]*tar.Header{link("x", "mine"), file("x/f")}, true,
			"mine/ x->mine"},
		"a path that leads up":    {[]*tar.Header{dir, file("x/../../evil")}, true, "x/"},
		"an absolute path":        {[]*tar.Header{file("/evil")}, true, ""},
		"through a link":          {[]*tar.Header{dir, link("x/l", "/"), file("x/l/evil")}, true, "x/ x/l->/"},
		"through a link up":       {[]*tar.Header{dir, link("x/l", "../.."), file("x/l/evil")}, true, "x/ x/l->../.."},
		"a directory over a file": {[]*tar.Header{dir, file("x/f"), {Name: "x/f", Typeflag: tar.TypeDir}}, true, "x/ x/f="},
		"over a link": {[]*tar.Header{dir, link("x/l", "../../evil"), file("x/l")}, false,
			"x/ x/l="},
		"a device": {[]*tar.Header{dir, {Name: "x/d", Typeflag: tar.TypeBlock, Devmajor: 8}, {Name: "x/p",
			Typeflag: tar.TypeFifo}},
			false, "x/"},
		"a hard link": {[]*tar.Header{dir, {Name: "x/h", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}}, false, "x/"},
		"a hard link up": {[]*tar.Header{dir, {Name: "x/h", Typeflag: tar.TypeLink, Linkname: "x/../../evil"}}, false,
			"x/"},
		"a hard link to what lies beside it": {[]*tar.Header{dir, {Name: "x/h", Typeflag: tar.TypeLink, Linkname: "mine/f"}},
			false, "mine/ mine/f=2 x/"},
		"a hard link to what was there": {[]*tar.Header{dir, {Name: "x/h", Typeflag: tar.TypeLink, Linkname: "x/f"}},
			false, "x/ x/f=2"},
		"a hard link by a link that turned": {[]*tar.Header{dir, {Name: "x/d", Typeflag: tar.TypeDir, Mode: 0o755},
			link("x/l", "d"), file("x/l/f"), link("x/l", "."), {Name: "x/h", Typeflag: tar.TypeLink, Linkname: "x/l/f"}},
			false, "x/ x/d/ x/d/f= x/f=2 x/l->."},
	} {
		d, at := populated(t), t.TempDir()
		d.exec = func(_ context.Context, _ *admin.ExecRequest, _ func() (*admin.AttachInput, error),
			send func(*admin.AttachOutput) error,
		) error {
			var data bytes.Buffer
			w := tar.NewWriter(&data)
			for _, h := range c.entries {
				if err := w.WriteHeader(h); err != nil {
					return err
				}
			}
			_ = w.Close()
			_ = send(&admin.AttachOutput{Stdout: data.Bytes()})
			return send(&admin.AttachOutput{Exit: new(int)})
		}
		dst := filepath.Join(at, "a", "dst")
		if err := os.MkdirAll(dst, 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "beside it") {
			if err := os.MkdirAll(filepath.Join(dst, "mine"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, there := range []string{"mine/f", "x/f"} {
			if strings.Contains(c.want, there+"=2") {
				_ = os.MkdirAll(filepath.Join(dst, filepath.Dir(there)), 0o755)
				if err := os.WriteFile(filepath.Join(dst, there), []byte("2"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, errs, code := d.berth(t, "cp", "postgres:/x", dst)
		if got := tree(t, dst); got != c.want || (code != 0) != c.fails {
			t.Errorf("%s: code %d, %q, %s", name, code, errs, got)
		}
		if got := strings.ReplaceAll(tree(t, at), " a/dst", ""); strings.Contains(got, "evil=") {
			t.Errorf("%s: it got out: %s", name, got)
		}
		if info, err := os.Lstat(filepath.Join(dst, "x/l")); err == nil && info.Mode()&os.ModeSetuid != 0 {
			t.Errorf("%s: set-user-id", name)
		}
	}
}

func TestCopyTellsWhy(t *testing.T) {
	d := populated(t)
	for args, want := range map[string]string{
		"a b": "one of both", "x:/a y:/b": "one of both", "nobody:/a .": "nobody", "/no/such postgres:/": "no such file",
	} {
		if _, errs, code := d.berth(t, append([]string{"cp"}, strings.Fields(args)...)...); code == 0 ||
			!strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q", args, code, errs)
		}
	}
	d.exec = machineOf
	_, errs, code := d.berth(t, "cp", "postgres:/no/such/thing", t.TempDir())
	if code != 3 || !strings.Contains(errs, "copy postgres:/no/such/thing: there is no such file in the container") {
		t.Errorf("code %d, %q", code, errs)
	}
	dir := t.TempDir()
	err := errors.Join(os.MkdirAll(dir+"/dst/l/full", 0o755), os.Symlink("dst", dir+"/l"))
	if _, errs, code := d.berth(t, "cp", dir+"/l", "postgres:"+dir+"/dst"); err != nil || code != 1 ||
		!strings.Contains(errs, "tar in the container ended") {
		t.Errorf("a link over a directory: %v, code %d, %q", err, code, errs)
	}
	d.exec = func(context.Context, *admin.ExecRequest, func() (*admin.AttachInput, error),
		func(*admin.AttachOutput) error) error {
		return status.Error(codes.Unknown, `executable file 'tar' not found in $PATH`)
	}
	if _, errs, code := d.berth(t, "cp", "postgres:/x", t.TempDir()); code != 1 || !strings.Contains(errs, "has no tar") {
		t.Errorf("code %d, %q", code, errs)
	}
}

// TestNothingToCopy knows what tars say of a file that is not there from what they say of one that went meanwhile.
func TestNothingToCopy(t *testing.T) {
	for text, missing := range map[string]bool{
		"tar: nosuch: No such file or directory tar: error exit delayed from previous errors":     true, // busybox
		"tar: nosuch: Cannot stat: No such file or directory tar: Exiting with failure status":    true, // GNU
		"tar: /srv/: Cannot open: No such file or directory tar: Error is not recoverable":        true,
		"tar: can't change directory to '/srv/': No such file or directory":                       true,
		"tar: nosuch/sub: No such file or directory tar: error exit delayed from previous errors": false,
		"tar: nosuch: Permission denied": false,
	} {
		err := copied{path: "/srv/nosuch"}.missing(errors.New(text))
		if got := err.Error() == "there is no such file in the container"; got != missing {
			t.Errorf("%s: %v", text, err)
		}
	}
}
