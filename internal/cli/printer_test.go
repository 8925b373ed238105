package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

// TestResultThatCannotBePrinted is a failure of every command.
func TestResultThatCannotBePrinted(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	for _, args := range []string{
		"images -q", "images", "ps", "ps -q", "pods -q", "info", "wait nginx", "rm -f nginx", "update --cpus 1 postgres",
		"rmi -f docker.io/library/nginx:1", "image du", "inspect postgres",
	} {
		d := populated(t)
		if args == "wait nginx" {
			for _, c := range d.containers {
				c.State = runtimeapi.ContainerState_CONTAINER_EXITED
			}
		}
		errs, code := d.berthTo(t.Context(), strings.NewReader(""), full, strings.Fields(args)...)
		if code != 6 || !strings.Contains(errs, "no space left on device") {
			t.Errorf("%s: code %d, %q", args, code, errs)
		}
	}
}

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"plain, ünïcödé, 漢字, ✓ and 👩‍🚀": "plain, ünïcödé, 漢字, ✓ and 👩‍🚀",
		"a\x1b]0;owned\x07b":            `a\u001b]0;owned\u0007b`,
		"a\rb\bc\x7f":                   `a\u000db\u0008c\u007f`,
		"a\u009b2Jb":                    `a\u009b2Jb`, // a C1 code in UTF-8
		"a\x9b2Jb":                      `a\x9b2Jb`,   // and outside it
		"user\u202egpj.exe\u2069":       `user\u202egpj.exe\u2069`,
		"a\u2028b\ufeff\U000e0041":      `a\u2028b\ufeff\U000e0041`,
		"\xe2\x80":                      `\xe2\x80`, // a rune that is cut off
		"\ufffd":                        "\ufffd",
		"a\n\tb":                        "a\n\tb",
	} {
		if got := visible(text, "\n\t"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := visibleLine("a\nb\t"); got != `a\u000ab\u0009` {
		t.Errorf("a line: %q", got)
	}
}

// hostile is what an image says about itself.
const hostile = "\x1b]0;owned\x07\x1b[1A\x1b[2K\u009b2J\u202e\nverified   yes"

// strange is a daemon with an image of somebody hostile.
func strange(t *testing.T) *daemon {
	t.Helper()
	d := populated(t)
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "author": hostile,
		"config": map[string]any{
			"User": hostile, "Env": []string{"A=" + hostile}, "WorkingDir": hostile,
			"Labels": map[string]string{hostile: hostile},
		},
		"history": []any{map[string]any{"created_by": hostile, "comment": hostile, "empty_layer": true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	d.details = append(d.details, admin.ImageDetail{
		ID: "sha256:" + id("ee5"), Tags: []string{"quay.io/evil:v1"}, Platform: "linux/amd64", Config: config,
	})
	d.images = append(d.images, &runtimeapi.Image{Id: "sha256:" + id("ee5"), RepoTags: []string{"quay.io/evil:v1"}})
	return d
}

// TestStrangersMoveNoCursor has a person look at what somebody hostile said, in tables, sheets, JSON and errors.
func TestStrangersMoveNoCursor(t *testing.T) {
	d := strange(t)
	for _, args := range [][]string{
		{"image", "inspect", "quay.io/evil:v1"}, {"image", "history", "--no-trunc", "quay.io/evil:v1"},
		{"image", "inspect", "-o", "json", "quay.io/evil:v1"}, {"image", "history", "-o", "json", "quay.io/evil:v1"},
	} {
		p := sit(t)
		p.berth(t.Context(), d, args...)
		p.ends(0)
		p.sees(`\u001b`)
		p.sees(`\u202e`)
		for _, bad := range []string{"\x1b", "\x07", "\u009b", "\u202e", "\nverified"} {
			if strings.Contains(p.screen.String(), bad) {
				t.Errorf("%q: %q reaches the terminal: %q", args, bad, p.screen.String())
			}
		}
	}
	p := sit(t)
	if code := exitCode(errors.New("registry says \x1b[2Kno"), printerOn(p.slave)); code != 1 {
		t.Errorf("code %d", code)
	}
	p.sees(`berth: registry says \u001b[2Kno`)
}

// TestOtherOutputStays has what is no terminal get each byte.
func TestOtherOutputStays(t *testing.T) {
	d := strange(t)
	out, errs, code := d.berth(t, "image", "inspect", "quay.io/evil:v1")
	if code != 0 || !strings.Contains(out, hostile) {
		t.Errorf("code %d: %q, %s", code, out, errs)
	}
	out, _, _ = d.berth(t, "image", "inspect", "-o", "json", "quay.io/evil:v1")
	if !json.Valid([]byte(out)) || !json.Valid([]byte(visible(out, "\n\t"))) {
		t.Errorf("it is no JSON: %q", out)
	}
	var raw bytes.Buffer
	if w := printerOn(&raw); w != &raw {
		t.Errorf("%T is between", w)
	}
}
