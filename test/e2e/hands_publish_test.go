package e2e

import (
	"strings"
	"testing"
)

// TestHandsPublish publishes a port at one of the machine that is free, and asks which; two pods get two.
func TestHandsPublish(t *testing.T) {
	each(t, func(r rig) {
		image, name := ref("busybox:latest"), "published-"+unique(r.T)
		at := map[string]string{}
		for _, name := range []string{name, name + "-too"} {
			r.mustBerth("run", "-d", "--log-dir", r.n.Logs, "--name", name, "-p", "8080", image, "sh", "-c",
				"echo I am "+name+" >/index.html; exec busybox httpd -f -p 8080 -h /")
			r.Cleanup(func() { r.mustBerth("rm", "-f", name) })
			at[name] = strings.TrimPrefix(strings.TrimSpace(r.mustBerth("port", name, "8080")), "0.0.0.0:")
		}
		if at[name] == at[name+"-too"] {
			r.Fatalf("both have port %s", at[name])
		}
		for name, port := range at {
			r.eventually(name+" answers", func() bool {
				page, err := r.n.Get("http://10.88.0.1:" + port + "/")
				return err == nil && strings.TrimSpace(page) == "I am "+name
			})
		}
	})
}
