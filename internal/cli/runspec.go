package cli

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/pflag"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/config"
	"berth/internal/fail"
	"berth/internal/sandbox"
)

// What marks the pods of berth run.
const (
	runLabel      = sandbox.RunLabel
	logAnnotation = "berth.run/log-directory"
	runNamespace  = "berth"
)

// When berth run pulls an image.
const (
	pullMissing = "missing"
	pullAlways  = "always"
	pullNever   = "never"
)

// The networks of a pod. Docker's is one of the pod's own.
const (
	podNetwork    = "pod"
	hostNetwork   = "host"
	dockerNetwork = "bridge"
)

func madeByRun(p *runtimeapi.PodSandbox) bool { return sandbox.ByHand(p.GetLabels()) }

// logDirectoryName is where in the directory of logs those of a pod are.
func logDirectoryName(m *runtimeapi.PodSandboxMetadata) string { return m.GetName() + "_" + m.GetUid() }

// runOptions are the flags and arguments of berth run.
type runOptions struct {
	name, runtime, network, logs string
	pod                          string // to run in, in place of one of its own
	hostname, workdir            string
	entrypoint                   *string
	pull, platform               string
	storage, inodes, shm         string
	logRate, logBurst            string
	stopSignal, restart          string
	env, envFiles, ports         []string
	labels, annotations          []string
	dns, search, dnsOptions      []string
	sysctls, ulimits             []string
	detach, remove, stdin, tty   bool
	quiet, publishAll            bool
	image                        string
	args                         []string
	resources                    resourceOptions
	security                     securityOptions
	volumes                      volumeOptions
}

func (o *runOptions) register(f *pflag.FlagSet) {
	f.BoolVarP(&o.stdin, "interactive", "i", false, "pass on standard input")
	f.BoolVarP(&o.tty, "tty", "t", false, "allocate a terminal")
	f.BoolVarP(&o.detach, "detach", "d", false, "run in the background, and print the container's id")
	f.BoolVar(&o.remove, "rm", false, "remove the container when it has ended")
	f.StringVar(&o.name, "name", "", "`name` of the container (default: made from the image's name)")
	f.StringVar(&o.pod, "pod", "", "run in the `pod` of another berth run, in place of a new one")
	f.StringVarP(&o.workdir, "workdir", "w", "", "working `directory` in the container (default: the image's)")
	f.Func("entrypoint", "`program` to run in place of the image's entrypoint, or a JSON list of a program and arguments",
		func(text string) error { o.entrypoint = &text; return nil })
	f.StringArrayVarP(&o.env, "env", "e", nil, "a `variable`: NAME=VALUE, or NAME to pass on one of this environment")
	f.StringArrayVar(&o.envFiles, "env-file", nil, "`file` of variables, one on each line; -e overrides it")
	f.StringArrayVarP(&o.labels, "label", "l", nil, "a `label` of pod and container: NAME=VALUE")
	f.StringArrayVar(&o.annotations, "annotation", nil, "an `annotation` of pod and container: NAME=VALUE")
	f.StringVar(&o.pull, "pull", pullMissing, "`when` to pull the image: missing, always or never")
	f.StringVar(&o.platform, "platform", "", "`os/arch[/variant]` of the image instead of this machine's")
	f.StringVar(&o.stopSignal, "stop-signal", "", "`signal` that asks the container to end, in place of the image's")
	f.StringVar(&o.restart, "restart", string(annotation.Never), "`when` to start the container again after its end: no, "+
		"on-failure, on-failure:TIMES, unless-stopped or always; with -d")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress of a pull")
	f.StringVar(&o.logs, "log-dir", logDirectory, "`directory` of logs, in which each pod has its own")
	f.StringArrayVar(&o.ulimits, "ulimit", nil, "a resource `limit`: NAME=SOFT[:HARD], such as nofile=1024:4096")
	f.StringArray("expose", nil, "a port that the image is known for, which changes nothing")
	f.Bool("sig-proxy", true, "pass signals on, which is what happens anyway")
	f.Bool("no-healthcheck", false, "without the image's health check, which nobody makes")
	for _, name := range []string{"expose", "sig-proxy", "no-healthcheck"} {
		_ = f.MarkHidden(name)
	}
	o.registerPod(f)
	o.resources.register(f)
	f.Int64Var(&o.resources.oom, "oom-score-adj", 0, "`number` by which the kernel chooses whom to kill when memory runs "+
		"out; -1000 is never")
	o.security.register(f)
	o.volumes.register(f)
}

