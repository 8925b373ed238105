package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/pflag"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/fail"
	"berth/internal/spec"
)

// What marks the pods of berth run.
const (
	runLabel      = "berth.run"
	logAnnotation = "berth.run/log-directory"
	runNamespace  = "berth"
)

func madeByRun(p *runtimeapi.PodSandbox) bool { return p.GetLabels()[runLabel] != "" }

// logDirectoryName is where in the directory of logs those of a pod are.
func logDirectoryName(m *runtimeapi.PodSandboxMetadata) string { return m.GetName() + "_" + m.GetUid() }

// runOptions are the flags and arguments of berth run.
type runOptions struct {
	name, runtime, network, logs           string
	storage, inodes                        string
	logRate, logBurst                      string
	env, volumes, ports                    []string
	detach, remove, stdin, tty, privileged bool
	image                                  string
	args                                   []string
}

func (o *runOptions) register(f *pflag.FlagSet) {
	f.BoolVarP(&o.stdin, "interactive", "i", false, "pass on what is typed or piped in")
	f.BoolVarP(&o.tty, "tty", "t", false, "give the container a terminal")
	f.BoolVarP(&o.detach, "detach", "d", false, "print the container's id and leave it running")
	f.BoolVar(&o.remove, "rm", false, "remove it when it has ended")
	f.StringVar(&o.name, "name", "", "its `name`; made from the image's when not given")
	f.StringArrayVarP(&o.env, "env", "e", nil, "a `variable`: NAME=VALUE, or NAME to pass on one of this environment")
	f.StringArrayVarP(&o.volumes, "volume", "v", nil, "`paths` of this machine and of the container to mount it at: HOST:CONTAINER[:ro]")
	f.StringArrayVarP(&o.ports, "publish", "p", nil, "`ports` to reach it at from outside: [ADDRESS:]HOSTPORT:CONTAINERPORT[/PROTOCOL]")
	f.StringVar(&o.network, "net", "pod", "the `network`: pod for one of its own, host for this machine's")
	f.StringVar(&o.runtime, "runtime", "", "the runtime `handler`; the daemon's default when not given")
	f.BoolVar(&o.privileged, "privileged", false, "let it do all that this machine can")
	f.StringVar(&o.storage, "storage", "", "bytes that it may write to its root, a `size` such as 500M or 2Gi")
	f.StringVar(&o.logRate, "log-rate", "", "bytes a second that may be written to its log, a `size` such as 100k")
	f.StringVar(&o.logBurst, "log-burst", "", "bytes that may be written to its log at once, a `size`")
	f.StringVar(&o.inodes, "storage-inodes", "", "`number` of files and directories that it may make there")
	f.StringVar(&o.logs, "log-dir", "/var/log/berth", "`directory` of logs; its own is in one of the pod's there")
}

// check refuses what does not go together.
func (o *runOptions) check() error {
	switch {
	case o.network != "pod" && o.network != "host":
		return fail.New(errdefs.ErrInvalidArgument, "--net %s: there is pod and host", o.network)
	case o.network == "host" && len(o.ports) > 0:
		return errors.New("-p has no meaning with --net host: the container's ports are this machine's")
	case o.detach && o.remove:
		return errors.New("--rm needs somebody to wait for the end: leave out -d, or use berth rm -f afterwards")
	}
	return nil
}

// pod is the request for the pod. uid tells it from all others.
func (o *runOptions) pod(uid string) (*runtimeapi.PodSandboxConfig, error) {
	ports, err := each(o.ports, parsePort)
	if err != nil {
		return nil, err
	}
	meta := &runtimeapi.PodSandboxMetadata{Name: o.name, Namespace: runNamespace, Uid: uid}
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     meta,
		LogDirectory: filepath.Join(o.logs, logDirectoryName(meta)),
		PortMappings: ports,
		Labels:       map[string]string{runLabel: o.name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: o.namespaces(), Privileged: o.privileged, Seccomp: o.seccomp(),
		}},
	}
	cfg.Annotations = map[string]string{logAnnotation: cfg.LogDirectory}
	for name, value := range map[string]string{
		annotation.KeyStorageBytes: o.storage, annotation.KeyStorageInodes: o.inodes,
		annotation.KeyLogRate: o.logRate, annotation.KeyLogBurst: o.logBurst,
	} {
		if value != "" {
			cfg.Annotations[name] = value
		}
	}
	if o.network != "host" {
		cfg.Hostname = o.name
	}
	return cfg, nil
}

