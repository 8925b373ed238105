package config

import (
	"fmt"
	"slices"
	"strings"
)

// handlerKeys is the table of the keys of a handler, in the order of the documentation.
var handlerKeys = []key[Handler]{
	{
		name:    "path",
		field:   of(func(h *Handler) *string { return &h.Path }, optionalPath, ""),
		comment: "The program of this OCI runtime.",
		meaning: "the OCI runtime of the handler `<name>`; required. `<name>` is a DNS label, as in a " +
			"RuntimeClass",
	},
	{
		name:  "driver",
		field: of(func(h *Handler) *string { return &h.Driver }, oneOfOrEmpty(DriverOCI, DriverInfra), DriverOCI),
		comment: "oci: a pod is its namespaces. oci-infra: a container of this runtime stands for the pod, as " +
			"gVisor wants it.",
		meaning: "`oci` or `oci-infra`: how a pod is isolated; see [runtimes](runtimes.md#drivers)",
	},
	{
		name:    "args",
		field:   of(func(h *Handler) *[]string { return &h.Args }, optionalList.with("list of options", checkArgs), nil),
		comment: "Arguments of every call of the program, before the command.",
		meaning: "options of every call of the program, before the command, such as `\"--platform=systrap\"` of " +
			"[gVisor](runtimes.md#gvisor); not those that Berth gives itself (`--root`, `--log`, " +
			"`--log-format`, `--systemd-cgroup`)",
	},
	{
		name:    "init",
		field:   of(func(h *Handler) *bool { return &h.Init }, boolean, false),
		comment: "Every pod gets an init, for agents that need the pid of a pod.",
		meaning: "every pod gets an init, so that it has a pid; see " +
			"[runtimes](runtimes.md#a-pid-for-every-pod)",
	},
	{
		name: "base_spec", unset: "none",
		field:   of(func(h *Handler) *string { return &h.BaseSpec }, optionalPath, ""),
		comment: "A file with an OCI spec that is put under that of every container. Empty: none.",
		meaning: "a file with an OCI spec that is put under that of every container; see " +
			"[runtimes](runtimes.md#a-base-spec). Read at start and at a reload",
	},
	{
		name: "pids_limit",
		field: of(func(h *Handler) *int {
			return &h.PidsLimit
		}, processes(-1, func(v int) string { return fmt.Sprintf("%d is less than -1, which is no limit", v) }), 0),
		comment: "Processes of a container that asks for no limit. 0: as limits.pids says. -1: no limit.",
		meaning: "processes of a container that asks for no limit; 0: as `limits.pids` says; -1: no limit",
	},
	{
		name:  "ulimits",
		field: of(func(h *Handler) *[]string { return &h.Ulimits }, listOfUlimits, nil),
		comment: "Limits of the processes of every container, such as \"nofile=1024:524288\" (soft:hard) or " +
			"\"memlock=unlimited\".",
		meaning: "limits of the processes of every container (setrlimit(2)), each as `name=soft:hard` or `name=value`, " +
			"with `unlimited` for none: `\"nofile=1024:524288\"`, `\"memlock=unlimited\"`; see [runtimes](runtimes.md#ulimits)",
	},
	{
		name:    "shm_size",
		field:   of(func(h *Handler) *int64 { return &h.ShmSize }, between[int64]("bytes", 0, 1<<50), 0),
		comment: "Bytes of /dev/shm of a pod whose annotation pod.berth/shm-size says nothing. 0: 64 MiB.",
		meaning: "bytes of the `/dev/shm` of a pod whose annotation `pod.berth/shm-size` says nothing; 0: 64 MiB; see " +
			"[runtimes](runtimes.md#the-size-of-devshm)",
	},
	{
		name:    "max_shm_size",
		field:   of(func(h *Handler) *int64 { return &h.MaxShmSize }, between[int64]("bytes", 0, 1<<50), 0),
		comment: "The most bytes that a pod may ask for by that annotation. 0: any number.",
		meaning: "the most bytes of `/dev/shm` that a pod may ask for; 0: any number, since they count to its memory",
	},
	{
		name: "seccomp.socketcall",
		field: of(func(h *Handler) *string { return &h.Socketcall }, oneOf(SocketcallAllow, SocketcallDeny),
			SocketcallAllow),
		comment: "Whether the default seccomp filter allows or denies socketcall, with which 32-bit programs use the " +
			"network, and which opens socket families that it does not see.",
		meaning: "`allow` or `deny`: whether the default seccomp filter lets containers call `socketcall`, with which " +
			"32-bit programs use the network, and which opens [socket families](security.md#socket-families) that " +
			"the filter does not see",
	},
	{
		name:    "storage_size",
		field:   of(func(h *Handler) *int64 { return &h.StorageSize }, storage("bytes", LeastStorageSize), 0),
		comment: "Bytes that a container may write to its root, unless pod.berth/storage-size says it. 0: no limit.",
		meaning: "bytes that each container may write to its root, where the pod's annotation " +
			"`pod.berth/storage-size` says nothing; 0: no limit; see [runtimes](runtimes.md#the-size-of-a-containers-root)",
	},
	{
		name:    "storage_inodes",
		field:   of(func(h *Handler) *int64 { return &h.StorageInodes }, storage("files", LeastStorageInodes), 0),
		comment: "The same, of files and directories, and of pod.berth/storage-inodes.",
		meaning: "files and directories that each container may have in its root beside the image's, where the pod's " +
			"annotation `pod.berth/storage-inodes` says nothing; 0: no limit",
	},
	{
		name:    "max_storage_size",
		field:   of(func(h *Handler) *int64 { return &h.MaxStorageSize }, storage("bytes", LeastStorageSize), 0),
		comment: "The most bytes that a pod may ask for by that annotation. 0: as storage_size says.",
		meaning: "the most bytes that a pod may ask for; 0: as many as `storage_size` says, any number where that is 0",
	},
	{
		name:    "max_storage_inodes",
		field:   of(func(h *Handler) *int64 { return &h.MaxStorageInodes }, storage("files", LeastStorageInodes), 0),
		comment: "The same, of files and directories.",
		meaning: "the most files and directories that a pod may ask for; 0: as many as `storage_inodes` says, any number " +
			"where that is 0",
	},
	{
		name: "storage_without_quota",
		field: of(func(h *Handler) *string { return &h.StorageWithoutQuota }, oneOfOrEmpty(StorageWatch, StorageRefuse),
			StorageWatch),
		comment: "Where the file system of root has no quota: watch what such containers write, or refuse their pods.",
		meaning: "what becomes of pods with a limit where the file system of `root` has no project quota: `watch` only " +
			"tells who is beyond the limit, `refuse` refuses the pods",
	},
	{
		name:    "log_rate",
		field:   of(func(h *Handler) *int64 { return &h.LogRate }, logBytes(LeastLogRate), 0),
		comment: "Bytes a second that may be written to a container's log, unless pod.berth/log-rate says it. 0: no limit.",
		meaning: "bytes a second that may be written to each container's log, where the pod's annotation " +
			"`pod.berth/log-rate` says nothing; what is over it is dropped; 0: no limit; see " +
			"[runtimes](runtimes.md#how-much-a-container-may-log)",
	},
	{
		name:  "log_burst",
		field: of(func(h *Handler) *int64 { return &h.LogBurst }, logBytes(LeastLogBurst), 0),
		comment: "Bytes that may be written at once, unless pod.berth/log-burst says it. 0: as many as in a second, and at " +
			"least 64 KiB.",
		meaning: "bytes that may be written at once, where the pod's annotation `pod.berth/log-burst` says nothing; 0: as " +
			"many as in a second, and at least 64 KiB",
	},
	{
		name:    "max_log_rate",
		field:   of(func(h *Handler) *int64 { return &h.MaxLogRate }, logBytes(LeastLogRate), 0),
		comment: "The most bytes a second that a pod may ask for. 0: as log_rate says.",
		meaning: "the most bytes a second that a pod may ask for; 0: as many as `log_rate` says, any number where that is 0",
	},
	{
		name:    "max_log_burst",
		field:   of(func(h *Handler) *int64 { return &h.MaxLogBurst }, logBytes(LeastLogBurst), 0),
		comment: "The most bytes at once that a pod may ask for. 0: as log_burst says, or what a second has.",
		meaning: "the most bytes at once that a pod may ask for; 0: as many as `log_burst` says, or else as the most that " +
			"a pod may ask for a second, and at least 64 KiB; any number where the rate is unlimited, too",
	},
	{
		name:    "create_timeout",
		field:   of(func(h *Handler) *Duration { return &h.CreateTimeout }, optionalDuration, Duration{}),
		comment: "Of this runtime's create and of its start. 0s: as timeouts.runtime_create says.",
		meaning: "for this runtime's create, and for its start; 0: as `timeouts.runtime_create` says",
	},
	{
		name:    "privileged_without_host_devices",
		field:   of(func(h *Handler) *bool { return &h.PrivilegedWithoutHostDevices }, boolean, false),
		comment: "A privileged container gets the usual devices only, not the host's.",
		meaning: "a privileged container gets the usual devices only",
	},
	{
		name:  "cgroup_writable",
		field: of(func(h *Handler) *bool { return &h.CgroupWritable }, boolean, false),
		comment: "An unprivileged container gets /sys/fs/cgroup writable. Needs cgroup v2, mounted with " +
			"nsdelegate.",
		meaning: "an unprivileged container gets `/sys/fs/cgroup` writable; needs cgroup v2; see " +
			"[runtimes](runtimes.md#writable-cgroups)",
	},
	{
		name:    "device_ownership_from_security_context",
		field:   of(func(h *Handler) *bool { return &h.DeviceOwnershipFromSecurityContext }, boolean, false),
		comment: "Devices of a request belong to the user and group of the container's security context.",
		meaning: "devices of a request belong to the user and group of the container's security context; see " +
			"[runtimes](runtimes.md#the-owner-of-devices)",
	},
	{
		name:    "pod_annotations",
		field:   of(func(h *Handler) *[]string { return &h.PodAnnotations }, optionalList, nil),
		comment: "Patterns of annotations that this runtime gets to see.",
		meaning: "patterns of the pod's annotations that the runtime gets to see; a trailing `*` matches any " +
			"rest",
	},
	{
		name:    "container_annotations",
		field:   of(func(h *Handler) *[]string { return &h.ContainerAnnotations }, optionalList, nil),
		meaning: "the same, of the container's annotations",
	},
}