// podFlags are about the pod, and so not for a container that runs in another's.
var podFlags = []string{"publish", "publish-all", "net", "hostname", "runtime", "dns", "dns-search", "dns-option",
	"sysctl", "storage", "storage-inodes", "log-rate", "log-burst", "shm-size", "log-dir", "pid", "ipc"}

func (o *runOptions) registerPod(f *pflag.FlagSet) {
	f.StringArrayVarP(&o.ports, "publish", "p", nil,
		"`ports` to forward from this machine: [[ADDRESS:]HOSTPORT:]CONTAINERPORT[/PROTOCOL]; without HOSTPORT a free "+
			"one")
	f.BoolVarP(&o.publishAll, "publish-all", "P", false, "forward a free port to each port that the image exposes")
	f.StringVar(&o.network, "net", podNetwork, "the `network`, also as --network: pod for a network of its own, host "+
		"for that of this machine")
	f.StringVarP(&o.hostname, "hostname", "h", "", "host `name` in the container (default: its own name)")
	f.StringArrayVar(&o.dns, "dns", nil, "`address` of a name server, in place of this machine's")
	f.StringArrayVar(&o.search, "dns-search", nil, "`domain` in which names are looked up")
	f.StringArrayVar(&o.dnsOptions, "dns-option", nil, "an `option` of resolv.conf")
	f.StringArrayVar(&o.sysctls, "sysctl", nil, "a sysctl `setting` of its namespaces: NAME=VALUE")
	f.StringVar(&o.runtime, "runtime", "", "runtime `handler` (default: the daemon's)")
	f.StringVar(&o.storage, "storage", "", "limit of what it may write to its root, a `size` such as 500M or 2Gi")
	f.StringVar(&o.inodes, "storage-inodes", "", "limit of the `number` of files and directories that it may make there")
	f.StringVar(&o.shm, "shm-size", "", "`size` of /dev/shm, such as 128m")
	f.StringVar(&o.logRate, "log-rate", "", "limit of what it may log in a second, a `size` such as 100k")
	f.StringVar(&o.logBurst, "log-burst", "", "limit of what it may log at once, a `size`")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		switch name {
		case "network":
			name = "net"
		case "dns-opt":
			name = "dns-option"
		}
		return pflag.NormalizedName(name)
	})
}

// check refuses what does not go together.
func (o *runOptions) check(f *pflag.FlagSet) error {
	if o.network == dockerNetwork {
		o.network = podNetwork
	}
	switch {
	case o.network != podNetwork && o.network != hostNetwork:
		return fail.New(errdefs.ErrInvalidArgument, "--net %s: there is pod and host; containers that are to "+
			"reach each other share a pod: --pod NAME", o.network)
	case o.network == hostNetwork && (len(o.ports) > 0 || o.publishAll):
		return errors.New("-p and -P have no meaning with --net host: the container's ports are this machine's")
	case o.network == hostNetwork && o.hostname != "":
		return errors.New("--hostname has no meaning with --net host: the container has this machine's name")
	case o.pull != pullMissing && o.pull != pullAlways && o.pull != pullNever:
		return fail.New(errdefs.ErrInvalidArgument, "--pull %s: there is missing, always and never", o.pull)
	}
	if r, err := annotation.ParseRestart(o.restart); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "--restart %s: %w", o.restart, err)
	} else if r.When != annotation.Never && !o.detach {
		return errors.New("--restart needs -d: without it the end of the container is waited for")
	} else if r.When != annotation.Never && o.remove {
		return errors.New("--restart and --rm do not go together: what has ended starts again, or it is removed")
	}
	for _, name := range podFlags {
		if o.pod != "" && f.Changed(name) {
			return fail.New(errdefs.ErrInvalidArgument, "--%s has no meaning with --pod: it was decided with the pod", name)
		}
	}
	return o.security.check()
}

