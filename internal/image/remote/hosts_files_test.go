package remote

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// TestCertificatesThatAreNoFiles are refused and named, whoever names them, and nobody waits for a writer.
func TestCertificatesThatAreNoFiles(t *testing.T) {
	for name, c := range map[string]struct{ file, hosts string }{
		"ca":                    {"c.pem", `ca = "c.pem"`},
		"cas":                   {"c.pem", `ca = ["hosts.toml", "c.pem"]`},
		"client":                {"c.pem", `client = "c.pem"`},
		"pair":                  {"c.pem", `client = [["hosts.toml", "c.pem"]]`},
		"ca of a mirror":        {"c.pem", "[host.\"https://a\"]\nca = \"c.pem\""},
		"docker's layout":       {"a.crt", ""},
		"client of that layout": {"a.cert", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{})
			r.hosts(t, "registry.test", "%s\n", c.hosts)
			dir := filepath.Join(r.dir, "registry.test")
			path := filepath.Join(dir, c.file)
			if c.hosts == "" {
				if err := os.Remove(filepath.Join(dir, "hosts.toml")); err != nil {
					t.Fatal(err)
				}
			}
			ask := func() error {
				done := make(chan error, 1)
				go func() {
					_, err := r.Repository(t.Context(), named(t, "registry.test/app"), nil)
					done <- err
				}()
				select {
				case err := <-done:
					return err
				case <-time.After(timeouts.For(20 * time.Second)):
					return errors.New("it hangs")
				}
			}
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			fails(t, ask(), errdefs.ErrUnknown, path+": it is not a regular file")
			if err := errors.Join(os.Remove(path), os.Symlink("/dev/zero", path)); err != nil {
				t.Fatal(err)
			}
			fails(t, ask(), errdefs.ErrUnknown, path+": it is not a regular file")
		})
	}
}
