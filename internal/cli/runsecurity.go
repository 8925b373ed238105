package cli

import (
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/pflag"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/spec"
)

// securityOptions are the flags of berth run about who a container is and what it may do.
type securityOptions struct {
	user            string
	groups          []string
	add, drop       []string
	options         []string
	devices         []string
	pid, ipc        string
	readonly        bool
	privileged      bool
	noNewPrivileges bool // what follows comes of options
	unmasked        bool
	seccomp         *runtimeapi.SecurityProfile
	apparmor        *runtimeapi.SecurityProfile
	selinux         *runtimeapi.SELinuxOption
}

func (o *securityOptions) register(f *pflag.FlagSet) {
	f.StringVarP(&o.user, "user", "u", "", "run as this `USER[:GROUP]`: a name or number of the image, and a number")
	f.StringArrayVar(&o.groups, "group-add", nil, "additional `group`, a number")
	f.StringArrayVar(&o.add, "cap-add", nil, "`capability` to add to the default ones, such as NET_ADMIN, or ALL")
	f.StringArrayVar(&o.drop, "cap-drop", nil, "`capability` to drop, or ALL")
	f.BoolVar(&o.readonly, "read-only", false, "mount the container's root read-only")
	f.StringArrayVar(&o.devices, "device", nil, "a `device` of this machine: HOST[:CONTAINER][:rwm], or a name of CDI")
	f.StringVar(&o.pid, "pid", "", "PID namespace: the container's own, that of its `pod`, or that of the host")
	f.StringVar(&o.ipc, "ipc", "", "IPC namespace: that of its `pod`, or that of the host")
	f.StringArrayVar(&o.options, "security-opt", nil, "an `option`: no-new-privileges, seccomp=FILE|unconfined, "+
		"apparmor=PROFILE|unconfined, label=type:TYPE and the like, systempaths=unconfined")
	f.BoolVar(&o.privileged, "privileged", false, "give the container all privileges on this machine")
}

// check reads what the options say, before anything is made.
func (o *securityOptions) check() error {
	for flag, v := range map[string]string{"--pid": o.pid, "--ipc": o.ipc} {
		if v != "" && v != "host" && v != "pod" && (flag != "--pid" || v != "private" && v != "container") {
			return fail.New(errdefs.ErrInvalidArgument, "%s %s: there is pod and host", flag, v)
		}
	}
	for _, text := range o.options {
		if err := o.option(text); err != nil {
			return err
		}
	}
	return nil
}

// option reads one --security-opt, as Docker and Podman write them.
func (o *securityOptions) option(text string) (err error) {
	name, value, given := strings.Cut(text, "=")
	if !given {
		name, value, given = strings.Cut(text, ":")
	}
	switch name {
	case "no-new-privileges":
		if o.noNewPrivileges = true; given {
			o.noNewPrivileges, err = strconv.ParseBool(value)
		}
	case "seccomp":
		o.seccomp, err = profileOf(value, filepath.Abs)
	case "apparmor":
		o.apparmor, err = profileOf(value, func(name string) (string, error) { return name, nil })
	case "label":
		return o.label(value)
	case "systempaths", "unmask":
		o.unmasked = value == "unconfined" || value == "ALL"
		given = given && o.unmasked
	default:
		given = false
	}
	if err != nil || !given && name != "no-new-privileges" {
		return fail.New(errdefs.ErrInvalidArgument, "--security-opt %s: want no-new-privileges, seccomp=FILE|unconfined, "+
			"apparmor=PROFILE|unconfined, label=user|role|type|level:VALUE or systempaths=unconfined", text)
	}
	return nil
}

// profileOf is a profile by its name; unconfined is none at all.
func profileOf(name string, find func(string) (string, error)) (*runtimeapi.SecurityProfile, error) {
	switch name {
	case "unconfined":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case "", "runtime/default", "builtin":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	}
	where, err := find(name)
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: where}, err
}

// label reads a part of an SELinux label.
func (o *securityOptions) label(text string) error {
	part, value, _ := strings.Cut(text, ":")
	if o.selinux == nil {
		o.selinux = &runtimeapi.SELinuxOption{}
	}
	switch part {
	case "user":
		o.selinux.User = value
	case "role":
		o.selinux.Role = value
	case "type":
		o.selinux.Type = value
	case "level":
		o.selinux.Level = value
	case "disable":
		o.selinux.Type = "spc_t" // the type that policies have for containers without confinement
	default:
		return fail.New(errdefs.ErrInvalidArgument, "--security-opt label=%s: there is user, role, type, level and disable",
			text)
	}
	return nil
}

