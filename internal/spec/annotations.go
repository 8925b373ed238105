package spec

import (
	"path"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The annotations that sandboxed runtimes (Kata, gVisor) and tools for CRI read to learn what belongs to what.
const (
	annotationType             = "io.kubernetes.cri.container-type"
	annotationSandboxID        = "io.kubernetes.cri.sandbox-id"
	annotationSandboxName      = "io.kubernetes.cri.sandbox-name"
	annotationSandboxNamespace = "io.kubernetes.cri.sandbox-namespace"
	annotationSandboxUID       = "io.kubernetes.cri.sandbox-uid"
	annotationSandboxLogs      = "io.kubernetes.cri.sandbox-log-directory"
	annotationSandboxPeriod    = "io.kubernetes.cri.sandbox-cpu-period"
	annotationSandboxQuota     = "io.kubernetes.cri.sandbox-cpu-quota"
	annotationSandboxShares    = "io.kubernetes.cri.sandbox-cpu-shares"
	annotationSandboxMemory    = "io.kubernetes.cri.sandbox-memory"
	annotationContainerName    = "io.kubernetes.cri.container-name"
	annotationImageName        = "io.kubernetes.cri.image-name"
)

// The same in the names that CRI-O gives them, for a handler whose runtime makes a sandbox of the pod.
const (
	crioType        = "io.kubernetes.cri-o.ContainerType"
	crioContainerID = "io.kubernetes.cri-o.ContainerID"
	crioSandboxID   = "io.kubernetes.cri-o.SandboxID"
	crioPodName     = "io.kubernetes.cri-o.KubeName"
	crioNamespace   = "io.kubernetes.cri-o.Namespace"
	crioImageName   = "io.kubernetes.cri-o.ImageName"
)

// containerAnnotations are what the handler lets through of the pod's and the container's annotations, and what
// identifies it, which a request cannot say. The rest may be what a runtime obeys rather than keeps: crun loads hooks
// and raw seccomp programs by annotations, runc passes settings to systemd and CRIU, gVisor takes flags.
func containerAnnotations(in Input) map[string]string {
	out := podIdentity(in.Pod, in.PodID, "container", in.Handler)
	out[annotationContainerName] = in.Container.GetMetadata().GetName()
	image := in.Container.GetImage().GetUserSpecifiedImage()
	if image == "" {
		image = in.Container.GetImage().GetImage()
	}
	out[annotationImageName] = image
	if in.Handler.Infra {
		out[crioContainerID], out[crioImageName] = in.ContainerID, image
	}
	for k, v := range in.Pod.GetAnnotations() {
		putAnnotation(out, k, v, matches(in.Handler.PodAnnotations, k))
	}
	for k, v := range in.Container.GetAnnotations() {
		putAnnotation(out, k, v, matches(in.Handler.ContainerAnnotations, k))
	}
	return out
}

// podAnnotations is the same for the pod's init, with the size of the pod, which a virtual machine is made by.
func podAnnotations(pod *runtimeapi.PodSandboxConfig, id string, h Handler) map[string]string {
	out := podIdentity(pod, id, "sandbox", h)
	if h.Infra {
		out[crioContainerID] = id
	}
	out[annotationSandboxLogs] = pod.GetLogDirectory()
	if r := pod.GetLinux().GetResources(); r != nil {
		out[annotationSandboxPeriod] = strconv.FormatInt(r.GetCpuPeriod(), 10)
		out[annotationSandboxQuota] = strconv.FormatInt(r.GetCpuQuota(), 10)
		out[annotationSandboxShares] = strconv.FormatInt(r.GetCpuShares(), 10)
		out[annotationSandboxMemory] = strconv.FormatInt(r.GetMemoryLimitInBytes(), 10)
	}
	for k, v := range pod.GetAnnotations() {
		putAnnotation(out, k, v, matches(h.PodAnnotations, k))
	}
	return out
}

func podIdentity(pod *runtimeapi.PodSandboxConfig, id, kind string, h Handler) map[string]string {
	out := map[string]string{
		annotationType:             kind,
		annotationSandboxID:        id,
		annotationSandboxName:      pod.GetMetadata().GetName(),
		annotationSandboxNamespace: pod.GetMetadata().GetNamespace(),
		annotationSandboxUID:       pod.GetMetadata().GetUid(),
	}
	if h.Infra {
		out[crioType], out[crioSandboxID] = kind, id
		out[crioPodName], out[crioNamespace] = pod.GetMetadata().GetName(), pod.GetMetadata().GetNamespace()
	}
	return out
}

// putAnnotation keeps what is allowed and not one of our own.
func putAnnotation(out map[string]string, k, v string, allowed bool) {
	if allowed && !identity(k) {
		out[k] = v
	}
}

// identity says that an annotation identifies pod or container to a runtime, which only this package may set.
func identity(k string) bool {
	switch k {
	case crioType, crioContainerID, crioSandboxID, crioPodName, crioNamespace, crioImageName:
		return true
	}
	return strings.HasPrefix(k, "io.kubernetes.cri.")
}

// matches takes a trailing * for any rest, also across a slash, as people write such lists.
func matches(patterns []string, k string) bool {
	for _, p := range patterns {
		if head, ok := strings.CutSuffix(p, "*"); ok && !strings.ContainsAny(head, "*?[") && strings.HasPrefix(k, head) {
			return true
		}
		if ok, err := path.Match(p, k); ok && err == nil {
			return true
		}
	}
	return false
}
