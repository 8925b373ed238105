package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

// runnable is a daemon with one image.
func runnable(t *testing.T) (*daemon, string) {
	d := startDaemon(t)
	d.images = []*runtimeapi.Image{{Id: "sha256:" + id("ee1"), RepoTags: []string{"img:1"}}}
	return d, filepath.Join(d.dir, "logs")
}

func (d *daemon) onlyRequest(t *testing.T) (*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {
	t.Helper()
	if len(d.configs) != 1 || len(d.requests) != 1 {
		t.Fatalf("%d pods and %d containers were asked for", len(d.configs), len(d.requests))
	}
	for _, p := range d.configs {
		for _, c := range d.requests {
			return p, c
		}
	}
	panic("unreachable")
}

func TestRunShowsOutputAndPassesTheExitCodeOn(t *testing.T) {
	d, logs := runnable(t)
	d.behave = func(l *life) int32 {
		l.log("stdout", "P", "hel")
		l.log("stderr", "F", "oops")
		l.log("stdout", "F", "lo")
		return 7
	}
	out, errs, code := d.berth(t, "run", "--log-dir", logs, "--name", "web", "--rm", "img:1")
	if out != "hello\n" || errs != "oops\n" || code != 7 {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	if len(d.pods) != 0 || len(d.containers) != 0 {
		t.Errorf("--rm left %v %v", d.pods, d.containers)
	}
	if _, err := os.Stat(logs); !absent(err) {
		t.Errorf("--rm left the logs: %v", err)
	}
}

func TestRunWithoutRemovalStopsThePodAndKeepsTheLog(t *testing.T) {
	d, logs := runnable(t)
	d.behave = func(l *life) int32 { l.log("stdout", "F", "x"); return 0 }
	if _, errs, code := d.berth(t, "run", "--log-dir", logs, "--name", "web", "img:1"); code != 0 {
		t.Fatalf("code %d, %q", code, errs)
	}
	if !d.called("StopPodSandbox") || d.called("RemovePodSandbox") {
		t.Errorf("calls: %v", d.calls)
	}
	if out, errs, _ := d.berth(t, "logs", "web"); out != "x\n" {
		t.Errorf("the log has %q %q", out, errs)
	}
	if _, errs, code := d.berth(t, "run", "--log-dir", logs, "--name", "web", "img:1"); code != ownFailure || !strings.Contains(errs, "berth rm -f web removes it") {
		t.Errorf("the same name again: code %d, %q", code, errs)
	}
	if _, errs, code := d.berth(t, "rm", "web"); code != 0 || len(d.pods) != 0 {
		t.Errorf("rm: code %d, %q", code, errs)
	}
	if _, err := os.Stat(logs); !absent(err) {
		t.Errorf("rm left the logs: %v", err)
	}
}

func TestRunAsksForWhatWasSaid(t *testing.T) {
	d, logs := runnable(t)
	t.Setenv("PASSED", "on")
	out, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "web", "-e", "A=b=c", "-e", "PASSED", "-v", "/etc:/x:ro", "-v", "rel:/y",
		"-p", "8080:80", "-p", "127.0.0.1:53:53/udp", "--runtime", "fast", "--storage", "2Gi", "--storage-inodes", "10k",
		"--log-rate", "100k", "--log-burst", "1Mi",
		"img:1", "prog", "-x", "--rm")
	if code != 0 {
		t.Fatalf("code %d, %q", code, errs)
	}
	pod, ctr := d.onlyRequest(t)
	if out != fmt.Sprintf("%064x\n", 0xc0000) {
		t.Errorf("-d printed %q", out)
	}
	rel, _ := filepath.Abs("rel")
	want := &runtimeapi.ContainerConfig{
		Metadata: ctr.Metadata, Image: &runtimeapi.ImageSpec{Image: "sha256:" + id("ee1"), UserSpecifiedImage: "img:1"},
		Args:   []string{"prog", "-x", "--rm"},
		Envs:   []*runtimeapi.KeyValue{{Key: "A", Value: []byte("b=c")}, {Key: "PASSED", Value: []byte("on")}},
		Mounts: []*runtimeapi.Mount{{HostPath: "/etc", ContainerPath: "/x", Readonly: true}, {HostPath: rel, ContainerPath: "/y"}},
		Labels: map[string]string{runLabel: "web"}, LogPath: "web.log", Linux: ctr.Linux,
	}
	if !proto.Equal(ctr, want) {
		t.Errorf("container %v\nwant      %v", ctr, want)
	}
	s := ctr.Linux.SecurityContext
	if len(s.MaskedPaths) == 0 || len(s.ReadonlyPaths) == 0 || s.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault || s.Privileged {
		t.Errorf("security %v", s)
	}
	ports := []*runtimeapi.PortMapping{{HostPort: 8080, ContainerPort: 80}, {HostPort: 53, ContainerPort: 53, HostIp: "127.0.0.1", Protocol: runtimeapi.Protocol_UDP}}
	for i, p := range pod.PortMappings {
		if !proto.Equal(p, ports[i]) {
			t.Errorf("port %v, want %v", p, ports[i])
		}
	}
	if pod.Hostname != "web" || d.pods[0].RuntimeHandler != "fast" || pod.LogDirectory != filepath.Join(logs, "web_"+pod.Metadata.Uid) {
		t.Errorf("pod %v", pod)
	}
	if pod.Linux.SecurityContext.NamespaceOptions.Network != runtimeapi.NamespaceMode_POD {
		t.Errorf("network %v", pod.Linux.SecurityContext.NamespaceOptions)
	}
	if a := pod.Annotations; a["pod.berth/storage-size"] != "2Gi" || a["pod.berth/storage-inodes"] != "10k" ||
		a["pod.berth/log-rate"] != "100k" || a["pod.berth/log-burst"] != "1Mi" {
		t.Errorf("annotations %v", a)
	}
}

func TestRunPrivilegedOnTheHostNetwork(t *testing.T) {
	d, logs := runnable(t)
	if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--net", "host", "--privileged", "ee1000", "x"); code != 0 {
		t.Fatalf("code %d, %q", code, errs)
	}
	pod, ctr := d.onlyRequest(t)
	s := ctr.Linux.SecurityContext
	if !s.Privileged || s.MaskedPaths != nil || s.Seccomp.ProfileType != runtimeapi.SecurityProfile_Unconfined ||
		s.NamespaceOptions.Network != runtimeapi.NamespaceMode_NODE {
		t.Errorf("container security %v", s)
	}
	p := pod.Linux.SecurityContext
	if !p.Privileged || p.NamespaceOptions.Network != runtimeapi.NamespaceMode_NODE || pod.Hostname != "" {
		t.Errorf("pod %v", pod)
	}
	if name := pod.Metadata.Name; !strings.HasPrefix(name, "run-") {
		t.Errorf("an id became the name %q", name)
	}
}

