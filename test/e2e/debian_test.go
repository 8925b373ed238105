package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"berth/test/fixture"
	"berth/test/node"
)

// debian pushes a real image to the shared registry and pulls it.
func (r rig) debian(name string) (reference string) {
	r.Helper()
	img, err := fixture.DebianImage(name)
	if err != nil {
		fixture.Unavailable(r.T, err)
	}
	r.push("debian/"+name+":v1", img)
	return r.pull("debian/" + name + ":v1")
}

// TestDebianBase asks dpkg whether the files are those of the packages.
func TestDebianBase(t *testing.T) {
	each(t, func(r rig) {
		script := "dpkg --verify | grep -v ^missing; dpkg-query -W | wc -l; stat -c %a /usr/bin/passwd"
		out := r.pod().output(node.Container("c", r.debian(fixture.DebianBase), []string{"/bin/bash", "-c", script}))
		var packages, mode int
		if _, err := fmt.Sscan(out, &packages, &mode); err != nil || packages < 50 || mode != 4755 {
			r.Errorf("changed files, the number of packages and the mode of passwd: %q", out)
		}
	})
}

func TestDebianPython(t *testing.T) {
	each(t, func(r rig) {
		p, image := r.pod(), r.debian(fixture.DebianPython)
		r.wantText("what the image runs", p.output(node.Container("c", image, nil)), "hello from 3")
		program := "import os; print(os.path.samefile('/usr/bin/env', '/usr/bin/env-again'), oct(os.stat('/app').st_mode), " +
			"os.stat('/app/hello.py').st_mtime_ns)"
		r.wantText("what Python sees", p.output(node.Container("d", image, []string{"python3", "-c", program})),
			"True 0o40711 1500000000123456789")
		// From Debian 13 on ping has no capability of its own, and the image no file that has one.
		program = "import os; f = '/usr/bin/ping'; a = 'security.capability'; print(len(os.getxattr(f, a)) if a in " +
			"os.listxattr(f) else open('/etc/debian_version').read())"
		cap := p.output(node.Container("e", image, []string{"python3", "-c", program}))
		if version, err := strconv.ParseFloat(strings.TrimSpace(cap), 64); err != nil || version != 20 && version < 13 {
			r.Errorf("the capability of ping has not 20 bytes but Debian is %q", cap)
		}
	})
}

func TestDebianNginx(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		p.start(node.Container("c", r.debian(fixture.DebianNginx), nil))
		r.eventually("nginx serves its page", func() bool {
			page, err := p.n.Get("http://" + p.ip() + ":8080/")
			return err == nil && page == fixture.DebianPage
		})
	})
}
