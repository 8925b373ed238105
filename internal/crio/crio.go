// Package crio answers at a socket of CRI-O's what the cAdvisor in a kubelet asks there: where the images are, and what
// a container is called. A kubelet asks its runtime for the rest, but its cAdvisor, from which /metrics/cadvisor comes,
// knows containers of containerd and of CRI-O alone, and those of CRI-O by two answers over HTTP.
//
// At its socket CRI-O serves CRI as well, and tools look for it there. So CRI is served there, too.
package crio

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Socket is the only path at which cAdvisor looks.
const Socket = "/var/run/crio/crio.sock"

// Containers is what is asked of CRI.
type Containers interface {
	ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error)
	PodSandboxStatus(context.Context, *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error)
}

// Server answers cAdvisor, and passes on who speaks CRI. All fields are required.
type Server struct {
	Containers Containers
	Images     string // the directory of the image store
	Log        *slog.Logger
	// CRI serves the connections of a listener, until that is closed.
	CRI func(net.Listener) error
}

// Serve serves until ctx ends or l fails.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	m := newMux(l)
	web := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
		IdleTimeout: 5 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { m.close() })
	defer stop()
	go func() { _ = s.CRI(m.rpc) }()
	go func() { _ = web.Serve(m.web) }()
	err := m.run()
	_ = web.Close()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve at the socket of CRI-O: %w", err)
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /info", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, info{StorageDriver: "overlay", StorageRoot: s.Images, StorageImage: s.Images})
	})
	mux.HandleFunc("GET /containers/{id}", func(w http.ResponseWriter, r *http.Request) {
		c, err := s.container(r.Context(), r.PathValue("id"))
		switch {
		case err == nil:
			answer(w, c)
		case errdefs.IsNotFound(err):
			http.Error(w, "there is no such container", http.StatusNotFound)
		default:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return mux
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // who has gone misses nothing
}

// info has the fields of CRI-O's answer that cAdvisor reads.
type info struct {
	StorageDriver string `json:"storage_driver"`
	StorageRoot   string `json:"storage_root"`
	StorageImage  string `json:"storage_image"`
}

// container has the fields of CRI-O's answer that can be told here.
type container struct {
	Name        string            `json:"name"` // becomes the label "name" of series: the id, as of containers of containerd
	Pid         int               `json:"pid"`
	Image       string            `json:"image"`
	ImageRef    string            `json:"image_ref"`
	CreatedTime int64             `json:"created_time"` // nanoseconds since 1970
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	LogPath     string            `json:"log_path"`
	Sandbox     string            `json:"sandbox"`
	IPs         []string          `json:"ip_addresses"`
}

// cAdvisor asks when the cgroup of a container appears, which is while it is being created. Where it is told then that
// there is none it forgets the container for a minute. So the answer waits so long, with growing pauses.
const creating, firstPause = 2 * time.Second, 20 * time.Millisecond

func (s *Server) container(ctx context.Context, id string) (*container, error) {
	if len(id) != 64 {
		return nil, fmt.Errorf("%q is no id: %w", id, errdefs.ErrNotFound)
	}
	req := &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true}
	resp, err := s.Containers.ContainerStatus(ctx, req)
	since, pause := time.Now(), firstPause
	for ; errdefs.IsNotFound(err) && time.Since(since) < creating; pause *= 2 {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		resp, err = s.Containers.ContainerStatus(ctx, req)
	}
	if err != nil {
		return nil, err
	}
	var more struct {
		Pod string `json:"sandboxID"`
		Pid int    `json:"pid"`
	}
	if err := json.Unmarshal([]byte(resp.Info["info"]), &more); err != nil {
		return nil, fmt.Errorf("read the verbose status of container %s: %w", id, err)
	}
	c := resp.Status
	return &container{
		Name: id, Pid: more.Pid, Image: c.GetImage().GetImage(), ImageRef: c.ImageRef, CreatedTime: c.CreatedAt,
		Labels: c.Labels, Annotations: c.Annotations, LogPath: c.LogPath, Sandbox: more.Pod, IPs: s.addresses(ctx, more.Pod),
	}, nil
}

func (s *Server) addresses(ctx context.Context, pod string) []string {
	resp, err := s.Containers.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil || resp.GetStatus().GetNetwork().GetIp() == "" {
		return nil // the pod went, or has the node's network
	}
	all := []string{resp.Status.Network.Ip}
	for _, more := range resp.Status.Network.AdditionalIps {
		all = append(all, more.Ip)
	}
	return all
}