// storage is a limit of a writable layer: none, or enough to make a container in.
func storage(unit string, lowest int64) kind[int64] {
	return noneOr(unit, lowest, 1<<60, "too little to make a container in")
}

// logBytes is a limit of a log: none, or enough for an entry.
func logBytes(lowest int64) kind[int64] { return noneOr("bytes", lowest, 1<<50, "too little") }

// noneOr is a number of some unit that is 0, or from lowest to highest. What is below is told to be little.
func noneOr(unit string, lowest, highest int64, little string) kind[int64] {
	k := between[int64](unit, 0, highest)
	return k.with(fmt.Sprintf("whole number of %s: 0, or %d or more", unit, lowest), func(v int64) string {
		if v > 0 && v < lowest {
			return fmt.Sprintf("%d is %s: at least %d, or 0", v, little, lowest)
		}
		return ""
	})
}

var listOfUlimits = optionalList.with("list of limits", checkUlimits)

func checkUlimits(limits []string) string {
	seen := map[string]bool{}
	for _, text := range limits {
		u, err := ParseUlimit(text)
		switch {
		case err != nil:
			return err.Error()
		case seen[u.Name]:
			return fmt.Sprintf("%q: there is another limit of %s", text, u.Name)
		}
		seen[u.Name] = true
	}
	return ""
}

// reserved are the arguments of an OCI runtime that the daemon gives itself.
var reserved = []string{"root", "log", "log-format", "systemd-cgroup"}

func checkArgs(args []string) string {
	for _, a := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case !strings.HasPrefix(a, "-") || name == "":
			return fmt.Sprintf("%q is no option: write one with its value as %q", a, "--option=value")
		case slices.Contains(reserved, name):
			return fmt.Sprintf("%q is the daemon's to say", a)
		}
	}
	return ""
}
