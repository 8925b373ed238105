package e2e

import (
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestFirst is the example of docs/changing.md: a pod, a container with a variable, an exec and an error.
func TestFirst(t *testing.T) {
	each(t, func(r rig) { // on the shared node of each runtime
		p := r.pod() // stopped and removed at the end of the test
		greets := func(c *v1.ContainerConfig) {
			c.Envs = []*v1.KeyValue{{Key: "GREETING", Value: []byte("hello")}}
		}
		c := p.start(busybox("main", "echo $GREETING; sleep 100", greets))
		c.logged("hello")
		r.wantText("the variable in an exec", c.exec("sh", "-c", "echo $GREETING"), "hello")
		_, err := r.n.Runtime.ContainerStatus(ctx(), "no-such-container", false)
		r.wantCode(err, codes.NotFound, "no-such-container")
	})
}