func TestRunPullsWhatIsMissing(t *testing.T) {
	d, logs := runnable(t)
	d.pulled = []admin.PullEvent{{Layer: "sha256:5", Phase: "done"}, {Image: "sha256:new"}}
	out, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "quay.io/a/Web_Server:2@sha256:11")
	if code != 0 || errs != "layer 5: done\n" || strings.Contains(out, "layer") {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	pod, ctr := d.onlyRequest(t)
	if ctr.Image.Image != "sha256:new" || !strings.HasPrefix(pod.Metadata.Name, "web-server-") {
		t.Errorf("image %v, name %s", ctr.Image, pod.Metadata.Name)
	}
}

func TestRunUndoesWhatItMade(t *testing.T) {
	for _, step := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
		t.Run(step, func(t *testing.T) {
			d, logs := runnable(t)
			d.refuse[step] = status.Error(codes.Internal, "no luck")
			_, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "web", "img:1")
			if code != ownFailure || !strings.Contains(errs, "no luck") || len(d.pods) != 0 {
				t.Errorf("code %d, %q, pods %v", code, errs, d.pods)
			}
			if _, err := os.Stat(logs); !absent(err) {
				t.Errorf("the logs are left: %v", err)
			}
		})
	}
}

func TestRunRefusesNonsense(t *testing.T) {
	d, _ := runnable(t)
	for flags, want := range map[string]string{
		"--net bridge":      "there is pod and host",
		"--net host -p 1:1": "no meaning",
		"-d --rm":           "leave out -d",
		"-it":               "needs a terminal",
		"-e =x":             "NAME=VALUE",
		"-e NO_SUCH_THING":  "no such variable",
		"-v /x":             "HOST:CONTAINER",
		"-v /x:y":           "must begin with /",
		"-v /x:/y:rx":       "ro and rw",
		"-p 80":             "names one port",
		"-p 80:0":           `"0" is not a port`,
		"-p 70000:1":        "is not a port",
		"-p 80:80/icmp":     "tcp, udp and sctp",
		"-p x:80:80":        "not an address",
		"--name Bad_Name":   "a name is",
	} {
		args := append(append([]string{"run"}, strings.Fields(flags)...), "img:1")
		if _, errs, code := d.berth(t, args...); code != ownFailure || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q, want %q", flags, code, errs, want)
		}
	}
	if len(d.configs) != 0 {
		t.Errorf("pods were made: %v", d.configs)
	}
}

