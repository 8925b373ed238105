package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

// stocked is a daemon with four images: of two that share a layer one is used, one has no tag, one is pinned.
func stocked(t *testing.T) *daemon {
	d := populated(t)
	config :=
		`{"os":"linux","architecture":"amd64","created":"2024-05-01T10:00:00Z","author":"somebody","config":{"User":"101","Env":["A=b","C=d e"],` +
			`"Entrypoint":["/run","-x y"],"Cmd":["serve"],"WorkingDir":"/srv","ExposedPorts":{"80/tcp":{}},"Labels":{"v":"1\n2"}},` +
			`"history":[{"created":"2024-05-01T10:00:00Z","created_by":"ADD base"},{"created_by":"ENV A=b","empty_layer":true},` +
			`{"created_by":"RUN make ` + strings.Repeat("x", 80) + `","comment":"by hand"}]}`
	base := admin.LayerDetail{ID: "dba5e", DiffID: "sha256:" + id("ba5e"), Blob: "sha256:" + id("b10b"), Size: 40_000_000,
		Disk: 100_000_000}
	layer := func(name string, disk uint64) admin.LayerDetail {
		return admin.LayerDetail{ID: "d" + name, DiffID: "sha256:" + id(name), Blob: "sha256:" + id(name),
			Size: int64(disk / 2), Disk: disk}
	}
	add := func(name string, old time.Duration, tags []string, layers ...admin.LayerDetail) *admin.ImageDetail {
		d.details = append(d.details,
			admin.ImageDetail{ID: "sha256:" + id(name), Tags: tags, Digests: []string{"quay.io/" + name + "@sha256:77"},
				Platform: "linux/amd64",
				Size:     41_000_000, PulledAt: time.Now().Add(-old), Layers: layers, Config: json.RawMessage(config),
				Durable: true})
		return &d.details[len(d.details)-1]
	}
	add("ee1", 50*time.Hour, []string{"docker.io/library/nginx:1", "docker.io/library/nginx:latest"}, base,
		layer("aa", 7_000_000), layer("aa", 7_000_000))
	add("ee2", 50*time.Hour, nil, base).Pinned = true
	add("ee3", 30*time.Hour, []string{"quay.io/app:v1"}, base, layer("bb", 20_000_000))
	add("ee4", 3*time.Hour, nil, layer("cc", 5_000_000))
	d.images = append(d.images,
		&runtimeapi.Image{Id: "sha256:" + id("ee3"), RepoTags: []string{"quay.io/app:v1"}, Size: 10},
		&runtimeapi.Image{Id: "sha256:" + id("ee4"), Size: 20})
	d.containers[1].ImageId = "sha256:" + id("ee1")
	return d
}

func TestImageTables(t *testing.T) {
	d := stocked(t)
	d.kept = 3_000_000
	for _, c := range []struct{ args, want string }{
		{"image list", `
IMAGE                            ID             SIZE
-                                ee4000000000   20 B
docker.io/library/nginx:1        ee1000000000   187 MB
docker.io/library/nginx:latest   ee1000000000   187 MB
quay.io/app:v1                   ee3000000000   10 B
quay.io/x@sha256:77              ee2000000000   900 B    pinned
`},
		{"image ls --dangling", `
IMAGE                 ID             SIZE
-                     ee4000000000   20 B
quay.io/x@sha256:77   ee2000000000   900 B   pinned
`},
		{"images -q --dangling", "\nsha256:" + id("ee2") + "\nsha256:" + id("ee4") + "\n"},
		{"image du", `
IMAGE                            ID             ON DISK   SHARED   UNIQUE    CONTAINERS
quay.io/app:v1                   ee3000000000   120 MB    100 MB   20.0 MB   0
docker.io/library/nginx:1 (+1)   ee1000000000   107 MB    100 MB   7.0 MB    1
quay.io/ee2@sha256:77            ee2000000000   100 MB    100 MB   0 B       0            pinned
quay.io/ee4@sha256:77            ee4000000000   5.0 MB    0 B      5.0 MB    0

132 MB in 4 layers of 4 images; 25.0 MB of it in images that nothing uses
3.0 MB more in layers that no image has any more, but a container or work in flight
`},
		{"image du --layers", `
LAYER          ON DISK   IMAGES
ba5e00000000   100 MB    docker.io/library/nginx:1 quay.io/ee2@sha256:77 quay.io/app:v1
bb0000000000   20.0 MB   quay.io/app:v1
aa0000000000   7.0 MB    docker.io/library/nginx:1
cc0000000000   5.0 MB    quay.io/ee4@sha256:77

132 MB in 4 layers of 4 images; 25.0 MB of it in images that nothing uses
3.0 MB more in layers that no image has any more, but a container or work in flight
`},
	} {
		out, errs, code := d.berth(t, strings.Fields(c.args)...)
		if "\n"+out != c.want || code != 0 {
			t.Errorf("berth %s: code %d, %s\n%s\nwant\n%s", c.args, code, errs, out, c.want)
		}
	}
}

