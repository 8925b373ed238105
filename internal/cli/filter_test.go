package cli

import (
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ids are the short ids that a list printed, one a line.
func ids(out string) string {
	var all []string
	for line := range strings.Lines(out) {
		all = append(all, strings.TrimRight(strings.TrimSpace(line), "0"))
	}
	return strings.Join(all, " ")
}

func TestFilters(t *testing.T) {
	d := populated(t)
	for i, c := range d.containers { // their order is that of their ages
		c.CreatedAt = time.Now().Add(-time.Duration(i) * time.Hour).UnixNano()
	}
	d.containers[1].Labels, d.pods[0].Labels = map[string]string{"tier": "front"}, map[string]string{"app": "x"}
	d.containers[0].ImageId = "sha256:" + id("ee1")
	d.containers[1].Image = &runtimeapi.ImageSpec{UserSpecifiedImage: "docker.io/library/nginx:1.27"}
	for args, want := range map[string]string{
		"ps":                                    "c2 c3",
		"ps -a":                                 "c1 c2 c3 c4",
		"ls -a":                                 "c1 c2 c3 c4",
		"ps -l":                                 "c1",
		"ps -n 3":                               "c1 c2 c3",
		"ps -a --name ^ng":                      "c1 c2",
		"ps -a --filter name=side":              "c4",
		"ps --state exited":                     "c1",
		"ps -s Created":                         "c4",
		"ps -f status=created":                  "c4",
		"ps --label tier":                       "c2",
		"ps --label tier=front --label tier":    "c2",
		"ps --label tier=back":                  "",
		"ps -f label=tier=front":                "c2",
		"ps -a --namespace prod":                "c3 c4",
		"ps -a -f namespace=prod -f name=post":  "c3",
		"ps -a --pod db":                        "c3 c4",
		"ps -a -p aa11":                         "c1 c2",
		"ps -a --id c4":                         "c4",
		"ps -a --image nginx":                   "c2",
		"ps -a --image nginx:1.27":              "c2",
		"ps -a -f ancestor=ee1":                 "c1",
		"ps -a --image docker.io/library/nginx": "c2",
		"ps -f exited=137":                      "c1",
		"ps -f exited=0":                        "",
		"ps -f exited=0 -f exited=137":          "c1",
		"ps -a -f name=side -f name=^ng":        "c1 c2 c4",
		"ps -f status=exited -s created":        "c1 c4",
		"ps -a -f id=c4 -f id=c1 --pod db":      "c4",
		"ps -a --pod db --pod aa11":             "c1 c2 c3 c4",
		"ps -a --image ee1 --image nginx":       "c1 c2",
		"ps -f label=tier -f label=other":       "",
		"ps -f namespace= -f name=":             "c2 c3",
		"ps -f exited= -f status=":              "c2 c3",
		"pods -f id=aa11 -f id=aa22":            "aa11 aa22",
		"pods":                                  "aa11 aa22",
		"pods --namespace prod":                 "aa22",
		"pods --name w":                         "aa11",
		"pods -l":                               "aa11",
		"pods --label app=x":                    "aa11",
		"pods -f label=app=y":                   "",
		"pods --state ready":                    "aa11 aa22",
		"pods -s NotReady":                      "",
		"pod ls --id aa22":                      "aa22",
		"container ls --pod db":                 "c3",
	} {
		out, errs, code := d.berth(t, append(strings.Fields(args), "-q")...)
		if ids(out) != want || code != 0 {
			t.Errorf("%s: code %d, %q %q, want %s", args, code, out, errs, want)
		}
	}
	for args, want := range map[string]string{
		"ps --filter colour=red": "there is id=", "ps -f name": "there is id=", "ps --name (": "missing closing",
		"pods -f x":                "there is",
		"images -f dangling=maybe": "true or false", "images -f before=x": "reference=",
	} {
		if _, errs, code := d.berth(t, strings.Fields(args)...); code != 2 || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q, want %q", args, code, errs, want)
		}
	}
	if out, _, _ := d.berth(t, "ps", "-q", "--no-trunc"); out != id("c2")+"\n"+id("c3")+"\n" {
		t.Errorf("whole ids: %q", out)
	}
	if out, _, _ := d.berth(t, "ps", "-f", "exited=137", "-o", "json"); !strings.Contains(out, id("c1")) ||
		strings.Contains(out, id("c2")) {
		t.Errorf("as JSON: %s", out)
	}
}

func TestImageFilters(t *testing.T) {
	d := populated(t)
	for args, want := range map[string]string{
		"": "ee1 ee2", "nginx": "ee1", "nginx:latest": "ee1", "docker.io/library/nginx": "ee1", "quay.io/*": "ee2",
		"quay.io/x": "ee2",
		"busybox":   "", "-f reference=nginx": "ee1", "-f dangling=true": "ee2", "-f dangling=false": "ee1",
		"--dangling": "ee2", "-a": "ee1 ee2",
	} {
		out, errs, code := d.berth(t, append(append([]string{"images"}, strings.Fields(args)...), "-q")...)
		if got := strings.ReplaceAll(ids(out), "sha256:", ""); got != want || code != 0 {
			t.Errorf("%s: code %d, %q %q, want %s", args, code, out, errs, want)
		}
	}
}

func TestPortsOfAPod(t *testing.T) {
	d, logs := runnable(t)
	d.behave = func(l *life) int32 { <-l.stop; return 0 }
	if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "web", "-p", "83:80", "-p",
		"127.9.9.9:53:53/udp", "img:1"); code != 0 {
		t.Fatal(errs)
	}
	if out, _, _ := d.berth(t, "ps"); !strings.Contains(out, "83->80/tcp, 127.9.9.9:53->53/udp") {
		t.Errorf("ps: %s", out)
	}
	for args, want := range map[string]string{
		"web":        "80/tcp -> 0.0.0.0:83\n53/udp -> 127.9.9.9:53\n",
		"web 80":     "0.0.0.0:83\n",
		"web 53/udp": "127.9.9.9:53\n",
		"web 53":     "",
	} {
		out, errs, code := d.berth(t, append([]string{"port"}, strings.Fields(args)...)...)
		if out != want || (code != 0) != (want == "") {
			t.Errorf("port %s: code %d, %q %q", args, code, out, errs)
		}
	}
}

func TestMoments(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "10m": now.Add(-10 * time.Minute), "2026-01-31T11:00:00Z": now.Add(-time.Hour),
		"1769857200": now.Add(-time.Hour),
		"2026-01-30": time.Date(2026, 1, 30, 0, 0, 0, 0, time.Local), "1769857200.5": now.Add(-time.Hour +
			500*time.Millisecond),
	} {
		if got, err := parseMoment(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	if _, err := parseMoment("yesterday", now); err == nil {
		t.Error("yesterday is a time")
	}
}
