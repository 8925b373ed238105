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
	"berth/internal/sandbox"
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
	if left, err := os.ReadDir(logs); len(left) > 0 || err != nil && !absent(err) {
		t.Errorf("--rm left the logs: %v, %v", left, err)
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
	if _, errs, code := d.berth(t, "run", "--log-dir", logs, "--name", "web", "img:1"); code != ownFailure ||
		!strings.Contains(errs, "berth rm -f web removes it") {
		t.Errorf("the same name again: code %d, %q", code, errs)
	}
	if _, errs, code := d.berth(t, "rm", "web"); code != 0 || len(d.pods) != 0 {
		t.Errorf("rm: code %d, %q", code, errs)
	}
	if left, err := os.ReadDir(logs); len(left) > 0 || err != nil && !absent(err) {
		t.Errorf("rm left the logs: %v, %v", left, err)
	}
}

func TestRunAsksForWhatWasSaid(t *testing.T) {
	d, logs := runnable(t)
	t.Setenv("PASSED", "on")
	out, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "web", "-e", "A=b=c", "-e", "PASSED", "-v",
		"/etc:/x:ro", "-v", "./rel:/y",
		"-p", "83:80", "-p", "127.9.9.9:53:53/udp", "--runtime", "fast", "--storage", "2Gi", "--storage-inodes", "10k",
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
		Args: []string{"prog", "-x", "--rm"},
		Envs: []*runtimeapi.KeyValue{{Key: "A", Value: []byte("b=c")}, {Key: "PASSED", Value: []byte("on")}},
		Mounts: []*runtimeapi.Mount{{HostPath: "/etc", ContainerPath: "/x", Readonly: true},
			{HostPath: rel, ContainerPath: "/y"}},
		Labels: map[string]string{runLabel: "web"}, LogPath: "web.log", Linux: ctr.Linux,
	}
	if !proto.Equal(ctr, want) {
		t.Errorf("container %v\nwant      %v", ctr, want)
	}
	s := ctr.Linux.SecurityContext
	if len(s.MaskedPaths) == 0 || len(s.ReadonlyPaths) == 0 ||
		s.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault || s.Privileged {
		t.Errorf("security %v", s)
	}
	ports := []*runtimeapi.PortMapping{{HostPort: 83, ContainerPort: 80},
		{HostPort: 53, ContainerPort: 53, HostIp: "127.9.9.9", Protocol: runtimeapi.Protocol_UDP}}
	for i, p := range pod.PortMappings {
		if !proto.Equal(p, ports[i]) {
			t.Errorf("port %v, want %v", p, ports[i])
		}
	}
	if pod.Hostname != "web" || d.pods[0].RuntimeHandler != "fast" ||
		pod.LogDirectory != filepath.Join(logs, "web_"+pod.Metadata.Uid) {
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

// TestRunWithEveryFlag compares what is asked of the daemon, flag by flag.
func TestRunWithEveryFlag(t *testing.T) {
	d, logs := runnable(t)
	file := filepath.Join(d.dir, "env")
	if err := os.WriteFile(file, []byte("# no\n\nF=1 = 2\nPASSED\nNO_SUCH_THING\nG=x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PASSED", "on")
	_, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "all", "-u", "1000:50", "--group-add", "7",
		"-w", "/srv",
		"--entrypoint", "/bin/it", "--env-file", file, "-e", "G=y", "-l", "tier=web", "--annotation", "note=a=b", "-h",
		"host1",
		"-m", "512m", "--memory-swap", "1g", "--cpus", "1.5", "-c", "512", "--cpuset-cpus", "0-1", "--cpuset-mems", "0",
		"--pids-limit", "99", "--oom-score-adj", "300", "--cap-add", "NET_ADMIN", "--cap-drop", "ALL", "--read-only",
		"--device", "/dev/fuse", "--device", "/dev/a:/dev/b:r", "--device", "vendor.com/gpu=0", "--security-opt",
		"no-new-privileges", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=mine", "--security-opt",
		"label=type:t_t", "--security-opt", "systempaths=unconfined", "--pid", "pod", "--ipc", "host", "--tmpfs",
		"/run:size=1m", "--mount", "type=tmpfs,dst=/tmp,tmpfs-mode=700", "--mount",
		"type=bind,src=/etc,dst=/host,ro,bind-propagation=rslave",
		"--mount", "type=image,src=img:2,dst=/image", "--ulimit", "nofile=10:20", "--ulimit", "core=-1", "--shm-size", "1m",
		"--dns", "1.1.1.1", "--dns-search", "a.b", "--dns-opt", "ndots:1", "--sysctl", "net.core.somaxconn=9",
		"--stop-signal",
		"INT", "--network", "pod", "img:1", "arg")
	if code != 0 {
		t.Fatalf("code %d, %q", code, errs)
	}
	pod, ctr := d.onlyRequest(t)
	one := &runtimeapi.Int64Value{Value: 1000}
	want := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "all"}, LogPath: "all.log",
		Image:   &runtimeapi.ImageSpec{Image: "sha256:" + id("ee1"), UserSpecifiedImage: "img:1"},
		Command: []string{"/bin/it"}, Args: []string{"arg"}, WorkingDir: "/srv", StopSignal: sandbox.CRISignal(2),
		Envs: []*runtimeapi.KeyValue{{Key: "F", Value: []byte("1 = 2")}, {Key: "PASSED", Value: []byte("on")},
			{Key: "G", Value: []byte("x")}, {Key: "G", Value: []byte("y")}},
		Labels: map[string]string{runLabel: "all", "tier": "web"},
		Annotations: map[string]string{"note": "a=b", "container.berth/tmpfs": `["/run:size=1m","/tmp:mode=700"]`,
			"container.berth/ulimits": `[{"type":"RLIMIT_NOFILE","hard":20,"soft":10},` +
				`{"type":"RLIMIT_CORE","hard":18446744073709551615,"soft":18446744073709551615}]`},
		Mounts: []*runtimeapi.Mount{
			{HostPath: "/etc", ContainerPath: "/host", Readonly: true,
				Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
			{Image: &runtimeapi.ImageSpec{Image: "img:2"}, ContainerPath: "/image", Readonly: true},
		},
		Devices: []*runtimeapi.Device{{HostPath: "/dev/fuse", ContainerPath: "/dev/fuse", Permissions: "rwm"},
			{HostPath: "/dev/a", ContainerPath: "/dev/b", Permissions: "r"}},
		CDIDevices: []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=0"}},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 512 << 20, MemorySwapLimitInBytes: 1 << 30,
				CpuPeriod: 100_000, CpuQuota: 150_000, CpuShares: 512, CpusetCpus: "0-1", CpusetMems: "0", OomScoreAdj: 300,
				Unified: map[string]string{"pids.max": "99"}},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				Capabilities: &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}},
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD,
					Ipc: runtimeapi.NamespaceMode_NODE},
				RunAsUser: one, RunAsGroup: &runtimeapi.Int64Value{Value: 50}, SupplementalGroups: []int64{7},
				ReadonlyRootfs: true, NoNewPrivs: true, SelinuxOptions: &runtimeapi.SELinuxOption{Type: "t_t"},
				Seccomp:  &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined},
				Apparmor: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "mine"},
			},
		},
	}
	if !proto.Equal(ctr, want) {
		t.Errorf("container %v\nwant      %v", ctr, want)
	}
	dns := &runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: []string{"a.b"}, Options: []string{"ndots:1"}}
	if pod.Hostname != "host1" || pod.Labels["tier"] != "web" || pod.Annotations["note"] != "a=b" ||
		pod.Annotations["pod.berth/shm-size"] != "1048576" || pod.Linux.Sysctls["net.core.somaxconn"] != "9" ||
		!proto.Equal(pod.DnsConfig, dns) || pod.Linux.SecurityContext.NamespaceOptions.Pid != runtimeapi.NamespaceMode_POD {
		t.Errorf("pod %v", pod)
	}
}

