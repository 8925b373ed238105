// Package config makes one immutable value of what an administrator configured: the defaults, a TOML file, the
// drop-ins beside it, and the daemon's flags, the later winning over the earlier. What is wrong in it is refused with
// file, line and key, before anything starts.
package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"
)

// What becomes of pods whose runtime has known holes.
const (
	HolesWarn   = "warn"
	HolesRefuse = "refuse"
)

// How the cgroups of containers are called.
const (
	NamesOwn        = "berth"
	NamesContainerd = "containerd"
	NamesCRIO       = "crio"
)

// AppArmorOff is the value of apparmor with which containers that name no profile run without one.
const AppArmorOff = "off"

// Whether containers get SELinux labels, where it is configured.
const (
	SELinuxOn  = "on"
	SELinuxOff = "off"
)

// Where things are by default.
const (
	DefaultPath   = "/etc/berth/config.toml"
	defaultRoot   = "/var/lib/berth"
	defaultState  = "/run/berth"
	defaultSocket = "/run/berth/berth.sock"
)

// defaultInstance is the instance whose root is the default one.
const defaultInstance = "berth"

// Config is the configuration in force. One that Load returned is not changed any more.
type Config struct {
	Root      string // what outlives a boot
	State     string // what dies with a boot
	Socket    string // where CRI is served
	LogLevel  string // debug, info, warn or error
	LogFormat string // text or json
	// CgroupDriver is cgroupfs or systemd; empty: systemd where it can be.
	CgroupDriver string
	// CgroupNames is how the cgroups of new containers are called: NamesOwn, NamesContainerd or NamesCRIO.
	CgroupNames string
	// CgroupFavorDynmods sets the option favordynmods of the node's cgroup2 hierarchy.
	CgroupFavorDynmods bool
	// CRIOSocket is where a kubelet's cAdvisor is answered as by CRI-O; empty: nowhere.
	CRIOSocket string
	// SELinux is SELinuxOn or SELinuxOff; empty: on where the kernel has it and its policy knows containers.
	SELinux string
	// AppArmor is AppArmorOff; empty: containers that name no profile run under berth-default, where they can.
	AppArmor string
	// KnownHoles is HolesWarn or HolesRefuse: what becomes of new pods whose runtime has published ways out.
	KnownHoles string

	CNI       CNI       // networks
	CDI       CDI       // devices that vendors describe
	Registry  Registry  // where images come from
	Images    Images    // how they are kept
	Verifier  Verifier  // who may refuse them
	NRI       NRI       // plugins that take part in the lives of pods
	Runtimes  Runtimes  // what runs containers
	Streaming Streaming // where exec, attach and port-forward are served
	Monitor   Monitor   // the process that holds a pod
	Pods      Pods      // what a pod gets that asks for nothing
	Limits    Limits    // what a container gets that asks for none, and may ask for
	Timeouts  Timeouts  // how long programs may take
	Metrics   Metrics   // where the daemon's own metrics are served

	where places // who said what last
}

// Refuse is an error about the value of a key, at the place that set it.
func (c *Config) Refuse(key, why string) error { return c.where.refuse("configuration", key, why) }

// CNI says how pods get their network.
type CNI struct {
	ConfigDir       string
	PluginDirs      []string
	PodCIDRTemplate string // empty: the kubelet's pod CIDR is not written anywhere
	AddTimeout      Duration
	DelTimeout      Duration
}

// CDI says where devices are described.
type CDI struct {
	SpecDirs []string
}

// Registry says how registries are reached.
type Registry struct {
	ConfigDir string // certs.d
}

