package selinux

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	module "berth/packaging/selinux"
)

// TestOpenSockets gives the answers of policies: those that tell the classes apart and those that do not, and what is
// younger than they.
func TestOpenSockets(t *testing.T) {
	broken := errors.New("broken")
	answers := map[string]error{"tipc_socket": fs.ErrNotExist, "rds_socket": errDenied}
	for name, c := range map[string]struct {
		capability, unknown string
		all                 error // of what answers does not name
		open, closed        string
		err                 error
	}{
		"closed":                {"1", "1", errDenied, "", "alg_socket", nil},
		"open":                  {"1", "1", nil, "vsock_socket", "tipc_socket", nil},
		"what is unknown, open": {"1", "0", errDenied, "tipc_socket", "rds_socket", nil},
		"one class, open":       {"0", "1", nil, "socket", "alg_socket", nil},
		"one class, closed":     {"", "1", errDenied, "", "socket", nil},
		"broken":                {"1", "1", broken, "", "", broken},
	} {
		dir := t.TempDir()
		err := errors.Join(os.Mkdir(filepath.Join(dir, "policy_capabilities"), 0o755),
			os.WriteFile(filepath.Join(dir, "policy_capabilities/extended_socket_class"), []byte(c.capability), 0o644),
			os.WriteFile(filepath.Join(dir, "deny_unknown"), []byte(c.unknown), 0o644))
		if err != nil {
			t.Fatal(err)
		}
		open, err := openSockets(dir, "a:b:c:s0", func(_, _, class string) (bool, error) {
			says, known := answers[class]
			if !known {
				says = c.all
			}
			if errors.Is(says, errDenied) {
				return false, nil
			}
			return says == nil, says
		})
		if !errors.Is(err, c.err) || c.open != "" && !slices.Contains(open, c.open) || slices.Contains(open, c.closed) {
			t.Errorf("%s: %v, %v", name, open, err)
		}
		if c.open == "" && len(open) > 0 {
			t.Errorf("%s: %v are open", name, open)
		}
	}
}

// TestModule wants the module of the package to deny each of these classes, whether the policy has the others or not.
func TestModule(t *testing.T) {
	text := string(module.Sockets)
	if got := strings.Count(text, "deny container_domain self"); got != len(exotic) {
		t.Errorf("the module denies %d classes, and %d are asked about", got, len(exotic))
	}
	for _, family := range exotic {
		rule := "(optional berth_no_" + family + " (deny container_domain self (" + family + "_socket (create))))\n"
		if !strings.Contains(text, rule) {
			t.Errorf("the module has not %s", rule)
		}
	}
}

var errDenied = errors.New("denied")