// TestRunInThePodOfAnother has a second container in a pod of berth run: it comes and goes alone.
func TestRunInThePodOfAnother(t *testing.T) {
	d, logs := runnable(t)
	run := func(args ...string) (string, string, int) {
		return d.berth(t, append([]string{"run", "--log-dir", logs}, args...)...)
	}
	d.behave = func(l *life) int32 { l.log("stdout", "F", "x"); <-l.stop; return 0 }
	if _, errs, code := run("-d", "--name", "web", "-l", "a=b", "img:1"); code != 0 {
		t.Fatalf("code %d, %q", code, errs)
	}
	d.behave = func(l *life) int32 { l.log("stdout", "F", "side"); return 3 }
	if out, errs, code := d.berth(t, "run", "--pod", "web", "--name", "side", "img:1"); code != 3 || out != "side\n" {
		t.Fatalf("code %d, %q %q", code, out, errs)
	}
	if len(d.configs) != 1 || len(d.requests) != 2 || d.called("StopPodSandbox") {
		t.Errorf("%d pods, %d containers, calls %v", len(d.configs), len(d.requests), d.calls)
	}
	for args, want := range map[string]string{
		"--pod web --name side": "has a container side already", "--pod nope": "no pod",
		"--pod web --net host": "--net has no meaning",
		"--pod web -p 1:1":     "--publish has no meaning",
	} {
		all := append(append([]string{"run"}, strings.Fields(args)...), "img:1")
		if _, errs, code := d.berth(t, all...); code != ownFailure || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q, want %q", args, code, errs, want)
		}
	}
	d.addPod(id("aa"), "kube", "default")
	if _, errs, code := d.berth(t, "run", "--pod", "kube", "img:1"); code != ownFailure || !strings.Contains(errs,
		"did not make that pod") {
		t.Errorf("in a kubelet's pod: code %d, %q", code, errs)
	}
	log := d.containers[1].LogPath
	if _, errs, code := d.berth(t, "rm", "side"); code != 0 || len(d.containers) != 1 || len(d.pods) != 2 {
		t.Errorf("rm: code %d, %q, %d containers left", code, errs, len(d.containers))
	}
	if _, err := os.Stat(log); !absent(err) {
		t.Errorf("rm left the log: %v", err)
	}
	if _, errs, code := d.berth(t, "rm", "-f", "web"); code != 0 || len(d.pods) != 1 {
		t.Errorf("rm of the first: code %d, %q, %d pods", code, errs, len(d.pods))
	}
}