// Images says how images are fetched and kept.
type Images struct {
	Root                   string   // empty: below the root of all, see ImagesRoot
	MaxConcurrentDownloads int      // layers at once, over all pulls; see Downloads
	MaxPullLayers          int      // layers at once, of one pull; see PullLayers
	MaxLayerConnections    int      // of one layer to its registry
	StallTimeout           Duration // a registry that sends next to nothing for so long is given up
	FirstByteTimeout       Duration // for a registry to begin to send a blob
	ForeignLayerURLs       bool     // manifests may say where foreign layers are
	Possession             string   // who must have served a blob: "repository" or "registry"
	MaxBufferBytes         int64    // fetched ahead of what is unpacked, over all pulls
	Gunzip                 string   // GunzipAuto, GunzipNever, or the path of an igzip
	Pinned                 []string // references that garbage collection must not take
	PreloadDir             string   // holds images that are to be there; empty: none
	PreloadPinned          bool     // garbage collection must not take them
	MaxLayers              int      // of an image
	MaxManifestBytes       int64    // of a manifest or an index
	MaxConfigBytes         int64    // of an image's config
	MaxImageBytes          int64    // of all layers of an image, as they are fetched
	MaxLayerBytes          int64    // that one layer may unpack to
	MaxLayerEntries        int      // of one layer
	MaxLayerMemoryBytes    int64    // for what is kept of one layer while it is unpacked
	MinFreePercent         int      // of the file system, which no pull or import may take
	Unpack                 string   // who unpacks layers: UnpackInDaemon or UnpackInProcess
	Unpacker               string   // the program that unpacks layers; empty: looked for, see UnpackerPath
}

// Downloads returns how many layers are fetched at once on a machine with so many cores.
func (i *Images) Downloads(cores int) int {
	return cmp.Or(i.MaxConcurrentDownloads, max(8, min(2*cores, 64)))
}

// PullLayers returns how many of them may be of one pull. A layer keeps about one core busy.
func (i *Images) PullLayers(cores int) int { return cmp.Or(i.MaxPullLayers, max(4, min(cores, 32))) }

// Verifier says which programs are asked before an image is fetched.
type Verifier struct {
	Dir     string // holds the programs; empty: none is asked
	Max     int    // programs that may be in it
	Timeout Duration
}

// NRI says which plugins of the Node Resource Interface take part.
type NRI struct {
	Enable                 *bool  // nil: NRIEnabled says
	Socket                 string // where plugins connect; empty: none may
	PluginDir              string // programs that are started with the daemon
	ConfigDir              string // their configuration
	RegistrationTimeout    Duration
	RequestTimeout         Duration
	SynchronizationTimeout Duration // of the answer to Synchronize, during which no container is made
	Validator              Validator
}

// Validator says what plugins of NRI may change of containers, and which of them must take part.
type Validator struct {
	Enable          bool     // otherwise nothing is judged
	RequiredPlugins []string // by their names, with or without the index
	TolerateMissing string   // the annotation of pods that do without them; empty: none may

	RejectHooks, RejectNamespaces, RejectSysctls                       bool
	RejectDefaultSeccomp, RejectUnconfinedSeccomp, RejectCustomSeccomp bool
}

// Runtimes says which OCI runtimes a pod may ask for.
type Runtimes struct {
	Default  string             // empty: probed
	Handlers map[string]Handler // by the handler's name
}

// The drivers of handlers: how the pods of a handler are isolated.
const (
	DriverOCI   = "oci"       // pinned namespaces, and no container that stands for the pod
	DriverInfra = "oci-infra" // a container that stands for the pod comes first, for runtimes that make a sandbox of it
)

// What the default seccomp filter does with socketcall, by which 32-bit programs make sockets.
const (
	SocketcallAllow = "allow"
	SocketcallDeny  = "deny"
)

// Handler is one OCI runtime, and how it is used.
type Handler struct {
	Path     string
	Driver   string   // DriverOCI or DriverInfra; empty is DriverOCI
	Args     []string // before the command, in every call of the runtime
	Init     bool     // every pod gets an init, so that it has a pid
	BaseSpec string   // a file with an OCI spec that is under every container's; empty: none
	// processes of a container that asks for no limit; 0: Limits.Pids, below 0: no limit
	PidsLimit                    int
	Ulimits                      []string // limits of every container's processes, as ParseUlimit reads them
	ShmSize                      int64    // bytes of the /dev/shm of a pod that asks for no size; 0: 64 MiB
	MaxShmSize                   int64    // the most bytes that a pod may ask for; 0: any number
	Socketcall                   string   // SocketcallAllow or SocketcallDeny; empty is SocketcallAllow
	StorageSize                  int64    // bytes of each container's writable layer; 0: no limit
	StorageInodes                int64    // the same, of files and directories
	MaxStorageSize               int64    // the most bytes that a pod may ask for; 0: StorageSize, if that is a limit
	MaxStorageInodes             int64    // the same, of files and directories
	LogRate                      int64    // bytes a second that may be written to a container's log; 0: no limit
	LogBurst                     int64    // and at once; 0: LogRate, but at least LeastLogBurst
	MaxLogRate                   int64    // the most bytes that a pod may ask for; 0: LogRate, if that is a limit
	MaxLogBurst                  int64    // the same of the burst
	StorageWithoutQuota          string   // StorageWatch or StorageRefuse; empty is StorageWatch
	CreateTimeout                Duration // of create and start; 0: Timeouts.RuntimeCreate
	PrivilegedWithoutHostDevices bool
	// CgroupWritable mounts /sys/fs/cgroup writable in unprivileged containers. It needs cgroup v2.
	CgroupWritable bool
	// DeviceOwnershipFromSecurityContext gives the devices of a request to the user and group of its security context.
	DeviceOwnershipFromSecurityContext bool
	PodAnnotations                     []string // patterns of annotations that the runtime gets to see
	ContainerAnnotations               []string
}

