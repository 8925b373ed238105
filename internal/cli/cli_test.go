package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

func id(start string) string { return start + strings.Repeat("0", 64-len(start)) }

// populated is a daemon with two pods of a kubelet, a restarted container among theirs, and two images.
func populated(t *testing.T) *daemon {
	d := startDaemon(t)
	d.addPod(id("aa11"), "web", "default")
	d.addPod(id("aa22"), "db", "prod")
	d.addContainer(id("c1"), id("aa11"), "nginx", 0, runtimeapi.ContainerState_CONTAINER_EXITED).ExitCode = 137
	d.containers[0].Reason, d.containers[0].FinishedAt = "OOMKilled", time.Now().Add(-5*time.Minute).UnixNano()
	d.addContainer(id("c2"), id("aa11"), "nginx", 1, runtimeapi.ContainerState_CONTAINER_RUNNING)
	d.addContainer(id("c3"), id("aa22"), "postgres", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	d.addContainer(id("c4"), id("aa22"), "sidecar", 0, runtimeapi.ContainerState_CONTAINER_CREATED)
	d.images = []*runtimeapi.Image{
		{Id: "sha256:" + id("ee1"), RepoTags: []string{"docker.io/library/nginx:1", "docker.io/library/nginx:latest"},
			Size: 187_400_000},
		{Id: "sha256:" + id("ee2"), RepoDigests: []string{"quay.io/x@sha256:77"}, Size: 900, Pinned: true},
	}
	return d
}

func TestTables(t *testing.T) {
	d := populated(t)
	d.stuck = `{"state":"removing","stuck":{"Step":"network","Error":"plugin bridge\n is gone"}}`
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"ps"}, `
CONTAINER      NAME       IMAGE   STATE     AGE   RESTARTS   PORTS   POD   NAMESPACE
c20000000000   nginx      img:1   running   90m   1          -       web   default
c30000000000   postgres   img:1   running   90m   0          -       db    prod
`},
		{[]string{"ps", "-a"}, `
CONTAINER      NAME       IMAGE   STATE                                 AGE   RESTARTS   PORTS   POD   NAMESPACE
c10000000000   nginx      img:1   exited 5m ago (code 137, OOMKilled)   90m   0   -   web   default
c20000000000   nginx      img:1   running                               90m   1   -   web   default
c30000000000   postgres   img:1   running                               90m   0   -   db    prod
c40000000000   sidecar    img:1   created                               90m   0   -   db    prod
`},
		{[]string{"pods"}, `
POD            NAME   NAMESPACE   STATE   AGE   CONTAINERS   ADDRESS    PROBLEM
aa1100000000   web    default     ready   3h    2            10.1.2.3   plugin bridge is gone
aa2200000000   db     prod        ready   3h    2            10.1.2.3   plugin bridge is gone
`},
		{[]string{"images"}, `
IMAGE                            ID             SIZE
docker.io/library/nginx:1        ee1000000000   187 MB
docker.io/library/nginx:latest   ee1000000000   187 MB
quay.io/x@sha256:77              ee2000000000   900 B    pinned
`},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			for i := range d.containers { // their order is that of their ages
				d.containers[i].CreatedAt = time.Now().Add(-90*time.Minute - time.Duration(i)*time.Second).UnixNano()
			}
			out, errs, code := d.berth(t, c.args...)
			if squeeze(out) != squeeze(c.want[1:]) || code != 0 || errs != "" {
				t.Errorf("code %d, stderr %q, got\n%s\nwant\n%s", code, errs, out, c.want)
			}
			aligned(t, out)
		})
	}
}

// squeeze makes the width of columns meaningless; aligned checks it.
func squeeze(s string) string {
	var lines []string
	for l := range strings.Lines(s) {
		lines = append(lines, strings.Join(strings.Fields(l), " "))
	}
	return strings.Join(lines, "\n")
}

func aligned(t *testing.T, out string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	for _, head := range strings.Fields(lines[0]) {
		column := strings.Index(" "+lines[0], " "+head)
		for _, l := range lines[1:] {
			if column > 1 && column < len(l) && (l[column-1] != ' ' || l[column] == ' ') {
				t.Errorf("%q does not stand below %s", l, head)
			}
		}
	}
}

