package service

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/docs"
	"berth/test/fixture"
	"berth/test/installed"
)

// typed is a command of a page, and what the page says that it prints.
type typed struct {
	command string
	prints  []string
}

// readPage takes what is typed from the indented blocks of a page: what follows "$ ", with a document that belongs to
// it to the line EOF. All up to the next one is what it prints. A block that begins with something else is not typed.
func readPage(text string) (all []typed) {
	followed, document := false, false
	for line := range strings.SplitSeq(text, "\n") {
		line, indented := strings.CutPrefix(line, "    ")
		command, begins := strings.CutPrefix(line, "$ ")
		switch {
		case !indented:
			followed, document = false, false
		case begins:
			all = append(all, typed{command: command})
			followed, document = true, strings.Contains(command, "<<'EOF'")
		case !followed:
		case document:
			all[len(all)-1].command += "\n" + line
			document = line != "EOF"
		default:
			all[len(all)-1].prints = append(all[len(all)-1].prints, line)
		}
	}
	return all
}

// pattern matches what is printed: as it stands, but for the width of gaps and for "…", which may be anything, and
// where it is a line of its own any lines.
func (c typed) pattern() *regexp.Regexp {
	var lines []string
	for _, line := range c.prints {
		if line == "…" {
			lines = append(lines, `(?:.*\n)*`)
			continue
		}
		var words []string
		for _, word := range strings.Fields(line) {
			words = append(words, strings.ReplaceAll(regexp.QuoteMeta(word), "…", ".*"))
		}
		lines = append(lines, strings.Join(words, `\s+`)+`\s*\n`)
	}
	return regexp.MustCompile("^" + strings.Join(lines, "") + "$")
}

// TestReadPage is here and not in a package of its own because nobody else reads pages.
func TestReadPage(t *testing.T) {
	page := "text $ no\n\n    $ a b\n    one  … three\n    …\n    last\n\n    not typed\n\n" +
		"    $ cat <<'EOF'\n    x\n    EOF\n    $ c\n"
	all := readPage(page)
	if len(all) != 3 || all[0].command != "a b" || all[1].command != "cat <<'EOF'\nx\nEOF" || all[2].command != "c" {
		t.Fatalf("read as %q", all)
	}
	for out, want := range map[string]bool{
		"one 2 2 three\nlast\n": true, "one two   three\nmore\nand more\nlast\n": true,
		"one two\nlast\n": false, "one 2 three\nlast\nmore\n": false,
	} {
		if got := all[0].pattern().MatchString(out); got != want {
			t.Errorf("%q: %v", out, got)
		}
	}
	if p := all[2].pattern(); !p.MatchString("") || p.MatchString("anything\n") {
		t.Error("a command that is said to print nothing may print something")
	}
}

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
	for _, c := range readPage(docs.QuickStart) {
		out, err := installed.Try("sh", "-c", "cd "+dir+" && "+c.command)
		t.Logf("$ %s\n%s", c.command, out)
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.command, err, installed.Journal())
		}
		if out != "" {
			out += "\n"
		}
		if !c.pattern().MatchString(out) {
			t.Errorf("%s printed\n%s\nand the page says\n%s", c.command, out, strings.Join(c.prints, "\n"))
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