// namespaces are those of the pod and of its container alike.
func (o *securityOptions) namespaces(network string) *runtimeapi.NamespaceOption {
	n := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if network == "host" {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	switch o.pid {
	case "host":
		n.Pid = runtimeapi.NamespaceMode_NODE
	case "pod":
		n.Pid = runtimeapi.NamespaceMode_POD
	}
	if o.ipc == "host" {
		n.Ipc = runtimeapi.NamespaceMode_NODE
	}
	return n
}

func (o *securityOptions) seccompProfile() *runtimeapi.SecurityProfile {
	switch {
	case o.seccomp != nil:
		return o.seccomp
	case o.privileged:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

// pod is what the pod is asked to be.
func (o *securityOptions) pod(network string) *runtimeapi.LinuxSandboxSecurityContext {
	return &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: o.namespaces(network), Privileged: o.privileged, Seccomp: o.seccompProfile(),
		SelinuxOptions: o.selinux,
	}
}

// container is what the container is asked to be in a pod with these namespaces.
func (o *securityOptions) container(n *runtimeapi.NamespaceOption) (*runtimeapi.LinuxContainerSecurityContext, error) {
	s := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: n, Privileged: o.privileged, Seccomp: o.seccompProfile(), Apparmor: o.apparmor,
		SelinuxOptions: o.selinux, ReadonlyRootfs: o.readonly, NoNewPrivs: o.noNewPrivileges,
	}
	if len(o.add)+len(o.drop) > 0 {
		s.Capabilities = &runtimeapi.Capability{AddCapabilities: o.add, DropCapabilities: o.drop}
	}
	if !o.privileged && !o.unmasked {
		s.MaskedPaths, s.ReadonlyPaths = spec.DefaultMaskedPaths(), spec.DefaultReadonlyPaths()
	}
	for _, text := range o.groups {
		gid, err := idOf(text)
		if err != nil {
			return nil, fail.New(errdefs.ErrInvalidArgument, "--group-add %s: want the number of a group", text)
		}
		s.SupplementalGroups = append(s.SupplementalGroups, gid)
	}
	return s, runAs(s, o.user)
}

// runAs sets who runs: CRI takes users by name or number, and groups by number alone.
func runAs(s *runtimeapi.LinuxContainerSecurityContext, text string) error {
	if text == "" {
		return nil
	}
	user, group, hasGroup := strings.Cut(text, ":")
	if user == "" {
		return fail.New(errdefs.ErrInvalidArgument, "--user %s: want USER or USER:GROUP", text)
	}
	if uid, err := idOf(user); err == nil {
		s.RunAsUser = &runtimeapi.Int64Value{Value: uid}
	} else {
		s.RunAsUsername = user
	}
	if !hasGroup {
		return nil
	}
	gid, err := idOf(group)
	if err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "--user %s: the group must be a number", text)
	}
	s.RunAsGroup = &runtimeapi.Int64Value{Value: gid}
	return nil
}

// idOf reads the number of a user or group.
func idOf(text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err == nil && n == math.MaxUint32 {
		err = strconv.ErrRange
	}
	return int64(n), err
}

// addDevices gives the container the devices of --device.
func addDevices(c *runtimeapi.ContainerConfig, texts []string) error {
	for _, text := range texts {
		if strings.Contains(text, "=") {
			c.CDIDevices = append(c.CDIDevices, &runtimeapi.CDIDevice{Name: text})
			continue
		}
		d, err := parseDevice(text)
		if err != nil {
			return err
		}
		c.Devices = append(c.Devices, d)
	}
	return nil
}

func parseDevice(text string) (*runtimeapi.Device, error) {
	parts := strings.Split(text, ":")
	d := &runtimeapi.Device{HostPath: parts[0], ContainerPath: parts[0], Permissions: "rwm"}
	if n := len(parts); n > 1 && !strings.HasPrefix(parts[n-1], "/") {
		d.Permissions, parts = parts[n-1], parts[:n-1]
	}
	if len(parts) == 2 {
		d.ContainerPath = parts[1]
	}
	if len(parts) > 2 || !filepath.IsAbs(d.HostPath) || !filepath.IsAbs(d.ContainerPath) || d.Permissions == "" ||
		strings.Trim(d.Permissions, "rwm") != "" {
		return nil, fail.New(errdefs.ErrInvalidArgument, "--device %s: want HOST[:CONTAINER][:rwm] or VENDOR/CLASS=NAME",
			text)
	}
	return d, nil
}