func TestInterruptStopsTheContainer(t *testing.T) {
	d, logs := runnable(t)
	d.behave = func(l *life) int32 {
		l.log("stdout", "F", "working")
		<-l.stop
		l.log("stdout", "F", "bye")
		return 143
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !d.called("ContainerStatus") { // which follows a start that has succeeded
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	out, errs, code := d.berthIn(ctx, strings.NewReader(""), "run", "--rm", "--log-dir", logs, "img:1")
	if out != "working\nbye\n" || code != 143 || len(d.pods) != 0 {
		t.Errorf("code %d, %q %q, pods %v", code, out, errs, d.pods)
	}
}

func TestRunTellsAnUnusualEnd(t *testing.T) {
	d, logs := runnable(t)
	d.behave = func(*life) int32 {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.containers[0].Reason = "OOMKilled"
		return 137
	}
	if _, errs, code := d.berth(t, "run", "--rm", "--log-dir", logs, "img:1"); code != 137 || !strings.Contains(errs, "OOMKilled") {
		t.Errorf("code %d, %q", code, errs)
	}
}

// cat is a container that gives back what is typed, until the end of its input; then it ends.
func cat(end chan struct{}) func(func() (*admin.AttachInput, error), func(*admin.AttachOutput) error) error {
	return func(recv func() (*admin.AttachInput, error), send func(*admin.AttachOutput) error) error {
		if err := send(&admin.AttachOutput{Ready: true}); err != nil {
			return err
		}
		for {
			in, err := recv()
			if err != nil {
				return err
			}
			switch {
			case in.Resize != nil:
				err = send(&admin.AttachOutput{Stdout: fmt.Appendf(nil, "<%dx%d>", in.Resize.Width, in.Resize.Height)})
			case in.CloseStdin || strings.Contains(string(in.Stdin), "\x04"):
				close(end)
				return nil
			default:
				err = send(&admin.AttachOutput{Stdout: in.Stdin})
			}
			if err != nil {
				return err
			}
		}
	}
}

func TestRunWithInput(t *testing.T) {
	d, logs := runnable(t)
	end := make(chan struct{})
	d.attach = cat(end)
	shown := &safeBuffer{}
	d.behave = func(*life) int32 {
		<-end
		until(func() bool { return shown.String() == "piped in" }) // once it has ended its output is not waited for much longer
		return 3
	}
	errs, code := d.berthTo(t.Context(), strings.NewReader("piped in"), shown, "run", "-i", "--rm", "--log-dir", logs, "img:1")
	if out := shown.String(); out != "piped in" || code != 3 || len(d.pods) != 0 {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	for _, c := range d.requests {
		if !c.Stdin || !c.StdinOnce || c.Tty {
			t.Errorf("asked for %v", c)
		}
	}
}

// TestRunShowsWhatIsLate has a machine so busy that the last output comes some seconds after the end of the container.
func TestRunShowsWhatIsLate(t *testing.T) {
	d, logs := runnable(t)
	end := make(chan struct{})
	d.attach = func(_ func() (*admin.AttachInput, error), send func(*admin.AttachOutput) error) error {
		_ = send(&admin.AttachOutput{Ready: true})
		<-end
		time.Sleep(3 * time.Second)
		return send(&admin.AttachOutput{Stdout: []byte("late")})
	}
	d.behave = func(*life) int32 { close(end); return 0 }
	if out, errs, code := d.berth(t, "run", "-i", "--rm", "--log-dir", logs, "img:1"); out != "late" || code != 0 {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
}

func TestRunWhoseAttachFailsIsUndone(t *testing.T) {
	d, logs := runnable(t)
	d.attach = func(func() (*admin.AttachInput, error), func(*admin.AttachOutput) error) error {
		return errors.New("no stream")
	}
	_, errs, code := d.berth(t, "run", "-i", "--log-dir", logs, "img:1")
	if code != ownFailure || !strings.Contains(errs, "no stream") || len(d.pods) != 0 || d.called("StartContainer") {
		t.Errorf("code %d, %q, pods %v", code, errs, d.pods)
	}
}
