package spec

import (
	"errors"
	"fmt"
	"math"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// initUser runs the pod's init unless the pod names another: a user that no container image uses.
const initUser = 65535

// initScore keeps the init of a pod alive longer than its containers: with it they all die.
const initScore = -998

// InitInput is all that decides the spec of a pod's init.
type InitInput struct {
	Pod     *runtimeapi.PodSandboxConfig
	PodID   string
	Host    Host
	Handler Handler
	SELinux Labels // the pod's; empty: it has none
	Paths   Paths  // Rootfs is an empty directory; PidNS is not used, the init makes it
	Binary  string // the monitor's binary on the host

	AppArmorDefault string // as in Input
}

// BuildInit makes the spec of the tiny init of a pod that shares its PID namespace: the monitor's binary, bound
// read-only at /init and run as `/init init`, with no capability, in a PID namespace of its own that the containers
// join.
func BuildInit(in InitInput) (*specs.Spec, error) {
	if in.Pod == nil || in.Paths.Rootfs == "" || in.Binary == "" {
		return nil, errors.New("pod init spec: the pod, an empty root and the binary are all needed")
	}
	user, err := initIdentity(in)
	if err != nil {
		return nil, err
	}
	score := clampScore(initScore, in.Host)
	b := &build{Input: Input{Pod: in.Pod, Host: in.Host, Handler: in.Handler, Paths: in.Paths,
		SELinux: in.SELinux, User: User{UID: user.UID, GID: user.GID}}, base: &specs.Spec{}}
	b.out = &specs.Spec{
		Root: &specs.Root{Path: in.Paths.Rootfs, Readonly: true},
		Process: &specs.Process{
			User: user, Args: []string{"/init", "init"}, Env: []string{"PATH=/", "GODEBUG=disablethp=1"}, Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{}, NoNewPrivileges: true, OOMScoreAdj: &score,
		},
		Linux: &specs.Linux{
			CgroupsPath:   in.Paths.CgroupsPath,
			Resources:     &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}},
			MaskedPaths:   DefaultMaskedPaths(),
			ReadonlyPaths: DefaultReadonlyPaths(),
		},
		Annotations: podAnnotations(in.Pod, in.PodID, in.Handler),
	}
	if err := b.initIsolation(in); err != nil {
		return nil, err
	}
	b.out.Version = LowestVersion(b.out)
	return b.out, nil
}

// initIsolation is the pod's namespaces with a new PID namespace, the fewest mounts a runtime needs, and its filters.
func (b *build) initIsolation(in InitInput) error {
	own := runtimeapi.NamespaceMode_CONTAINER
	b.security = &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: own}}
	b.security.NamespaceOptions.UsernsOptions =
		b.Pod.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if err := b.namespaces(); err != nil {
		return err
	}
	b.out.Mounts = append(b.baseMounts()[:2], specs.Mount{Destination: "/init", Type: "bind", Source: in.Binary,
		Options: []string{"bind", "rprivate", "nosuid", "nodev", "ro"}})
	b.labels()
	if b.Host.AppArmor {
		b.out.Process.ApparmorProfile = in.AppArmorDefault
	}
	if b.Host.Seccomp {
		b.out.Linux.Seccomp = defaultSeccomp(b.Host, b.Handler, false, nil)
	}
	return nil
}

// initIdentity is who the init runs as: the user that the pod names, or one that no image uses. A user namespace that
// has not got that one has root, who is nobody outside of it.
func initIdentity(in InitInput) (specs.User, error) {
	sc := in.Pod.GetLinux().GetSecurityContext()
	if sc.GetRunAsUser() == nil {
		if sc.GetRunAsGroup() != nil {
			return specs.User{}, errors.New("pod: run_as_group needs run_as_user")
		}
		ids := IDs(sc.GetNamespaceOptions().GetUsernsOptions())
		if _, _, ok := ids.Host(initUser, initUser); in.Paths.UserNS != "" && !ok {
			return specs.User{}, nil
		}
		return specs.User{UID: initUser, GID: initUser}, nil
	}
	uid, gid := sc.GetRunAsUser().GetValue(), sc.GetRunAsGroup().GetValue()
	if !validID(uid) || !validID(gid) {
		return specs.User{}, fmt.Errorf("pod: user %d, group %d: an id is 0 to %d", uid, gid, int64(math.MaxUint32-1))
	}
	return specs.User{UID: uint32(uid), GID: uint32(gid)}, nil
}