// podConfig is the request for the pod. uid tells it from all others.
func (o *runOptions) podConfig(uid string) (*runtimeapi.PodSandboxConfig, error) {
	ports, err := each(o.ports, parsePort)
	if err != nil {
		return nil, err
	}
	labels, annotations, err := o.marks()
	if err != nil {
		return nil, err
	}
	sysctls, err := pairs("--sysctl", o.sysctls)
	if err != nil {
		return nil, err
	}
	meta := &runtimeapi.PodSandboxMetadata{Name: o.name, Namespace: runNamespace, Uid: uid}
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     meta,
		LogDirectory: filepath.Join(o.logs, logDirectoryName(meta)),
		PortMappings: ports,
		Labels:       labels,
		Annotations:  annotations,
		Linux:        &runtimeapi.LinuxPodSandboxConfig{SecurityContext: o.security.pod(o.network), Sysctls: sysctls},
	}
	if len(o.dns)+len(o.search)+len(o.dnsOptions) > 0 {
		cfg.DnsConfig = &runtimeapi.DNSConfig{Servers: o.dns, Searches: o.search, Options: o.dnsOptions}
	}
	cfg.Annotations[logAnnotation] = cfg.LogDirectory
	shm, err := memorySize("--shm-size", o.shm)
	if err != nil {
		return nil, err
	}
	if shm > 0 {
		cfg.Annotations[annotation.KeyShmSize] = strconv.FormatInt(shm, 10)
	}
	for name, value := range map[string]string{
		annotation.KeyStorageBytes: o.storage, annotation.KeyStorageInodes: o.inodes,
		annotation.KeyLogRate: o.logRate, annotation.KeyLogBurst: o.logBurst,
	} {
		if value != "" {
			cfg.Annotations[name] = value
		}
	}
	if o.network != hostNetwork {
		cfg.Hostname = cmp.Or(o.hostname, o.name)
	}
	return cfg, nil
}

// marks are the labels and annotations that were asked for, with the label by which a pod of berth run is known.
func (o *runOptions) marks() (labels, annotations map[string]string, err error) {
	if labels, err = pairs("--label", o.labels); err != nil {
		return nil, nil, err
	}
	if annotations, err = pairs("--annotation", o.annotations); err != nil {
		return nil, nil, err
	}
	labels[runLabel] = cmp.Or(o.pod, o.name)
	return labels, annotations, nil
}

// container is the request for the container. img is the image's id, n are the namespaces of its pod.
func (o *runOptions) container(img string, n *runtimeapi.NamespaceOption) (*runtimeapi.ContainerConfig, error) {
	env, err := environment(o.envFiles, o.env)
	if err != nil {
		return nil, err
	}
	command, err := o.command()
	if err != nil {
		return nil, err
	}
	labels, annotations, err := o.marks()
	if err != nil {
		return nil, err
	}
	linux := &runtimeapi.LinuxContainerConfig{}
	if linux.SecurityContext, err = o.security.container(n); err != nil {
		return nil, err
	}
	if linux.Resources, err = o.resources.linux(); err != nil {
		return nil, err
	}
	signal, err := sandboxSignal(o.stopSignal)
	if err != nil {
		return nil, err
	}
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: o.name},
		Image:    &runtimeapi.ImageSpec{Image: img, UserSpecifiedImage: o.image},
		Command:  command, Args: o.args, WorkingDir: o.workdir,
		Envs:    o.withTerm(env),
		LogPath: o.name + ".log",
		Labels:  labels, Annotations: annotations, StopSignal: signal,
		Stdin: o.stdin, StdinOnce: o.stdin && !o.detach, Tty: o.tty,
		Linux: linux,
	}
	if o.restart != string(annotation.Never) {
		cfg.Annotations[annotation.KeyRestart] = o.restart
	}
	switch {
	case o.remove && o.detach: // the daemon does it
		cfg.Annotations[annotation.KeyRemove] = string(annotation.AtEnd)
	case o.remove: // and here where this command is left, or killed
		cfg.Annotations[annotation.KeyRemove] = string(annotation.Later)
	}
	if err := o.volumes.apply(cfg); err != nil {
		return nil, err
	}
	if err := addUlimits(cfg, o.ulimits); err != nil {
		return nil, err
	}
	return cfg, addDevices(cfg, o.security.devices)
}

