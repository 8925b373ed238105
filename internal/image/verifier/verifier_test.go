package verifier

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/cgroup"
	"berth/internal/helper"
)

const name = "registry.example/app:v1"

var desc = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("x"), Size: 7}

// runner is a real one, whose groups must be empty when the test ends.
func runner(t *testing.T) *helper.Runner {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	top, err := cgroup.Tracking(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	whole, err := cgroup.Make(top, fmt.Sprintf("berth-verifier-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := whole.Remove(); err != nil {
			t.Errorf("something of a verifier is left: %v", err)
			_ = whole.Kill()
		}
	})
	return &helper.Runner{Root: whole.Path()}
}

// directory makes one with programs: scripts by their names.
func directory(t *testing.T, scripts map[string]string) *Dir {
	t.Helper()
	d := &Dir{Path: t.TempDir(), Max: 10, Timeout: time.Minute, Run: runner(t).Run, Log: slog.New(slog.DiscardHandler)}
	for name, script := range scripts {
		add(t, d, name, script)
	}
	return d
}

func add(t *testing.T, d *Dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.Path, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// accepts wants no objection; refuses wants one by the verifier ("" for the directory as a whole) with these words.
func accepts(t *testing.T, d *Dir) {
	t.Helper()
	if err := d.Verify(t.Context(), Question{Name: name, Descriptor: desc}); err != nil {
		t.Error(err)
	}
}

func refuses(t *testing.T, d *Dir, verifier, words string) string {
	t.Helper()
	err := d.Verify(t.Context(), Question{Name: name, Descriptor: desc})
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Fatalf("got %v, wanted %q", err, words)
	}
	var r *Refusal
	if verifier != "" && (!errors.As(err, &r) || r.Verifier != verifier) {
		t.Errorf("%v does not come from %q", err, verifier)
	}
	return err.Error()
}

func TestWhatAProgramGets(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
	t.Setenv("NOT_FOR_VERIFIERS", "1")
	out := t.TempDir()
	d := directory(t,
		map[string]string{"v": `printf '%s\n' "$@" >` + out + `/args; cat >` + out + `/in; env >` + out + `/env; pwd >` +
			out + `/cwd`})
	accepts(t, d)
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	if want := "-name\n" + name + "\n-digest\n" + desc.Digest.String() +
		"\n-stdin-media-type\napplication/vnd.oci.descriptor.v1+json"; read("args") != want {
		t.Errorf("arguments %q", read("args"))
	}
	var got ocispec.Descriptor
	if err := json.Unmarshal([]byte(read("in")), &got); err != nil || got.Digest != desc.Digest || got.Size != 7 ||
		got.MediaType != desc.MediaType {
		t.Errorf("standard input %q, %v", read("in"), err)
	}
	env := strings.Split(read("env"), "\n")
	if !slices.Contains(env, "HTTPS_PROXY=http://proxy.example:3128") || strings.Contains(read("env"), "NOT_FOR") ||
		read("cwd") != "/" {
		t.Errorf("environment %q in %s", env, read("cwd"))
	}
}

func TestAllMustAccept(t *testing.T) {
	d := directory(t, map[string]string{"a": "exit 0", "b": "echo signed by nobody we know; exit 1", ".c": "exit 9"})
	refuses(t, d, "b", `verifier "b" refuses it: signed by nobody we know`)
	add(t, d, "b", "echo fine")
	accepts(t, d)
	add(t, d, "d", "exit 1")
	refuses(t, d, "d", "exit status 1")
	if err := os.Remove(filepath.Join(d.Path, "d")); err != nil {
		t.Fatal(err)
	}
	accepts(t, d)
	if err := os.Symlink("/bin/false", filepath.Join(d.Path, "e")); err != nil {
		t.Fatal(err)
	}
	refuses(t, d, "e", "exit status 1")
}

func TestReasons(t *testing.T) {
	for script, words := range map[string]string{
		"exit 3":                                      "exit status 3",
		"echo broken key >&2; exit 3":                 "exit status 3: broken key",
		"echo no; echo why >&2; exit 3":               `refuses it: no`,
		"kill -SEGV $$":                               "signal: segmentation fault",
		`printf 'a\n\033[31mb\377\000c\n'; exit 1`:    "refuses it: a [31mb? c",
		"head -c 50000000 /dev/zero; exit 1":          "refuses it:",
		"yes no | head -c 50000000; exit 1":           "refuses it: no no no",
		"exec >&-; exec 2>&-; cat >/dev/null; exit 4": "exit status 4",
	} {
		text := refuses(t, directory(t, map[string]string{"v": script}), "v", words)
		if len(text) > headBytes+200 || !utf8.ValidString(text) || strings.ContainsAny(text, "\n\x00\x1b") {
			t.Errorf("%s: %d bytes: %.300q", script, len(text), text)
		}
	}
}