func TestListsAsJSON(t *testing.T) {
	d := populated(t)
	for command, key := range map[string]string{"ps": "containers", "pods": "items", "images": "images"} {
		out, errs, code := d.berth(t, command, "-o", "json")
		var v map[string][]struct{ ID string }
		if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 {
			t.Fatalf("%s: %v, %q", command, err, errs)
		}
		if len(v[key]) != 2 || v[key][0].ID == "" {
			t.Errorf("%s: %s", command, out)
		}
	}
	if _, errs, code := d.berth(t, "ps", "-o", "yaml"); code != 2 || !strings.Contains(errs, "json") {
		t.Errorf("an unknown format: code %d, %q", code, errs)
	}
}

func TestNamesAndShortIDs(t *testing.T) {
	d := populated(t)
	d.addPod(id("ab33"), "web", "prod")
	d.addContainer(id("c5"), id("ab33"), "nginx", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	d.addContainer(id("f5a"), id("ab33"), "fa", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	d.addContainer(id("fa9"), id("ab33"), "tool", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	for word, want := range map[string]string{
		id("c2"):            "c2",
		"c3":                "c3",
		"postgres":          "c3",
		"db/postgres":       "c3",
		"default/web/nginx": "c2", // the last attempt
		"prod/web/nginx":    "c5",
		"fa":                "f5a", // a name wins over the beginning of an id
		"fa9":               "fa9",
	} {
		out, errs, code := d.berth(t, "exec", word, "true")
		if code != 0 || !strings.HasPrefix(out, short(id(want))) {
			t.Errorf("%s: code %d, %q%s, want %s", word, code, out, errs, want)
		}
	}
	for word, want := range map[string]string{
		"nginx":  `more than one container is meant by "nginx": c20000000000 (default/web/nginx), c50000000000 (prod/web/nginx)`,
		"c":      "more than one container",
		"nobody": `there is no container "nobody"; see berth ps -a`,
	} {
		if _, errs, code := d.berth(t, "exec", word, "true"); code != ownFailure || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q, want %q", word, code, errs, want)
		}
	}
}

func TestExec(t *testing.T) {
	d := populated(t)
	for _, args := range [][]string{
		{"exec", "postgres", "ls", "-l", "--", "x"}, {"exec", "postgres", "--", "ls", "-l", "--", "x"},
		{"exec", "--timeout", "0", "postgres", "ls", "-l", "--", "x"},
	} {
		if out, errs, code := d.berth(t, args...); out != "c30000000000 [\"ls\" \"-l\" \"--\" \"x\"]\n" || code != 0 {
			t.Errorf("%v: code %d, %q %q", args, code, out, errs)
		}
	}
	d.exec = func(ctx context.Context, req *admin.ExecRequest, _ func() (*admin.AttachInput, error),
		send func(*admin.AttachOutput) error) error {
		code := 42
		_ = send(&admin.AttachOutput{Stdout: []byte("out")})
		if req.Command[0] == "sleep" {
			<-ctx.Done()
			return ctx.Err()
		}
		return send(&admin.AttachOutput{Stderr: []byte("err"), Exit: &code})
	}
	if out, errs, code := d.berth(t, "exec", "postgres", "x"); out != "out" || errs != "err" || code != 42 {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	if _, errs, code := d.berth(t, "exec", "--timeout", "50ms", "postgres", "sleep"); code != ownFailure ||
		!strings.Contains(errs, "not done after 50ms") {
		t.Errorf("a timeout became %d, %q", code, errs)
	}
	if _, errs, code := d.berth(t, "exec", "postgres"); code != ownFailure || !strings.Contains(errs, "which command") {
		t.Errorf("without a command: code %d, %q", code, errs)
	}
	if _, errs, code := d.berth(t, "exec", "-it", "postgres", "sh"); code != ownFailure ||
		!strings.Contains(errs, "-t needs a terminal") {
		t.Errorf("without a terminal: code %d, %q", code, errs)
	}
}

func TestLeaving(t *testing.T) {
	for typed, want := range map[string]struct {
		out  string
		left bool
	}{
		"abc":            {"abc", false},
		"a\x10b":         {"a\x10b", false},
		"a\x10\x11b":     {"a", true},
		"\x10\x10\x11":   {"\x10", true},
		"\x11\x10x\x11y": {"\x11\x10x\x11y", false},
	} {
		left := false
		l := &leaving{in: iotest.OneByteReader(strings.NewReader(typed)), leave: func() { left = true }}
		out, err := io.ReadAll(l)
		if err != nil || string(out) != want.out || left != want.left {
			t.Errorf("%q became %q, left %v, %v", typed, out, left, err)
		}
	}
}

func TestPorts(t *testing.T) {
	for _, bad := range []string{"", "x", ":", "1:2:3", "70000", "80:0", "-1", ":x"} {
		if f, err := listenAt("127.0.0.1", bad); err == nil {
			_ = f.Close()
			t.Errorf("%q is taken for ports", bad)
		}
	}
	f, err := listenAt("127.0.0.1", ":80")
	if err != nil || f.port != 80 {
		t.Fatalf("%+v, %v", f, err)
	}
	_ = f.Close()
}

func TestStopAndRemove(t *testing.T) {
	d := populated(t)
	if _, errs, code := d.berth(t, "rm", "postgres"); code != 1 ||
		!strings.Contains(errs, "runs; stop it first, or use rm -f") {
		t.Errorf("rm of what runs: code %d, %q", code, errs)
	}
	if _, errs, code := d.berth(t, "stop", "postgres"); code != 0 || d.called("StopPodSandbox") {
		t.Errorf("stop of one container: code %d, %q", code, errs)
	}
	out, errs, code := d.berth(t, "rm", "-f", "postgres", "nobody", "sidecar")
	if out != "postgres\nsidecar\n" || code != 0 || !strings.Contains(errs, `"nobody"`) || len(d.containers) != 2 {
		t.Errorf("rm -f: code %d, %q %q, %d containers left", code, out, errs, len(d.containers))
	}
	if _, errs, code := d.berth(t, "rm", "-f", "web"); code != 0 || len(d.pods) != 1 || len(d.containers) != 0 {
		t.Errorf("rm -f of a pod: code %d, %q, %d pods, %d containers left", code, errs, len(d.pods), len(d.containers))
	}
	// As in a script whose variable is not set, where one pod is all there is.
	if _, errs, code := d.berth(t, "rm", "-f", ""); code == 0 || !strings.Contains(errs, `"" names no`) || len(d.pods) != 1 {
		t.Errorf("rm -f of no name: code %d, %q, %d pods left", code, errs, len(d.pods))
	}
}

func TestImagesAreRemovedByAnyName(t *testing.T) {
	d := populated(t)
	for _, word := range []string{"docker.io/library/nginx:1", "docker.io/library/nginx:latest", "ee2"} {
		if out, errs, code := d.berth(t, "rmi", word); out != word+"\n" || code != 0 {
			t.Errorf("%s: code %d, %q %q", word, code, out, errs)
		}
	}
	if _, errs, code := d.berth(t, "rmi", "nothing"); code != 3 || !strings.Contains(errs,
		`there is no image "nothing"; see berth images`) {
		t.Errorf("code %d, %q", code, errs)
	}
	if len(d.images) != 0 {
		t.Errorf("left: %v", d.images)
	}
}

func TestInspect(t *testing.T) {
	d := populated(t)
	d.stuck = "not JSON"
	for _, c := range []struct {
		args     []string
		kind, id string
		info     any
	}{
		{[]string{"postgres"}, "container", id("c3"), map[string]any{"pid": 42.0}},
		{[]string{"web"}, "pod", id("aa11"), "not JSON"},
		{[]string{"ee1"}, "image", "sha256:" + id("ee1"), nil},
		{[]string{"--type", "pod", "db"}, "pod", id("aa22"), "not JSON"},
	} {
		out, errs, code := d.berth(t, append([]string{"inspect"}, c.args...)...)
		var v struct {
			Kind   string
			Status struct{ ID string }
			Info   map[string]any
		}
		if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 {
			t.Fatalf("%v: %v, %q", c.args, err, errs)
		}
		got, _ := json.Marshal(v.Info["info"])
		want, _ := json.Marshal(c.info)
		if v.Kind != c.kind || v.Status.ID != c.id || string(got) != string(want) {
			t.Errorf("%v: %s", c.args, out)
		}
	}
	out, errs, code := d.berth(t, "inspect", "postgres", "nobody", "web")
	var kinds []string
	for in := json.NewDecoder(strings.NewReader(out)); in.More(); {
		var v struct{ Kind string }
		if err := in.Decode(&v); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		kinds = append(kinds, v.Kind)
	}
	if fmt.Sprint(kinds) != "[container pod]" || code != 3 || !strings.Contains(errs, `"nobody"`) {
		t.Errorf("of three names: %v, code %d, %q", kinds, code, errs)
	}
	for args, want := range map[string]int{"nobody": 3, "--type pod postgres": 3, "--type ship web": 2} {
		_, errs, code := d.berth(t, append([]string{"inspect"}, strings.Fields(args)...)...)
		if code != want || errs == "" {
			t.Errorf("%v: code %d, %q", args, code, errs)
		}
	}
}

func TestLogs(t *testing.T) {
	d := populated(t)
	path := filepath.Join(d.dir, "log")
	if err := os.WriteFile(path, []byte(stamp+" stdout F a\n"+stamp+" stderr F b\n"+stamp+" stdout F c\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	d.containers[2].LogPath = path
	for _, c := range []struct {
		args      []string
		out, errs string
	}{
		{nil, "a\nc\n", "b\n"}, {[]string{"--tail", "1"}, "c\n", ""}, {[]string{"-t", "--tail=1"}, stamp + " c\n", ""},
	} {
		out, errs, code := d.berth(t, append([]string{"logs", "postgres"}, c.args...)...)
		if out != c.out || errs != c.errs || code != 0 {
			t.Errorf("%v: code %d, %q %q", c.args, code, out, errs)
		}
	}
	if _, errs, code := d.berth(t, "logs", "sidecar"); code != 1 || !strings.Contains(errs, "keeps no log") {
		t.Errorf("no log: code %d, %q", code, errs)
	}
}

func TestPullShowsPhasesAsLines(t *testing.T) {
	d := startDaemon(t)
	layer := "sha256:" + id("5a")
	d.pulled = []admin.PullEvent{{Phase: "resolving"}, {Layer: layer, Phase: "downloading", Total: 3_000_000},
		{Layer: layer, Phase: "downloading", Done: 5, Total: 3_000_000},
		{Layer: layer, Phase: "done"}, {Image: "sha256:i", Names: []string{"a:1"}}}
	out, errs, code := d.berth(t, "pull", "a:1")
	want := "layer 5a0000000000: downloading (3.0 MB)\nlayer 5a0000000000: done (3.0 MB)\n"
	if out != "sha256:i a:1\n" || errs != want || code != 0 {
		t.Errorf("code %d, out %q, err %q", code, out, errs)
	}
	d.pulled = nil
	if _, errs, code := d.berth(t, "pull", "--creds", "u:p:w", "x"); code != 3 || !strings.Contains(errs,
		`berth: pull x: RegistryUnavailable: no x for "up:w"`) {
		t.Errorf("code %d, %q", code, errs)
	}
	if _, _, code := d.berth(t, "pull", "--creds", "u", "x"); code != 1 {
		t.Error("credentials without a password were taken")
	}
}

// TestPullSaysWhereItsNameLeads pulls for a platform by a name that leads to the node's image: the person is told, and
// a script gets the id.
func TestPullSaysWhereItsNameLeads(t *testing.T) {
	d := startDaemon(t)
	d.images = []*runtimeapi.Image{{Id: "sha256:mine", RepoDigests: []string{"a@sha256:77"}}}
	for _, c := range []struct {
		image, platform, out string
		told                 bool
	}{
		{"sha256:other", "linux/arm64", "sha256:other", true},
		{"sha256:mine", "linux/amd64", "a@sha256:77", false},
		{"sha256:other", "", "a@sha256:77", false}, // another pull, of a tag, may have come between
	} {
		d.pulled = []admin.PullEvent{{Image: c.image, Names: []string{"a@sha256:77"}}}
		out, errs, code := d.berth(t, "pull", "-q", "--platform", c.platform, "a@sha256:77")
		if code != 0 || out != c.out+"\n" {
			t.Errorf("%+v: code %d, out %q", c, code, out)
		}
		if told := strings.Contains(errs, "a@sha256:77 leads to sha256:mine"); told != c.told {
			t.Errorf("%+v: told %q", c, errs)
		}
	}
}

func TestProgressOnATerminal(t *testing.T) {
	var text strings.Builder
	p := newProgress(&text)
	p.width, p.height = 60, 3
	for _, e := range []admin.PullEvent{{Layer: "a", Phase: "downloading", Done: 1, Total: 2},
		{Layer: "b", Phase: "waiting"}, {Layer: "c", Phase: "done"}} {
		p.event(e)
	}
	got := text.String()
	// One line, then two, then the last two, since the third does not fit.
	if strings.Count(got, "\x1b[K") != 5 || !strings.Contains(got, "\x1b[2A\r\x1b[Kb") || strings.Count(got, "\n") != 5 {
		t.Errorf("got %q", got)
	}
	for _, width := range []int{0, 1, 20, 40, 80, 300} {
		line := bar(
			admin.PullEvent{Layer: "sha256:" + id("a"), Phase: "downloading", Done: 999_900_000, Total: 1_000_000_000}, width)
		if len(line) > max(width-1, 1) {
			t.Errorf("%d columns: a line of %d", width, len(line))
		}
	}
}

func TestImport(t *testing.T) {
	d := startDaemon(t)
	path := filepath.Join(d.dir, "a.tar")
	if err := os.WriteFile(path, []byte("tar"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := d.berth(t, "image", "import", path); out != "sha256:3-bytes a:1\n" || code != 0 {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	if out, _, code := d.berthIn(t.Context(), strings.NewReader("piped"), "image", "import",
		"-"); out != "sha256:5-bytes a:1\n" || code != 0 {
		t.Errorf("code %d, %q", code, out)
	}
	if _, errs, code := d.berth(t, "image", "import", path+"x"); code != 1 || !strings.Contains(errs, "no such file") {
		t.Errorf("code %d, %q", code, errs)
	}
}

func TestCheckCommand(t *testing.T) {
	d := startDaemon(t)
	if out, _, code := d.berth(t, "check"); out != "nothing is wrong\n" || code != 0 {
		t.Errorf("code %d, %q", code, out)
	}
	d.found = []admin.Finding{{Image: "sha256:" + id("e"), Path: "/f", Problem: "differs"}}
	out, errs, code := d.berth(t, "check")
	if out != "image e00000000000, /f: differs\n" || code != 1 || !strings.Contains(errs, "--repair") {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	if out, _, code := d.berth(t, "check", "--repair"); !strings.HasSuffix(out, "differs (repaired)\n") || code != 0 {
		t.Errorf("repair: code %d, %q", code, out)
	}
	d.found = append(d.found, admin.Finding{Pod: "p", Problem: "torn"})
	if _, errs, code := d.berth(t, "check", "--repair", "-o", "json"); code != 1 || !strings.Contains(errs, "1 of 2") {
		t.Errorf("code %d, %q", code, errs)
	}
}

func TestVersionAndConfig(t *testing.T) {
	d := startDaemon(t)
	d.info = admin.InfoResponse{Version: "v-other", Config: "root = \"/x\"\n"}
	if out, _, code := d.berth(t, "version"); out != "berth   v-test\ndaemon  v-other\n" || code != 0 {
		t.Errorf("code %d, %q", code, out)
	}
	if out, _, code := d.berth(t, "config"); out != "root = \"/x\"\n" || code != 0 {
		t.Errorf("code %d, %q", code, out)
	}
	if out, _, code := d.berth(t, "config", "--default"); !strings.Contains(out, "/var/lib/berth") || code != 0 {
		t.Errorf("code %d, %q", code, out)
	}
}

func TestWithoutADaemon(t *testing.T) {
	d := &daemon{socket: filepath.Join(t.TempDir(), "s")}
	t.Setenv("BERTH_CONFIG", "")
	want := "berth: the daemon at " + d.socket +
		` does not answer: connect: no such file or directory; start it with "berth serve"` + "\n"
	for _, args := range [][]string{{"ps"}, {"pods"}, {"images"}, {"stop", "x"}, {"inspect", "x"}, {"check"},
		{"logs", "x"}} {
		if _, errs, code := d.berth(t, args...); errs != want || code != 4 {
			t.Errorf("%v: code %d, %q", args, code, errs)
		}
	}
	for _, args := range [][]string{{"exec", "x", "y"}, {"run", "x"}} {
		if _, errs, code := d.berth(t, args...); errs != want || code != ownFailure {
			t.Errorf("%v: code %d, %q", args, code, errs)
		}
	}
	if out, _, code := d.berth(t, "version"); !strings.HasPrefix(out, "berth   v-test\n") || code != 0 {
		t.Errorf("version: code %d, %q", code, out)
	}
	if out, errs, code := d.berth(t, "config"); !strings.Contains(out, "root = ") || code != 0 ||
		!strings.Contains(errs, "would start with") {
		t.Errorf("config: code %d, %q", code, errs)
	}
}

func TestErrorsAreForPeople(t *testing.T) {
	d := populated(t)
	d.refuse["ListContainers"] = status.Error(codes.Internal, "the disk is full")
	if _, errs, code := d.berth(t, "ps"); errs != "berth: the disk is full\n" || code != 1 {
		t.Errorf("code %d, %q", code, errs)
	}
}

func TestCompletion(t *testing.T) {
	d := populated(t)
	for _, c := range []struct{ args, want string }{
		{"logs|p", "postgres"},
		{"exec|", "nginx c20000000000 postgres c30000000000"},
		{
			"rm|web|",
			"nginx c10000000000 c20000000000 postgres c30000000000 sidecar c40000000000 aa1100000000 db aa2200000000"},
		{"rmi|doc", "docker.io/library/nginx:1 docker.io/library/nginx:latest"},
		{"ps|-o|", "json table"},
		{"run|--net|", "pod host"},
	} {
		out, errs, _ := d.berth(t, append([]string{"__complete"}, strings.Split(c.args, "|")...)...)
		lines := strings.Fields(strings.Split(out, ":4")[0])
		if got := strings.Join(lines, " "); got != c.want {
			t.Errorf("%s: %q %q, want %q", c.args, got, errs, c.want)
		}
	}
	for args, files := range map[string]bool{"ps|": false, "events|": false, "top|": false, "config|": false,
		"image|ls|": false, "image|import|": true, "exec|web|cat|": true} {
		out, _, _ := d.berth(t, append([]string{"__complete"}, strings.Split(args, "|")...)...)
		if got := !strings.Contains(out, ":4\n"); got != files {
			t.Errorf("%s: files are offered: %v\n%s", args, got, out)
		}
	}
}

func TestTextOfTimesAndSizes(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "now", time.Second: "1s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m",
		2 * time.Hour:  "2h",
		47 * time.Hour: "47h", 48 * time.Hour: "2d", 800 * 24 * time.Hour: "2y", -time.Hour: "now",
	} {
		if got := span(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 99_940: "99.9 kB", 99_960: "100 kB",
		999_499: "999 kB", 999_600: "1.0 MB", 1 << 62: "4612 PB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	if got := clip(strings.Repeat("ö", 91)); got != strings.Repeat("ö", 90)+"…; see berth inspect" ||
		clip("short") != "short" {
		t.Errorf("clipped: %s", got)
	}
	if got := about("stop pod", "0123456789abcdef",
		errors.New("stop pod 0123456789abcdef: no")).Error(); got != "stop pod 0123456789abcdef: no" {
		t.Errorf("named twice: %s", got)
	}
	if got := about("stop pod", "0123456789abcdef", errors.New("no")).Error(); got != "stop pod 0123456789ab: no" {
		t.Errorf("not named: %s", got)
	}
	for d, want := range map[time.Duration]string{0: "just now", 3 * time.Second: "3s ago"} {
		if got := ago(time.Unix(100, 0), time.Unix(100, 0).Add(d)); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
	if got := age(time.Unix(0, 0), time.Now()); got != "-" {
		t.Errorf("no time: %s", got)
	}
}