// container is the request for the container. img is the image's id.
func (o *runOptions) container(img string) (*runtimeapi.ContainerConfig, error) {
	env, err := each(o.env, parseEnv)
	if err != nil {
		return nil, err
	}
	mounts, err := each(o.volumes, parseVolume)
	if err != nil {
		return nil, err
	}
	security := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: o.namespaces(), Privileged: o.privileged, Seccomp: o.seccomp(),
	}
	if !o.privileged {
		security.MaskedPaths, security.ReadonlyPaths = spec.DefaultMaskedPaths(), spec.DefaultReadonlyPaths()
	}
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: o.name},
		Image:    &runtimeapi.ImageSpec{Image: img, UserSpecifiedImage: o.image},
		Args:     o.args,
		Envs:     o.withTerm(env),
		Mounts:   mounts,
		LogPath:  o.name + ".log",
		Labels:   map[string]string{runLabel: o.name},
		Stdin:    o.stdin, StdinOnce: o.stdin && !o.detach, Tty: o.tty,
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: security},
	}, nil
}

func (o *runOptions) namespaces() *runtimeapi.NamespaceOption {
	n := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_CONTAINER, Ipc: runtimeapi.NamespaceMode_POD}
	if o.network == "host" {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	return n
}

func (o *runOptions) seccomp() *runtimeapi.SecurityProfile {
	if o.privileged {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

// withTerm tells a container with a terminal which kind it is.
func (o *runOptions) withTerm(env []*runtimeapi.KeyValue) []*runtimeapi.KeyValue {
	kind := os.Getenv("TERM")
	if !o.tty || kind == "" {
		return env
	}
	return append([]*runtimeapi.KeyValue{{Key: "TERM", Value: []byte(kind)}}, env...) // one that was asked for comes later, and wins
}

// each parses all texts of one flag.
func each[T any](texts []string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for _, text := range texts {
		v, err := parse(text)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func parseEnv(text string) (*runtimeapi.KeyValue, error) {
	name, value, set := strings.Cut(text, "=")
	if name == "" {
		return nil, fmt.Errorf("-e %s: want NAME=VALUE", text)
	}
	if !set {
		if value, set = os.LookupEnv(name); !set {
			return nil, fmt.Errorf("-e %s: there is no such variable here to pass on; want NAME=VALUE", text)
		}
	}
	return &runtimeapi.KeyValue{Key: name, Value: []byte(value)}, nil
}

func parseVolume(text string) (*runtimeapi.Mount, error) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
		return nil, fmt.Errorf("-v %s: want HOST:CONTAINER or HOST:CONTAINER:ro", text)
	}
	if !filepath.IsAbs(parts[1]) {
		return nil, fmt.Errorf("-v %s: %s, the place in the container, must begin with /", text, parts[1])
	}
	host, err := filepath.Abs(parts[0])
	if err != nil {
		return nil, fmt.Errorf("-v %s: %w", text, err)
	}
	m := &runtimeapi.Mount{HostPath: host, ContainerPath: parts[1]}
	if len(parts) == 3 {
		switch parts[2] {
		case "ro":
			m.Readonly = true
		case "rw":
		default:
			return nil, fmt.Errorf("-v %s: there is ro and rw, not %s", text, parts[2])
		}
	}
	return m, nil
}

func parsePort(text string) (*runtimeapi.PortMapping, error) {
	bad := func(why string) (*runtimeapi.PortMapping, error) {
		return nil, fmt.Errorf("-p %s: %s; want [ADDRESS:]HOSTPORT:CONTAINERPORT[/PROTOCOL]", text, why)
	}
	ports, protocol, given := strings.Cut(text, "/")
	if !given {
		protocol = "tcp"
	}
	number, known := runtimeapi.Protocol_value[strings.ToUpper(protocol)]
	if !known {
		return bad("there is tcp, udp and sctp")
	}
	m := &runtimeapi.PortMapping{Protocol: runtimeapi.Protocol(number)}
	rest, container, ok := cutLast(ports, ":")
	if !ok {
		return bad("it names one port")
	}
	if address, host, ok := cutLast(rest, ":"); ok {
		ip, err := netip.ParseAddr(strings.Trim(address, "[]"))
		if err != nil {
			return bad(address + " is not an address")
		}
		m.HostIp, rest = ip.String(), host
	}
	for _, p := range []struct {
		text string
		to   *int32
	}{{rest, &m.HostPort}, {container, &m.ContainerPort}} {
		n, err := strconv.ParseUint(p.text, 10, 16)
		if err != nil || n == 0 {
			return bad(strconv.Quote(p.text) + " is not a port")
		}
		*p.to = int32(n)
	}
	return m, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