// LeastLogRate and LeastLogBurst are the least that the limit of a log can be, in bytes: the longest entry fits into a
// burst.
const LeastLogRate, LeastLogBurst = 1 << 10, 64 << 10

// What becomes of pods with a limit of storage where the file system has no quota, and the least that can be a limit:
// an OCI runtime has to make the places for a container's mounts in it.
const (
	StorageWatch  = "watch"
	StorageRefuse = "refuse"

	LeastStorageSize   = 1 << 20
	LeastStorageInodes = 64
)

// Streaming says where exec, attach and port-forward are served.
type Streaming struct {
	Address     string // an IP address or a name of the node
	Port        int    // 0: any
	Cert, Key   string // for TLS; empty: none
	IdleTimeout Duration
	MaxWaiting  int // sessions asked for and not begun
	MaxSessions int // those, and sessions that have begun

	MaxTargetSessions int // of one container or pod
}

// Monitor says which monitor holds the pods.
type Monitor struct {
	Path string // empty: looked for, see MonitorPath
}

// Pods says what processes without powers may do in pods that have a network of their own, unless the pod sets it by
// its own sysctls, and who is shown which pods.
type Pods struct {
	UnprivilegedPorts bool // listen on ports below 1024
	UnprivilegedICMP  bool // send ICMP echo requests, as ping does

	ListByHand bool // show the pods of berth run to all clients of CRI
}

// Limits are for a container that asks for none, and for what may be asked for.
type Limits struct {
	Pids   int   // processes of a container that asks for no limit; 0 is no limit
	Memory int64 // bytes of the daemon itself; 0 is by what its start took, -1 is no limit

	Connections, Calls, Execs, Pulls int // of clients, which share them

	RequestBytes   int64 // of a request of CRI
	RequestEntries int   // of each list and map in it
	LabelBytes     int64 // of each map in it
}

// Metrics says where Prometheus finds what the daemon tells of itself.
type Metrics struct {
	Address string // host:port; empty: nowhere
}

// Timeouts bound what the daemon waits for.
type Timeouts struct {
	RuntimeCreate Duration // of an OCI runtime's create and of its start
	CreateAbandon Duration // a create for which no caller waits is undone after it
}

// Duration is written as Go writes it: "90s", "1m30s".
type Duration struct{ time.Duration }

// UnmarshalText reads what MarshalText writes.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as \"90s\" or \"2m\"", text)
	}
	d.Duration = v
	return nil
}

// MarshalText writes the duration as Go does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// ImagesRoot is the directory of the image store.
func (c *Config) ImagesRoot() string {
	if c.Images.Root != "" {
		return c.Images.Root
	}
	return filepath.Join(c.Root, "images")
}

// Instance is what every name on the host that this daemon makes begins with, so that daemons with roots of their own
// live side by side.
func (c *Config) Instance() string {
	if c.Root == defaultRoot {
		return defaultInstance
	}
	sum := sha256.Sum256([]byte(c.Root))
	return "berth-" + hex.EncodeToString(sum[:])[:6]
}

// NRIEnabled reports whether plugins of the Node Resource Interface take part. Where the configuration does not say,
// they do for the default instance only: the default socket and plugin directory are one of each a node, so a second
// Berth leaves them to the first.
func (c *Config) NRIEnabled() bool {
	if c.NRI.Enable != nil {
		return *c.NRI.Enable
	}
	return c.Instance() == defaultInstance
}

// names are the configured handlers in order.
func (r Runtimes) names() []string { return slices.Sorted(maps.Keys(r.Handlers)) }