// TestOutputWithoutEnd has programs that would write for ever.
func TestOutputWithoutEnd(t *testing.T) {
	d := directory(t, map[string]string{"stdout": "exec yes", "stderr": "exec yes >&2"})
	d.Timeout = 300 * time.Millisecond
	refuses(t, d, "", "it did not answer within 300ms (image_verifier.timeout)")
}

func TestInputNobodyReads(t *testing.T) {
	d := directory(t, map[string]string{"v": "exec <&-; exit 0"})
	long := desc
	long.Annotations = map[string]string{"x": strings.Repeat("y", 1<<20)}
	if err := d.Verify(t.Context(), Question{Name: name, Descriptor: long}); err != nil {
		t.Error(err)
	}
}

func TestWhatIsNoProgram(t *testing.T) {
	write := func(text string, mode os.FileMode) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), mode) }
	}
	for _, c := range []struct {
		words string
		make  func(path string) error
	}{
		{"is not executable", write("#!/bin/sh\n", 0o644)},
		{"is no file", func(p string) error { return os.Mkdir(p, 0o755) }},
		{"no such file", func(p string) error { return os.Symlink("/nonexistent", p) }},
		{"exec format error", write("\x7fELFno", 0o755)},
		{"no such file", write("#!/nonexistent/interpreter\n", 0o755)},
	} {
		d := directory(t, map[string]string{"good": "exit 0"})
		if err := c.make(filepath.Join(d.Path, "bad-one")); err != nil {
			t.Fatal(err)
		}
		if text := refuses(t, d, "", c.words); !strings.Contains(text, "bad-one") {
			t.Errorf("%q does not name it", text)
		}
	}
}

func TestDirectories(t *testing.T) {
	d := directory(t, nil)
	accepts(t, d)
	d.Path = filepath.Join(d.Path, "none")
	refuses(t, d, "", "the directory of verifiers "+d.Path+" is not there")
	add(t, &Dir{Path: filepath.Dir(d.Path)}, "none", "")
	refuses(t, d, "", "read the directory of verifiers")
}

func TestTooMany(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	d := directory(t, map[string]string{"a": "touch " + asked, "b": "touch " + asked, "c": "touch " + asked})
	d.Max = 2
	refuses(t, d, "", "none in "+d.Path+" was asked: programs that verify images: 3, more than the 2 allowed")
	if _, err := os.Stat(asked); err == nil {
		t.Error("one was asked")
	}
	d.Max = 3
	accepts(t, d)
}

// TestOneRefusalEndsTheOthers has a verifier that never answers beside one that refuses.
func TestOneRefusalEndsTheOthers(t *testing.T) {
	d := directory(t, map[string]string{"never": "sleep 1000", "no": "echo no; exit 1"})
	begun := time.Now()
	refuses(t, d, "no", "no")
	if time.Since(begun) > d.Timeout {
		t.Error("the verifier that never answers was waited for")
	}
}

// TestNothingOutlives has programs that leave a process with the pipes open, and then answer, or do not.
func TestNothingOutlives(t *testing.T) {
	leave := "setsid sh -c 'trap \"\" HUP TERM; sleep 1000' & "
	accepts(t, directory(t, map[string]string{"v": leave + "exit 0"}))
	refuses(t, directory(t, map[string]string{"v": leave + "echo no; exit 1"}), "v", "no")
	d := directory(t, map[string]string{"v": leave + "sleep 1000"})
	d.Timeout = 200 * time.Millisecond
	refuses(t, d, "v", "it did not answer within 200ms")
}

// TestCallerGivesUp ends the call in the middle: the error is the caller's own, and no refusal.
func TestCallerGivesUp(t *testing.T) {
	begun := filepath.Join(t.TempDir(), "begun")
	d := directory(t, map[string]string{"v": "touch " + begun + "; sleep 1000"})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Verify(ctx, Question{Name: name, Descriptor: desc}) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(begun); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not start")
		}
	}
	cancel()
	var r *Refusal
	if err := <-ended; !errors.Is(err, context.Canceled) || errors.As(err, &r) {
		t.Errorf("got %v", err)
	}
}

// TestStandardErrorIsLogged wants it beside the refusal, which has the reason alone.
func TestStandardErrorIsLogged(t *testing.T) {
	d := directory(t, map[string]string{"v": "echo details >&2; echo reason; exit 1"})
	var log bytes.Buffer
	d.Log = slog.New(slog.NewTextHandler(&log, nil))
	if text := refuses(t, d, "v", "reason"); strings.Contains(text, "details") {
		t.Errorf("%q", text)
	}
	for _, want := range []string{"stderr=details", "verifier=v", "image=" + name} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s: %s", want, &log)
		}
	}
}
