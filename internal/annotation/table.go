package annotation

import (
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
)

// The keys that clients of Berth write. Those of one container end in its name.
const (
	KeyShmSize       = "pod.berth/shm-size"
	KeyStorageBytes  = "pod.berth/storage-size"
	KeyStorageInodes = "pod.berth/storage-inodes"
	KeyLogRate       = "pod.berth/log-rate"
	KeyLogBurst      = "pod.berth/log-burst"
	KeyLogRateOf     = "log-rate.berth/"
	KeyLogBurstOf    = "log-burst.berth/"
	KeyIngress       = "kubernetes.io/ingress-bandwidth"
	KeyEgress        = "kubernetes.io/egress-bandwidth"
	KeyIPs           = "network.berth/ips"
	KeyMAC           = "network.berth/mac"
	KeyInfiniband    = "network.berth/infiniband-guid"
	KeyDevices       = "cdi.k8s.io/"
	KeyTmpfs         = "container.berth/tmpfs"
	KeyUlimits       = "container.berth/ulimits"
	KeyRestart       = "container.berth/restart"
	KeyRestarts      = "container.berth/restarts"
	KeyRemove        = "container.berth/remove"

	// keyCRIOShmSize is CRI-O's, for pods that come from there. The other counts where both are set.
	keyCRIOShmSize = "io.kubernetes.cri-o.ShmSize"
)

// Row is a key in the table of annotations.
type Row struct {
	Key    string // one that ends in a slash is the beginning of many
	Of     string // whose annotation it is: the pod's or the container's
	Means  string
	Func   string // the function of this package that reads it
	Reader string // the package, below internal/, that asks for it
}

// Rows are all annotations that Berth obeys, in the order of the documentation.
func Rows() []Row {
	return []Row{
		{KeyShmSize, "pod", "the size of `/dev/shm`", "ShmSize", "bundle"},
		{keyCRIOShmSize, "pod", "the same, where `" + KeyShmSize + "` is not set", "ShmSize", "bundle"},
		{KeyStorageBytes, "pod", "bytes that each container may write to its root", "StorageBytes", "bundle"},
		{KeyStorageInodes, "pod", "files and directories that each container may have there", "StorageInodes", "bundle"},
		{KeyLogRate, "pod", "bytes a second that may be written to each container's log", "LogRate", "bundle"},
		{KeyLogRateOf, "pod", "the same for the container whose name follows", "LogRate", "bundle"},
		{KeyLogBurst, "pod", "bytes that may be written to each container's log at once", "LogBurst", "bundle"},
		{KeyLogBurstOf, "pod", "the same for the container whose name follows", "LogBurst", "bundle"},
		{KeyIngress, "pod", "bits a second that the pod may receive", "Ingress", "network"},
		{KeyEgress, "pod", "bits a second that the pod may send", "Egress", "network"},
		{KeyIPs, "pod", "the addresses that the pod is to get, separated by commas", "IPs", "network"},
		{KeyMAC, "pod", "the hardware address that the pod is to get", "MAC", "network"},
		{KeyInfiniband, "pod", "the InfiniBand GUID that the pod is to get", "InfinibandGUID", "network"},
		{KeyDevices, "container", "CDI devices, separated by commas; any name may follow", "Devices", "cdi"},
		{KeyTmpfs, "container", "empty directories in memory: a JSON list of `PATH:OPTION,OPTION`", "Tmpfs", "spec"},
		{KeyUlimits, "container", "limits of its processes: a JSON list of `type`, `soft` and `hard`", "Ulimits", "spec"},
		{KeyRestart, "container", "when a container of `berth run` starts again by itself: `no`, `on-failure`, " +
			"`on-failure:TIMES`, `unless-stopped` or `always`", "RestartPolicy", "sandbox"},
		{KeyRestarts, "container", "how often in a row it has done so; Berth writes it", "Restarts", "restart"},
		{KeyRemove, "container", "`true` has a container of `berth run` removed at its end, with its pod where that was " +
			"made for it; `later` a minute after that, unless somebody has removed it", "Remove", "sandbox"},
	}
}

// Devices are the names of devices that a container's annotations ask for, as device plugins had to use before CRI had
// a field for them.
func Devices(all map[string]string) (names []string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, KeyDevices) {
			names = append(names, strings.Split(all[key], ",")...)
		}
	}
	return names
}

// invalid is the error of a value that cannot be.
func invalid(key, value string, err error) error {
	return fail.New(errdefs.ErrInvalidArgument, "annotation %s: %q: %w", key, value, err)
}
