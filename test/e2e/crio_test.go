package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

// crioNode is a node whose daemon answers at a path as CRI-O does.
func crioNode(t *testing.T, runtime, path string) rig {
	t.Helper()
	config := fmt.Sprintf("cgroup_names = \"crio\"\ncrio_socket = %q\n", path)
	return ownNode(t, node.Options{Runtime: runtime, Config: config})
}

// TestCRIOSocket asks as a kubelet's cAdvisor does, while CRI is spoken at the same socket.
func TestCRIOSocket(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "crio.sock")
			r := crioNode(t, runtime, path)
			web := &http.Client{Timeout: timeouts.For(20 * time.Second), Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "unix", path)
				},
			}}
			defer web.CloseIdleConnections()
			r.pull("busybox:latest")
			p := r.pod()
			c := p.start(busybox("main", "sleep 1000000"))
			resp, err := web.Get("http://crio/containers/" + c.cid)
			r.ok(err)
			defer resp.Body.Close()
			var got struct {
				Name    string
				Pid     int
				Image   string
				LogPath string `json:"log_path"`
				Sandbox string
				IPs     []string `json:"ip_addresses"`
			}
			r.ok(json.NewDecoder(resp.Body).Decode(&got))
			if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/bin/busybox", got.Pid)); err != nil {
				t.Errorf("its process: %v", err)
			}
			got.Pid = 0
			r.wantText("what cAdvisor is told", fmt.Sprint(got), fmt.Sprintf("{%s 0 %s %s %s [%s]}", c.cid,
				c.status().Image.Image, c.log, p.id, p.status().Network.Ip))
			conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
			r.ok(err)
			defer conn.Close()
			list, err := v1.NewRuntimeServiceClient(conn).ListContainers(t.Context(), &v1.ListContainersRequest{})
			r.ok(err)
			if len(list.Containers) != 1 || list.Containers[0].Id != c.cid {
				t.Errorf("containers by CRI: %v", list.Containers)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the socket: %v, %v", info, err)
			}
			r.ok(r.n.Stop())
			if _, err := os.Stat(path); err == nil {
				t.Error("the socket is left when the daemon has ended")
			}
			r.ok(r.n.Start())
		})
	}
}

// TestCRIOSocketOfAnother has another process serve the socket: it keeps it, and the daemon goes on without.
func TestCRIOSocketOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "crio.sock")
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	r := crioNode(t, runtimes()[0], path)
	if log := r.n.DaemonLog(1000); !strings.Contains(log, "another daemon serves "+path) {
		t.Errorf("the daemon does not say that it answers no cAdvisor: %s", log)
	}
	_, err = r.n.Runtime.Version(t.Context(), "")
	r.ok(err)
	r.ok(r.n.Restart())
	conn, err := net.Dial("unix", path)
	r.ok(err)
	r.ok(conn.Close())
}

// TestSocketsThatAreReplaced has another runtime put its own sockets where those of the daemon are: they stay when the
// daemon ends.
func TestSocketsThatAreReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "crio.sock")
	r := crioNode(t, runtimes()[0], path)
	paths := []string{path, r.n.Socket}
	for _, path := range paths {
		r.ok(os.Remove(path)) // as CRI-O and containerd do when they start
		other, err := net.Listen("unix", path)
		r.ok(err)
		defer other.Close()
	}
	r.ok(r.n.Stop())
	for _, path := range paths {
		conn, err := net.Dial("unix", path)
		r.ok(err)
		r.ok(errors.Join(conn.Close(), os.Remove(path)))
	}
	r.ok(r.n.Start())
}
