package cli

import (
	"context"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

// TestHabits types what people know from other tools, and looks at what the daemon is asked.
func TestHabits(t *testing.T) {
	for args, want := range map[string]string{
		"inspectp web": `"kind": "pod"`, "inspecti ee1": `"kind": "image"`, "pod inspect db": `"kind": "pod"`,
		"stopp web":               "web\n",
		"container stop postgres": "postgres\n", "rmp -f db": id("aa22") + "\n", "pod rm -f db": id("aa22") + "\n",
		"statsp --no-stream": "PROCESSES",
		"container ls":       "postgres", "container inspect postgres": `"kind": "container"`,
		"rm -v -f postgres": "postgres\n",
		"info":              "runtime", "status": "runtime", "system info": "runtime", "system df": "layers",
		"save ee1": "[sha256:" +
			id("ee1") + "]",
	} {
		d := populated(t)
		d.info = admin.InfoResponse{Version: "v-x", Config: "root = \"/x\"\n"}
		out, errs, code := d.berth(t, strings.Fields(args)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: code %d, %q %q, want %q", args, code, out, errs, want)
		}
	}
}

func TestInfo(t *testing.T) {
	d := populated(t)
	d.info = admin.InfoResponse{Version: "v-x", Config: "root = \"/x\"\n", Problems: []admin.Problem{{Message: "m"}}}
	d.addPod(id("bb"), "own", runNamespace).Labels = map[string]string{runLabel: "own"}
	out, errs, code := d.berth(t, "info")
	for _, want := range []string{"version v-x", "runtime ready", "network not ready: NoConf: nothing in net.d",
		"pods 3, of which berth run made 1", "containers 4, of which 2 run", "images 2", "root /x",
		"problems 1; berth doctor tells of them",
		"cgroup driver systemd",
	} {
		if !strings.Contains(squeeze(out), want) || code != 0 {
			t.Errorf("code %d, %q: no %q in\n%s", code, errs, want, out)
		}
	}
	if out, _, code := d.berth(t, "info", "-o", "json"); code != 0 || !strings.Contains(out, `"NoConf"`) {
		t.Errorf("code %d, %s", code, out)
	}
}

func TestLoad(t *testing.T) {
	d := startDaemon(t)
	path := d.dir + "/a.tar"
	if err := os.WriteFile(path, []byte("tar"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"load", "-i", path}, {"load", "--input=" + path, "-q"}, {"load", path}} {
		if out, errs, code := d.berth(t, args...); out != "sha256:3-bytes a:1\n" || code != 0 {
			t.Errorf("%v: code %d, %q %q", args, code, out, errs)
		}
	}
	if out, _, code := d.berthIn(t.Context(), strings.NewReader("piped"), "load"); out != "sha256:5-bytes a:1\n" ||
		code != 0 {
		t.Errorf("code %d, %q", code, out)
	}
}

// TestAllIsWhatBerthRunMade has rm --all leave a kubelet's pods alone; rmp --all does not.
func TestAllIsWhatBerthRunMade(t *testing.T) {
	d := populated(t)
	for _, name := range []string{"b1", "b2"} {
		d.addPod(id(name), name, runNamespace).Labels = map[string]string{runLabel: name}
		d.addContainer(id("c"+name), id(name), name, 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	}
	if out, errs, code := d.berth(t, "stop", "--all"); out != id("b1")+"\n"+id("b2")+"\n" || code != 0 {
		t.Errorf("stop: code %d, %q %q", code, out, errs)
	}
	if _, errs, code := d.berth(t, "rm", "-a"); code != 1 || !strings.Contains(errs, "runs; stop it first") ||
		len(d.pods) != 4 {
		t.Errorf("rm -a of what runs: code %d, %q", code, errs)
	}
	if out, errs, code := d.berth(t, "rm", "-fa"); out != id("b1")+"\n"+id("b2")+"\n" || code != 0 || len(d.pods) != 2 {
		t.Errorf("rm: code %d, %q %q, %d pods are left", code, out, errs, len(d.pods))
	}
	if out, errs, code := d.berth(t, "rm", "-fa"); out != "" || code != 0 || len(d.pods) != 2 {
		t.Errorf("rm of nothing: code %d, %q %q", code, out, errs)
	}
	if _, errs, code := d.berth(t, "rm", "-a", "web"); code != 2 || !strings.Contains(errs, "too much") {
		t.Errorf("a name and all: code %d, %q", code, errs)
	}
	if _, errs, code := d.berth(t, "rmp", "nginx"); code != 3 || len(d.pods) != 2 {
		t.Errorf("rmp of a container: code %d, %q", code, errs)
	}
	if _, errs, code := d.berth(t, "rmp", "-fa"); code != 0 || len(d.pods) != 0 {
		t.Errorf("rmp: code %d, %q, %d pods are left", code, errs, len(d.pods))
	}
}

func TestWait(t *testing.T) {
	d, logs := runnable(t)
	let := make(chan struct{})
	d.behave = func(*life) int32 { <-let; return 7 }
	if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "job", "img:1"); code != 0 {
		t.Fatal(errs)
	}
	if _, errs, code := d.berth(t, "wait", "job", "nobody"); code != 3 || !strings.Contains(errs, "nobody") {
		t.Errorf("a wrong name is told at once: code %d, %q", code, errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d.forget("ContainerStatus")
	go func() { until(func() bool { return d.called("ContainerStatus") }); cancel() }()
	out, errs, code := d.berthIn(ctx, strings.NewReader(""), "wait", "job")
	if out != "" || code == 0 || !strings.Contains(errs, "interrupted") {
		t.Errorf("it has not ended: code %d, %q %q", code, out, errs)
	}
	close(let)
	if out, errs, code := d.berth(t, "wait", "job", "job"); out != "7\n7\n" || code != 0 {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
}

func TestUpdate(t *testing.T) {
	d := populated(t)
	if out, errs, code := d.berth(t, "update", "-m", "1g", "--cpus", "2", "postgres",
		"nginx"); out != "postgres\nnginx\n" || code != 0 {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
	if r := d.updated[id("c3")]; r.GetMemoryLimitInBytes() != 1<<30 || r.GetCpuQuota() != 200_000 ||
		r.GetCpuPeriod() != 100_000 ||
		r.GetCpuShares() != 0 {
		t.Errorf("updated %v", d.updated)
	}
	for args, want := range map[string]string{"update postgres": "say what to change",
		"update -m 1q postgres": "a size such as"} {
		if _, errs, code := d.berth(t, strings.Fields(args)...); code != 2 || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q", args, code, errs)
		}
	}
	if _, errs, code := d.berth(t, "update", "-m", "1g", "nobody", "postgres"); code != 3 || !strings.Contains(errs,
		"update nobody: ") {
		t.Errorf("code %d, %q", code, errs)
	}
}

// TestProcesses looks at a process whose name tries to break the line of /proc and that of a terminal.
func TestProcesses(t *testing.T) {
	cmd := exec.Command("sh", "-c", "printf 'x) (y\\033[2J' > /proc/self/comm; echo; sleep 60 >/dev/null & wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil { // it has its name
		t.Fatal(err)
	}
	p, err := readProcess(cmd.Process.Pid)
	if err != nil || p.parent != os.Getpid() || p.user != strconv.Itoa(os.Getuid()) || !strings.HasPrefix(p.command,
		"sh -c") {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := readProcess(1 << 30); err == nil {
		t.Error("a process that is not there has been read")
	}
}

func TestKill(t *testing.T) {
	d := populated(t)
	d.addPod(id("b1"), "own", runNamespace).Labels = map[string]string{runLabel: "own"}
	d.addContainer(id("cb1"), id("b1"), "own", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	d.addContainer(id("cb2"), id("b1"), "side", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	for args, want := range map[string]string{
		"kill postgres": "KILL c3", "kill -s HUP postgres": "HUP c3", "kill --signal 15 web": "15 c2", "kill own": "KILL cb1",
		"kill side": "KILL cb2", "container kill postgres": "KILL c3",
	} {
		d.signals = nil
		_, errs, code := d.berth(t, strings.Fields(args)...)
		var got []string
		for _, s := range d.signals {
			got = append(got, s.Signal+" "+strings.TrimRight(s.Container, "0"))
		}
		if strings.Join(got, ", ") != want || code != 0 {
			t.Errorf("%s: code %d, %q, %v, want %s", args, code, errs, got, want)
		}
	}
	d.refuse["Signal BOO"] = status.Error(codes.InvalidArgument, "BOO is not a signal")
	if _, errs, code := d.berth(t, "kill", "-s", "BOO", "postgres"); code != 2 || !strings.Contains(errs,
		"BOO is not a signal") {
		t.Errorf("code %d, %q", code, errs)
	}
}

func TestTag(t *testing.T) {
	d := populated(t)
	if _, errs, code := d.berth(t, "tag", "ee1", "a:1", "b:2"); code != 0 || len(d.tags) != 2 ||
		d.tags[1] != (admin.TagRequest{Image: "sha256:" + id("ee1"), Name: "b:2"}) {
		t.Errorf("code %d, %q, %v", code, errs, d.tags)
	}
	d.refuse["Tag A"] = status.Error(codes.InvalidArgument, "no name")
	if _, errs, code := d.berth(t, "image", "tag", "ee1", "A"); code != 2 || !strings.Contains(errs, "no name") {
		t.Errorf("code %d, %q", code, errs)
	}
	if _, errs, code := d.berth(t, "tag", "nope", "a"); code != 3 || !strings.Contains(errs, "nope") {
		t.Errorf("code %d, %q", code, errs)
	}
}

func TestExecAsAnother(t *testing.T) {
	d := populated(t)
	t.Setenv("PASSED", "on")
	file := d.dir + "/env"
	if err := os.WriteFile(file, []byte("F=1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, errs, code := d.berth(t, "exec", "-u", "www:1", "-w", "/srv", "--env-file", file, "-e", "A=b", "-e", "PASSED",
		"postgres", "ls")
	want := admin.ExecRequest{Container: id("c3"), Command: []string{"ls"}, User: "www:1", Dir: "/srv",
		Env: []string{"F=1", "A=b", "PASSED=on"}}
	if code != 0 || len(d.execs) != 1 || !reflect.DeepEqual(d.execs[0], want) {
		t.Errorf("code %d, %q, %+v", code, errs, d.execs)
	}
	if out, errs, code := d.berth(t, "exec", "-d", "postgres", "ls"); out != "" || code != 0 || !d.execs[1].Detach {
		t.Errorf("-d: code %d, %q %q, %+v", code, out, errs, d.execs)
	}
	for args, want := range map[string]string{"-d -i": "leaves the command alone",
		"-d --timeout 1s": "leaves the command alone", "-e =": "NAME=VALUE"} {
		args := append(append([]string{"exec"}, strings.Fields(args)...), "postgres", "ls")
		if _, errs, code := d.berth(t, args...); code != ownFailure || !strings.Contains(errs, want) {
			t.Errorf("%v: code %d, %q", args, code, errs)
		}
	}
	d.exec = func(context.Context, *admin.ExecRequest, func() (*admin.AttachInput, error),
		func(*admin.AttachOutput) error) error {
		return status.Error(codes.Unknown, `exec of ["nope"]: executable file 'nope' not found in $PATH`)
	}
	if _, errs, code := d.berth(t, "exec", "postgres", "nope"); code != exitNoCommand {
		t.Errorf("code %d, %q", code, errs)
	}
}