// command is what takes the place of the image's entry point. An empty one clears it.
func (o *runOptions) command() ([]string, error) {
	switch {
	case o.entrypoint == nil:
		return nil, nil
	case !strings.HasPrefix(*o.entrypoint, "["):
		return []string{*o.entrypoint}, nil
	}
	var list []string
	if err := json.Unmarshal([]byte(*o.entrypoint), &list); err != nil || len(list) == 0 {
		return nil, fail.New(errdefs.ErrInvalidArgument, "--entrypoint %s: want a program, or a JSON list", *o.entrypoint)
	}
	return list, nil
}

// environment is what the files say, and after it what the flags say.
func environment(files, texts []string) (all []*runtimeapi.KeyValue, err error) {
	for _, name := range files {
		vars, err := readEnvFile(name)
		if err != nil {
			return nil, fmt.Errorf("--env-file: %w", err)
		}
		all = append(all, vars...)
	}
	vars, err := each(texts, parseEnv)
	return append(all, vars...), err
}

// withTerm tells a container with a terminal which kind it is.
func (o *runOptions) withTerm(env []*runtimeapi.KeyValue) []*runtimeapi.KeyValue {
	kind := os.Getenv("TERM")
	if !o.tty || kind == "" {
		return env
	}
	// one that was asked for comes later, and wins
	return append([]*runtimeapi.KeyValue{{Key: "TERM", Value: []byte(kind)}}, env...)
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

// pairs reads NAME=VALUE; a name alone has no value.
func pairs(flag string, texts []string) (map[string]string, error) {
	all := map[string]string{}
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		if name == "" || strings.HasPrefix(name, runLabel) {
			return nil, fail.New(errdefs.ErrInvalidArgument, "%s %s: want NAME=VALUE, and no name that begins with %s", flag,
				text, runLabel)
		}
		all[name] = value
	}
	return all, nil
}

// readEnvFile reads variables as Docker does: one a line, # begins a comment, a name alone passes on one of this
// environment if there is one.
func readEnvFile(name string) (all []*runtimeapi.KeyValue, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, mostLine)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimLeft(lines.Text(), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, set := strings.Cut(line, "=")
		if key == "" || strings.ContainsAny(key, " \t") {
			return nil, fmt.Errorf("%s:%d: %q is not NAME=VALUE", name, n, line)
		}
		if !set {
			if value, set = os.LookupEnv(key); !set {
				continue
			}
		}
		all = append(all, &runtimeapi.KeyValue{Key: key, Value: []byte(value)})
	}
	return all, lines.Err()
}

// addUlimits asks for limits of the container's processes, for which CRI has no words.
func addUlimits(c *runtimeapi.ContainerConfig, texts []string) error {
	var limits []specs.POSIXRlimit
	for _, text := range texts {
		u, err := config.ParseUlimit(strings.ReplaceAll(text, "-1", "unlimited"))
		if err != nil {
			return fail.New(errdefs.ErrInvalidArgument, "--ulimit %w", err)
		}
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(u.Name), Soft: u.Soft, Hard: u.Hard})
	}
	if limits == nil {
		return nil
	}
	list, err := annotation.List(limits)
	c.Annotations[annotation.KeyUlimits] = list
	return err
}

// sandboxSignal is a signal as CRI numbers them.
func sandboxSignal(name string) (runtimeapi.Signal, error) {
	if name == "" {
		return 0, nil
	}
	n, err := sandbox.StopSignal(name)
	if err != nil {
		return 0, fail.New(errdefs.ErrInvalidArgument, "--stop-signal: %w", err)
	}
	return sandbox.CRISignal(n), nil
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

// parsePort reads what Docker reads: without a port of the machine it is 0, and one is chosen later.
func parsePort(text string) (*runtimeapi.PortMapping, error) {
	bad := func(why string) (*runtimeapi.PortMapping, error) {
		return nil, fmt.Errorf("-p %s: %s; want [[ADDRESS:]HOSTPORT:]CONTAINERPORT[/PROTOCOL]", text, why)
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
		rest, container = "", ports
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
		if p.text == "" && p.to == &m.HostPort {
			continue
		}
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
