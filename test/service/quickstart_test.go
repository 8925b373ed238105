package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/docs"
	"berth/test/fixture"
	"berth/test/installed"
	"berth/test/page"
)

// standIns are programs for what the machine of the tests lacks: a network, and what needs one.
var standIns = map[string]string{
	"sudo": `exec "$@"`,
	"apt":  `shift; exec dpkg -i "$@"`,
	"curl": `tries=1; for url; do case $last in --retry) tries=$url;; esac; last=$url; done
until busybox wget -q -O - "$url" 2>/dev/null; do tries=$((tries-1)); [ $tries -gt 0 ] || exit 7; sleep 1; done`,
}

// TestQuickStart types what docs/quickstart.md says on a machine that Berth was never on, and wants to see what it
// says.
func TestQuickStart(t *testing.T) {
	dir := t.TempDir()
	hub(t)
	for name, script := range standIns {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	deb := installed.Deb(t)
	installed.Run(t, "sh", "-c", fmt.Sprintf("cp %s %s && cd %s && sha256sum *.deb >SHA256SUMS", deb, dir, dir))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, c := range page.Read(docs.QuickStart) {
		out, err := installed.Try("sh", "-c", "cd "+dir+" && "+c.Command)
		t.Logf("$ %s\n%s", c.Command, out)
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.Command, err, installed.Journal())
		}
		if out != "" {
			out += "\n"
		}
		if !c.Pattern().MatchString(out) {
			t.Errorf("%s printed\n%s\nand the page says\n%s", c.Command, out, strings.Join(c.Prints, "\n"))
		}
	}
	installed.Run(t, "dpkg", "--purge", "berth")
	installed.Run(t, "rm", "-r", "/etc/cni/net.d", "/etc/berth")
}

// hub has a registry of this machine stand in for docker.io, with what the page runs.
func hub(t *testing.T) {
	t.Helper()
	r, err := fixture.StartRegistry(fixture.RegistryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	recipe, err := fixture.BusyboxRecipe()
	if err != nil {
		t.Fatal(err)
	}
	push := func(name string, config v1.Config) {
		recipe.Config = config
		img, err := recipe.Build()
		if err == nil {
			_, err = r.Push(name, img)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	env := recipe.Config.Env
	push("library/busybox:latest", v1.Config{Cmd: []string{"sh"}, Env: env})
	// What stands in for nginx says what nginx does when it is up, and serves its page's title.
	serve := `mkdir -p /www; echo '<title>Welcome to nginx!</title>' >/www/index.html
echo '/docker-entrypoint.sh: Configuration complete; ready for start up'; exec httpd -f -p 80 -h /www`
	push("library/nginx:latest", v1.Config{Cmd: []string{"sh", "-c", serve}, Env: env})
	hosts := filepath.Join("/etc/berth/certs.d/docker.io", "hosts.toml")
	if err := os.MkdirAll(filepath.Dir(hosts), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("server = %q\n", r.URL())
	if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
