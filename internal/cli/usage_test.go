package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/admin"
)

func TestWrongUse(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"run", 125, "an argument is missing: berth run [flags] IMAGE [ARG...]; see berth run --help"},
		{"exec", 125, "an argument is missing: berth exec [flags] CONTAINER [--] COMMAND [ARG...]; see berth exec --help"},
		{"exec web", 125, "say which command to run: berth exec CONTAINER COMMAND"},
		{"run --bogus x", 125, "unknown flag: --bogus; see berth run --help"},
		{"ps --bogus", 2, "unknown flag: --bogus; see berth ps --help"},
		{"ps extra", 2, `"extra" is too much: berth ps [flags]; see berth ps --help`},
		{"logs a b", 2, `"b" is too much: berth logs CONTAINER|POD [flags]; see berth logs --help`},
		{"stop", 2, "an argument is missing: berth stop NAME... [flags]; see berth stop --help"},
		{"image bogus", 2, `berth image has no command "bogus"; see berth image --help`},
	} {
		out, errs, code := startDaemon(t).berth(t, strings.Fields(c.args)...)
		if errs != "berth: "+c.want+"\n" || code != c.code || out != "" {
			t.Errorf("%s: code %d, %q, %q", c.args, code, errs, out)
		}
	}
}

// TestHelpIsComplete wants every command in a group, explained, and its examples to be of commands and flags that there
// are.
func TestHelpIsComplete(t *testing.T) {
	root := New("v-test")
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || (c.Parent() == root && c.GroupID == "") {
			t.Errorf("%s: short %q, group %q", c.CommandPath(), c.Short, c.GroupID)
		}
		for line := range strings.Lines(c.Long) {
			if len(line) > 81 {
				t.Errorf("%s: the help has a line of %d", c.CommandPath(), len(line))
			}
		}
		for line := range strings.Lines(c.Example) {
			_, args, found := strings.Cut(line, "berth ")
			target, rest, err := root.Find(strings.Fields(args))
			if !found || err != nil || target != c {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
				continue
			}
			if err := target.ParseFlags(rest); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
			}
		}
		for _, child := range c.Commands() {
			walk(child)
		}
	}
	for _, c := range root.Commands() {
		walk(c)
	}
}

func TestWrap(t *testing.T) {
	long := strings.Repeat("x", 90)
	for text, want := range map[string]string{
		"":                             "",
		"a  b\nc\n\nd":                 "a b c\n\nd",
		strings.Repeat("abcd ", 17):    strings.Repeat("abcd ", 15) + "abcd\nabcd",
		"a " + long + " b":             "a\n" + long + "\nb",
		strings.Repeat("ä", 80) + " b": strings.Repeat("ä", 80) + "\nb",
	} {
		if got := wrap(text); got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// TestUnavailableIsNotSilence has a daemon that answers say that something else does not.
func TestUnavailableIsNotSilence(t *testing.T) {
	d := populated(t)
	d.refuse["ListContainers"] = status.Error(codes.Unavailable, "the node's network is not ready")
	if _, errs, code := d.berth(t, "ps"); errs != "berth: the node's network is not ready\n" || code != 4 {
		t.Errorf("code %d, %q", code, errs)
	}
	d.pulled = []admin.PullEvent{{Layer: "sha256:1", Phase: "downloading"}}
	d.pullFails = status.Error(codes.NotFound, "pull image x: resolve: not found")
	if _, errs, _ := d.berth(t, "pull", "x"); !strings.HasSuffix(errs, "\nberth: pull image x: resolve: not found\n") {
		t.Errorf("the image is named once: %q", errs)
	}
	if _, errs, code := d.berth(t, "--socket", "tcp://x", "ps"); errs != "berth: socket tcp://x: want the path of a "+
		"unix socket\n" || code != 1 {
		t.Errorf("code %d, %q", code, errs)
	}
	d.pullFails = status.Error(codes.Unavailable, "RegistryUnavailable: no route")
	if _, errs, code := d.berth(t, "pull", "x"); !strings.HasSuffix(errs,
		"\nberth: pull x: RegistryUnavailable: no route\n") || code != 4 {
		t.Errorf("after some progress: code %d, %q", code, errs)
	}
}
