package cli

import (
	"fmt"
	"net"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestPortsAreNotTakenAway asks for ports that others have: a pod that is ready, and a program.
func TestPortsAreNotTakenAway(t *testing.T) {
	d, logs := runnable(t)
	d.behave = func(l *life) int32 { <-l.stop; return 0 }
	run := func(name, port string) (string, int) {
		_, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", name, "-p", port, "img:1")
		return errs, code
	}
	if errs, code := run("web", "83:80"); code != 0 {
		t.Fatal(errs)
	}
	if errs, code := run("local", "127.9.9.9:84:80"); code != 0 {
		t.Fatal(errs)
	}
	l, err := net.Listen("tcp", "127.9.9.9:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	theirs := l.Addr().(*net.TCPAddr).Port
	web, local := " of this machine leads to pod web already; berth rm -f web removes that",
		" of this machine leads to pod local already; berth rm -f local removes that"
	for _, c := range []struct{ port, want string }{
		{"83:8080", "port 83/tcp" + web},
		{"127.9.9.9:83:80", "port 127.9.9.9:83/tcp" + web},
		{"0.0.0.0:84:80", "port 0.0.0.0:84/tcp" + local},
		{fmt.Sprintf("127.9.9.9:%d:80", theirs), fmt.Sprintf("a program of this machine listens at port "+
			"127.9.9.9:%d/tcp already; ss -lntup tells which", theirs)},
		{"127.9.9.8:84:80", ""},
		{"83:80/udp", ""},
	} {
		pods := len(d.pods)
		errs, code := run("x", c.port)
		if c.want == "" {
			if _, more, removed := d.berth(t, "rm", "-f", "x"); code != 0 || removed != 0 {
				t.Errorf("-p %s: code %d, %q, %q", c.port, code, errs, more)
			}
			continue
		}
		if code != 125 || errs != "berth: "+c.want+"\n" || len(d.pods) != pods {
			t.Errorf("-p %s: code %d, %q, want %q", c.port, code, errs, c.want)
		}
	}
	_, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "-p", "85:80", "-p", "85:81", "img:1")
	if code != 125 || !strings.Contains(errs, "port 85/tcp of this machine is asked for twice") {
		t.Errorf("one port twice: code %d, %q", code, errs)
	}
	for _, p := range d.pods {
		p.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY // and their ports are free
	}
	if errs, code := run("x", "83:80"); code != 0 {
		t.Error(errs)
	}
	if _, errs, code := d.berth(t, "start", "web"); code != 1 || !strings.Contains(errs, "leads to pod x already") {
		t.Errorf("code %d, %q", code, errs)
	}
}
