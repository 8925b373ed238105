package cli

import (
	"strings"
	"testing"
)

// TestExplain tells of every key that it lists, without a daemon, and of no other.
func TestExplain(t *testing.T) {
	d := &daemon{socket: t.TempDir() + "/none"}
	names, errs, code := d.berth(t, "config", "explain")
	if code != 0 || !strings.Contains(names, "\nimages.max_layers\n") {
		t.Fatalf("%s%s, exit code %d", names, errs, code)
	}
	for name := range strings.FieldsSeq(names) {
		out, errs, code := d.berth(t, "config", "explain", name)
		for _, want := range []string{name + "\n", "  value:    ", "  default:  ", "  a change: "} {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("%s: exit code %d, no %q in %s%s", name, code, want, out, errs)
			}
		}
		if strings.Contains(out, "](") {
			t.Errorf("%s: a link of Markdown in %s", name, out)
		}
	}
	out, _, _ := d.berth(t, "config", "explain", "runtimes.my-runc.pids_limit")
	for _, want := range []string{"runtimes.my-runc.pids_limit\n", "whole number of processes, -1 to 4194304",
		"`berth reload`"} {
		if !strings.Contains(out, want) {
			t.Errorf("of a handler: no %q in %s", want, out)
		}
	}
	if out, _, _ := d.berth(t, "config", "explain", "log_format"); !strings.Contains(out, "text or json") ||
		!strings.Contains(out, "restart") {
		t.Errorf("log_format: %s", out)
	}
	for _, bad := range []string{"nope", "images", "runtimes.runc", "runtimes.runc.nope"} {
		if out, errs, code := d.berth(t, "config", "explain", bad); code != 1 || !strings.Contains(errs, bad) {
			t.Errorf("%s: exit code %d, %s%s", bad, code, out, errs)
		}
	}
}