func TestRunPulls(t *testing.T) {
	for _, c := range []struct {
		flags, image string
		pulls        bool
		code         int
	}{
		{"--pull always", "img:1", true, 0}, {"--pull never", "img:1", false, 0}, {"--pull never", "img:2", false,
			ownFailure},
		{"--platform linux/arm64", "img:1", true, 0}, {"--platform linux/amd64", "img:1", false, 0},
		{"--platform amd64", "img:1", false, 0}, {"--platform Linux/x86_64", "img:1", false, 0},
		{"--platform linux/amd64/v3", "img:1", true, 0},
	} {
		d, logs := runnable(t)
		d.details = []admin.ImageDetail{{ID: "sha256:" + id("ee1"), Platform: "linux/amd64"}}
		d.pulled = []admin.PullEvent{{Image: "sha256:new"}}
		args := append([]string{"run", "-d", "--log-dir", logs}, append(strings.Fields(c.flags), c.image)...)
		_, errs, code := d.berth(t, args...)
		if code != c.code {
			t.Errorf("%s %s: code %d, %q", c.flags, c.image, code, errs)
		}
		if code != 0 {
			continue
		}
		if _, ctr := d.onlyRequest(t); (ctr.Image.Image == "sha256:new") != c.pulls {
			t.Errorf("%s %s: image %v", c.flags, c.image, ctr.Image)
		}
	}
}

// TestRunTellsWhatCannotBeExecuted has the words of runtimes, each as it was seen.
func TestRunTellsWhatCannotBeExecuted(t *testing.T) {
	for text, want := range map[string]int{
		`executable file 'nope' not found in $PATH: No such file or directory`: exitNoCommand,
		"executable file `/nope` not found: No such file or directory":         exitNoCommand,
		"the path `/etc` is not a regular file: Operation not permitted":       exitCannotInvoke,
		`exec: "nope": executable file not found in $PATH`:                     exitNoCommand,
		`exec: "/nope": stat /nope: no such file or directory`:                 exitNoCommand,
		`exec: "/etc/passwd": permission denied`:                               exitCannotInvoke,
		`open executable: Operation not permitted`:                             exitCannotInvoke,
		`open executable: Permission denied`:                                   exitCannotInvoke,
		`the disk is full`:                                                     ownFailure,
	} {
		for _, step := range []string{"CreateContainer", "StartContainer"} {
			d, logs := runnable(t)
			d.refuse[step] = status.Error(codes.Unknown, text)
			if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "img:1"); code != want {
				t.Errorf("%s: code %d, %q, want %d", text, code, errs, want)
			}
		}
	}
}

func TestRunPrivilegedOnTheHostNetwork(t *testing.T) {
	d, logs := runnable(t)
	if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--net", "host", "--privileged", "ee1000",
		"x"); code != 0 {
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
			if left, err := os.ReadDir(logs); len(left) > 0 || err != nil && !absent(err) {
				t.Errorf("the logs are left: %v, %v", left, err)
			}
		})
	}
}

