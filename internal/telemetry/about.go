package telemetry

import (
	"log/slog"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// about names the pod, the container and the image of a request, by whichever of their getters it has.
func about(req any) []slog.Attr {
	var attrs []slog.Attr
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, fail.Clip(value)))
		}
	}
	if r, ok := req.(interface{ GetPodSandboxId() string }); ok {
		add("pod", r.GetPodSandboxId())
	}
	if r, ok := req.(interface{ GetContainerId() string }); ok {
		add("container", r.GetContainerId())
	}
	if r, ok := req.(interface{ GetImage() *runtimeapi.ImageSpec }); ok {
		add("image", r.GetImage().GetImage())
	}
	switch r := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		m := r.GetConfig().GetMetadata()
		add("namespace", m.GetNamespace())
		add("name", m.GetName())
		add("uid", m.GetUid())
		add("handler", r.GetRuntimeHandler())
	case *runtimeapi.CreateContainerRequest:
		add("name", r.GetConfig().GetMetadata().GetName())
		add("image", r.GetConfig().GetImage().GetImage())
	}
	return attrs
}

// made is the id that a response tells of what is new.
func made(resp any) []slog.Attr {
	switch r := resp.(type) {
	case *runtimeapi.RunPodSandboxResponse:
		if id := r.GetPodSandboxId(); id != "" {
			return []slog.Attr{slog.String("pod", id)}
		}
	case *runtimeapi.CreateContainerResponse:
		if id := r.GetContainerId(); id != "" {
			return []slog.Attr{slog.String("container", id)}
		}
	}
	return nil
}