func TestImageInspect(t *testing.T) {
	d := stocked(t)
	out, errs, code := d.berth(t, "image", "inspect", "ee1")
	for _, line := range []string{
		"id            sha256:" + id("ee1"), "tags          docker.io/library/nginx:1",
		"              docker.io/library/nginx:latest",
		"size          41.0 MB to transfer, 107 MB on disk in 3 layers", "pinned        no", "durable       yes", ", 2d ago",
		"used by       container nginx (c20000000000), running", "user          101", `entrypoint    ["/run","-x y"]`,
		`command       ["serve"]`,
		"environment   A=b", "              C=d e", "ports         80/tcp", "labels        v=1 2", "author        somebody",
		"sha256:" + id("ba5e") + "   b10b00000000   40.0 MB   100 MB",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("it lacks %q (code %d, %s):\n%s", line, code, errs, out)
		}
	}
	if strings.Contains(out, "volumes") {
		t.Errorf("it shows what is not there:\n%s", out)
	}
	out, _, code = d.berth(t, "image", "inspect", "-o", "json", "ee1")
	var v struct {
		ID     string
		Disk   uint64
		UsedBy []struct{ Name string }
		Config struct{ Config struct{ Env []string } }
		Layers []struct{ DiffID string }
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 || v.ID != "sha256:"+id("ee1") ||
		v.Disk != 107_000_000 || v.UsedBy[0].Name != "nginx" ||
		v.Config.Config.Env[1] != "C=d e" || len(v.Layers) != 3 {
		t.Errorf("code %d, %v: %s", code, err, out)
	}
	if _, errs, code := d.berth(t, "image", "inspect", "nobody"); code != 3 || !strings.Contains(errs,
		`there is no image "nobody"`) {
		t.Errorf("code %d, %s", code, errs)
	}
}