// TestInterruptWhileItIsMade has ^C come while the daemon makes a pod or container, which it does to the end: nothing
// of it is left.
func TestInterruptWhileItIsMade(t *testing.T) {
	for args, step := range map[string]string{
		"--name two": "RunPodSandbox", "--name three": "CreateContainer", "--pod web --name side": "CreateContainer",
	} {
		d, logs := runnable(t)
		d.behave = func(l *life) int32 { <-l.stop; return 0 }
		if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "web", "img:1"); code != 0 {
			t.Fatal(errs)
		}
		d.outlives = step
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			until(func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return d.outlives == "" && (step == "RunPodSandbox" && len(d.pods) == 2 || len(d.containers) == 2)
			})
			cancel()
		}()
		all := append([]string{"run", "-d"}, strings.Fields(args)...)
		if !strings.Contains(args, "--pod") {
			all = append(all, "--log-dir", logs)
		}
		_, errs, code := d.berthIn(ctx, strings.NewReader(""), append(all, "img:1")...)
		if code != ownFailure || !strings.Contains(errs, "interrupted") {
			t.Errorf("%s: code %d, %q", args, code, errs)
		}
		if len(d.pods) != 1 || len(d.containers) != 1 || d.container(fmt.Sprintf("%064x", 0xc0000)) == nil {
			t.Errorf("%s: pods %v, containers %v", args, d.pods, d.containers)
		}
		if left, err := os.ReadDir(logs); err != nil || len(left) != 1 {
			t.Errorf("%s: logs %v, %v", args, left, err)
		}
	}
}

func TestRunRefusesNonsense(t *testing.T) {
	d, _ := runnable(t)
	for flags, want := range map[string]string{
		"--net mynet":                   "there is pod and host",
		"--net host -h x":               "--hostname has no meaning",
		"--pull sometimes":              "missing, always and never",
		"-m lots":                       "a size such as",
		"--cpus -1":                     "a number of processors",
		"--cpus NaN":                    "a number of processors",
		"-u :5":                         "USER or USER:GROUP",
		"-u a:b":                        "group must be a number",
		"--group-add wheel":             "number of a group",
		"--device fuse":                 "HOST[:CONTAINER]",
		"--device /dev/a:/b:rx":         "HOST[:CONTAINER]",
		"--security-opt secret=x":       "want no-new-privileges",
		"--security-opt label=x:y":      "user, role, type",
		"--pid container:x":             "there is pod and host",
		"--tmpfs tmp":                   "not a path",
		"--tmpfs /tmp:dev":              `"dev" is not one of`,
		"--mount src=/x,dst=y":          "must begin with /",
		"--mount dst=/y":                "src, what to mount",
		"--mount type=nfs,src=a,dst=/y": "bind, tmpfs and image",
		"--mount bogus=1,dst=/y":        `"bogus"`,
		"--ulimit files=1":              `no limit "files"`,
		"-l =x":                         "NAME=VALUE",
		"-l berth.run=other":            "begins with berth.run",
		"--env-file /no/such":           "/no/such",
		"--entrypoint [":                "a JSON list",
		"--stop-signal BOO":             "BOO",
		"--annotation berth.run/x=1":    "begins with berth.run",
		"--net host -p 1:1":             "no meaning",
		"-d --rm --restart always":      "do not go together",
		"-it":                           "needs a terminal",
		"-e =x":                         "NAME=VALUE",
		"-e NO_SUCH_THING":              "no such variable",
		"-v /x":                         "HOST:CONTAINER",
		"-v /x:y":                       "must begin with /",
		"-v data:/y":                    "no volumes with names: ./data is",
		"-v /x:/y:rx":                   "ro and rw",
		"-p 127.0.0.1":                  `"127.0.0.1" is not a port`,
		"-p a::80":                      "not an address",
		"--net host -P":                 "no meaning",
		"-p 80:0":                       `"0" is not a port`,
		"-p 70000:1":                    "is not a port",
		"-p 80:80/icmp":                 "tcp, udp and sctp",
		"-p x:80:80":                    "not an address",
		"--name Bad_Name":               "a name is",
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
	if _, errs, code := d.berth(t, "run", "--rm", "--log-dir", logs, "img:1"); code != 137 ||
		!strings.Contains(errs, "OOMKilled") {
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
		// once it has ended its output is not waited for much longer
		until(func() bool { return shown.String() == "piped in" })
		return 3
	}
	errs, code := d.berthTo(t.Context(), strings.NewReader("piped in"), shown, "run", "-i", "--rm", "--log-dir", logs,
		"img:1")
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
