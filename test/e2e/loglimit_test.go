package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// TestLogLimits has containers log more than their handler, their pod or an annotation of their own lets them: they are
// not held up, and the log, events and metrics say what was dropped.
func TestLogLimits(t *testing.T) {
	for i, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(runtime)
			if err != nil {
				t.Fatal(err)
			}
			metrics := fmt.Sprintf("127.0.0.1:%d", 9424+i)
			r := ownNode(t, node.Options{Runtime: runtime, Tables: fmt.Sprintf(`
[runtimes.limited]
path = %q
log_rate = 20000
max_log_rate = 50000
[metrics]
address = %q
`, program, metrics)})
			r.pull("busybox:latest")
			events, out := r.n.Command("events", "--kind", "limit"), &buffer{}
			events.Stdout, events.Stderr = out, out
			r.ok(r.n.Space.Start(events))
			defer func() {
				_ = events.Process.Signal(os.Interrupt)
				r.ok(events.Wait())
			}()
			r.eventually("berth events listens", func() bool { return strings.HasPrefix(out.String(), "TIME") })
			own := "log-rate.berth/loud"
			var lines, bytes int64
			for i, c := range []struct {
				handler, annotation, value string
				rate                       int64
			}{
				{"limited", "", "", 20000},
				{"limited", "pod.berth/log-rate", "40k", 40000},
				{"limited", own, "50k", 50000},
				{"", own, "10k", 10000},
				{"", "pod.berth/log-rate", "60Ki", 60 << 10}, // an emulated processor writes no MiB a second
				{"", "log-rate.berth/other", "10k", 0},
				{"", "", "", 0},
			} {
				name := func(pc *v1.PodSandboxConfig) { pc.Metadata.Name = fmt.Sprint("log-", i) }
				edits := []func(*v1.PodSandboxConfig){name}
				if c.annotation != "" {
					edits = append(edits, annotated(c.annotation, c.value))
				}
				p := r.podOf(c.handler, edits...)
				l, b := p.start(busybox("loud", "seq 1 400000")).wantLimited(c.rate, 400000)
				lines, bytes = lines+l, bytes+b
				p.remove()
			}
			r.eventually("the events are told", func() bool {
				return strings.Contains(out.String(), "LogLimit: ") &&
					strings.Contains(out.String(), "limited to 10000 bytes a second")
			})
			text, err := r.n.Get("http://" + metrics + "/metrics")
			r.ok(err)
			for name, want := range map[string]int64{
				"berth_log_dropped_lines_total": lines, "berth_log_dropped_bytes_total": bytes,
			} {
				m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
				if len(m) != 2 {
					r.Fatalf("there is no %s", name)
				}
				if got, err := strconv.ParseFloat(m[1], 64); err != nil || int64(got) != want {
					r.Errorf("%s is %s, wanted %d", name, m[1], want)
				}
			}
			for annotation, value := range map[string]string{
				"pod.berth/log-rate": "60k", own: "60k", "log-burst.berth/any": "60Mi", "pod.berth/log-burst": "1",
			} {
				_, err := r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod(unique(t), annotated(annotation, value)), "limited")
				r.wantCode(err, codes.InvalidArgument, annotation)
			}
		})
	}
}

// wantLimited waits for the end of a container that writes numbered lines, and wants its log to have all of them or, in
// place of those that are not there, as many told as dropped.
func (c *ctr) wantLimited(rate int64, all int64) (lines, bytes int64) {
	c.Helper()
	c.eventually("it has ended", func() bool { return c.status().State == v1.ContainerState_CONTAINER_EXITED })
	if s := c.status(); s.ExitCode != 0 {
		c.Errorf("code %d", s.ExitCode)
	}
	there := int64(0)
	for line := range strings.Lines(c.text("")) {
		if !strings.HasPrefix(line, "[berth:") {
			there++
			continue
		}
		var l, b, said int64
		_, err := fmt.Sscanf(line, "[berth: %d lines (%d bytes) were dropped: the log is limited to %d bytes a second]",
			&l, &b, &said)
		c.ok(err)
		if said != rate {
			c.Errorf("%q, wanted %d bytes a second", line, rate)
		}
		lines, bytes = lines+l, bytes+b
	}
	if there+lines != all || (lines > 0) != (rate > 0) {
		c.Errorf("a rate of %d: %d lines are there, %d were dropped, of %d", rate, there, lines, all)
	}
	resp, err := c.n.Runtime.ContainerStatus(ctx(), c.cid, true)
	c.ok(err)
	var info struct {
		Log struct{ Rate, DroppedLines, DroppedBytes int64 }
	}
	c.ok(json.Unmarshal([]byte(resp.Info["info"]), &info))
	if got := info.Log; got.Rate != rate || got.DroppedLines != lines || got.DroppedBytes != bytes {
		c.Errorf("the status says %+v, wanted %d, %d, %d", got, rate, lines, bytes)
	}
	return lines, bytes
}