func TestImageHistory(t *testing.T) {
	d := stocked(t)
	out, errs, code := d.berth(t, "image", "history", "quay.io/app:v1")
	lines := strings.Split(out, "\n")
	if code != 0 || len(lines) != 5 || !strings.HasPrefix(lines[1], "-         bb0000000000   20.0 MB   RUN make x") ||
		!strings.HasSuffix(lines[1], "x…   by hand") ||
		!strings.Contains(lines[2], "-              0 B       ENV A=b") ||
		!strings.Contains(lines[3], "y        ba5e00000000   100 MB    ADD base") {
		t.Errorf("code %d, %s\n%s", code, errs, out)
	}
	if out, _, _ := d.berth(t, "image", "history", "--no-trunc", "quay.io/app:v1"); !strings.Contains(out,
		strings.Repeat("x", 80)) {
		t.Errorf("cut:\n%s", out)
	}
	// An image with more layers than its history speaks of.
	out, _, _ = d.berth(t, "image", "history", "-o", "json", "ee1")
	var steps []map[string]any
	if err := json.Unmarshal([]byte(out), &steps); err != nil || len(steps) != 4 || steps[0]["layer"] != "sha256:"+
		id("aa") || steps[0]["createdBy"] != "" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestImagePrune(t *testing.T) {
	ee1, ee3, ee4 := "sha256:"+id("ee1"), "sha256:"+id("ee3"), "sha256:"+id("ee4")
	for _, c := range []struct{ flags, want string }{
		{"", ee4 + " quay.io/ee4@sha256:77\n5.0 MB freed\n"},
		{"--dry-run", ee4 + " quay.io/ee4@sha256:77\n5.0 MB would be free\n"},
		{"--all -n", ee3 + " quay.io/app:v1\n" + ee4 + " quay.io/ee4@sha256:77\n25.0 MB would be free\n"},
		{"--all", ee3 + " quay.io/app:v1\n" + ee4 + " quay.io/ee4@sha256:77\n25.0 MB freed\n"},
		{"--all --older-than 1d", ee3 + " quay.io/app:v1\n20.0 MB freed\n"},
		{"--all --older-than 31h", "0 B freed\n"},
	} {
		d := stocked(t)
		out, errs, code := d.berth(t, append([]string{"image", "prune"}, strings.Fields(c.flags)...)...)
		if out != c.want || code != 0 {
			t.Errorf("%s: code %d, %s\n%s\nwant\n%s", c.flags, code, errs, out, c.want)
		}
		want := 4 - strings.Count(c.want, "sha256:ee")
		if strings.Contains(c.want, "would") {
			want = 4
		}
		if len(d.images) != want || d.images[0].Id != ee1 {
			t.Errorf("%s: left %v", c.flags, d.images)
		}
	}
	d := stocked(t)
	for _, wrong := range []string{"-5m", "x", "-1d", "99999999d"} {
		if _, errs, code := d.berth(t, "image", "prune", "--older-than="+wrong); code != 2 || !strings.Contains(errs,
			"--older-than") {
			t.Errorf("%s: code %d, %s", wrong, code, errs)
		}
	}
	d.refuse["RemoveImage"] = status.Error(codes.Internal, "the disk is broken")
	if _, errs, code := d.berth(t, "image", "prune"); code != 1 ||
		!strings.Contains(errs, "quay.io/ee4@sha256:77: the disk is broken") {
		t.Errorf("code %d, %s", code, errs)
	}
}

func TestImageRemoveMindsContainers(t *testing.T) {
	d := stocked(t)
	d.containers[2].ImageId = "sha256:" + id("ee1")
	out, errs, code := d.berth(t, "image", "rm", "ee1", "ee4")
	if code != 1 || out != "ee4\n" || !strings.Contains(errs, "remove image ee1: used by container nginx (c20000000000) "+
		"and 1 more: remove that first (berth rm), or use --force") {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	if out, errs, code := d.berth(t, "rmi", "-f", "ee1"); code != 0 || out != "ee1\n" {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	if len(d.images) != 2 {
		t.Errorf("left %v", d.images)
	}
}

func TestImageExport(t *testing.T) {
	d := stocked(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "a.tar")
	written := func() string {
		raw, _ := os.ReadFile(file)
		left, _ := filepath.Glob(dir + "/.*part*")
		return string(raw) + strings.Join(left, " ")
	}
	if out, errs, code := d.berth(t, "image", "export", "ee3", "quay.io/app:v1"); out != "[sha256:"+id("ee3")+
		" quay.io/app:v1] oci false" || errs != "" || code != 0 {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	if out, errs, code := d.berth(t, "image", "export", "-o", file, "--format", "docker", "--compress",
		"quay.io/app:v1"); code != 0 || out+errs != "" || written() != "[quay.io/app:v1] docker true" {
		t.Errorf("code %d, %q %q, %q", code, out, errs, written())
	}
	d.exportFails = status.Error(codes.DataLoss, "layer x: its files have changed on disk: /etc/passwd has other content")
	if _, errs, code := d.berth(t, "image", "export", "-o", file, "quay.io/app:v1"); code != 1 ||
		!strings.Contains(errs, "/etc/passwd") || written() != "[quay.io/app:v1] docker true" {
		t.Errorf("a failure touched what was there: code %d, %q, %q", code, errs, written())
	}
	d.exportFails = nil
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"", 2, "an argument is missing"},
		{"--format zip quay.io/app:v1", 2, "oci and docker"},
		{"nobody", 3, `there is no image "nobody"`},
		{"-o /dev/full quay.io/app:v1", 6, "no space left"},
		{"-o /no/such/dir/f quay.io/app:v1", 1, "/no/such/dir"},
	} {
		_, errs, code := d.berth(t, append([]string{"image", "export"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%s: code %d, %q", c.args, code, errs)
		}
	}
	if out, _, _ := d.berth(t, "__complete", "image", "export", "quay"); !strings.HasPrefix(out, "quay.io/app:v1\n") {
		t.Errorf("completion: %q", out)
	}
}

func TestSentReaderTellsTheEnd(t *testing.T) {
	var last admin.PullEvent
	r := &sentReader{r: strings.NewReader("archive"), total: 7, tell: func(e admin.PullEvent) { last = e }}
	buf := make([]byte, 3)
	for n, err := r.Read(buf); err == nil; n, err = r.Read(buf) {
		if n == 0 {
			t.Fatal("nothing was read")
		}
	}
	if last.Done != 7 || last.Total != 7 || bar(last, 80) != "archive sending     ["+strings.Repeat("=", 38)+
		"]  7 B / 7 B" {
		t.Errorf("%+v: %q", last, bar(last, 80))
	}
}

// TestRemoveByName takes one of several names away, as Docker does, and removes the image with the last.
func TestRemoveByName(t *testing.T) {
	d := startDaemon(t)
	names := []string{"docker.io/library/busybox:latest", "docker.io/my/app:v1", "docker.io/my/app:v2"}
	d.images = []*runtimeapi.Image{{Id: "sha256:" + id("ee"), RepoTags: slices.Clone(names)}}
	for i, name := range []string{"docker.io/my/app:v1", "docker.io/library/busybox:latest", "docker.io/my/app:v2"} {
		if out, errs, code := d.berth(t, "rmi", name); out != name+"\n" || code != 0 {
			t.Errorf("rmi %s: code %d, %q, %q", name, code, out, errs)
		}
		if want := i == 2; (len(d.images) == 0) != want || !want && slices.Contains(d.images[0].RepoTags, name) {
			t.Errorf("after rmi %s there is %v", name, d.images)
		}
	}
	d.images = []*runtimeapi.Image{{Id: "sha256:" + id("ee"), RepoTags: slices.Clone(names)}}
	if _, errs, code := d.berth(t, "rmi", id("ee")[:12]); code != 0 || len(d.images) != 0 {
		t.Errorf("by the beginning of its id: code %d, %q, %v", code, errs, d.images)
	}
	for word, want := range map[string]string{
		"busybox": names[0], "busybox:latest": names[0], "my/app:v2": names[2], "my/app": "", id("ee"): "",
		names[1]: names[1],
	} {
		if tag := tagOf(&runtimeapi.Image{RepoTags: names}, word); tag != want {
			t.Errorf("%s is taken for the tag %q", word, tag)
		}
	}
}
