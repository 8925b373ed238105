package sandbox

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/record"
	"berth/internal/runtime"
	"berth/internal/spec"
)

// RecordKind is the format of <root>/pods/<id>/record; docs/storage-format.md describes it.
var RecordKind = record.Kind{Name: "pod", Version: 1, Oldest: 1}

// Record is all that is known of a pod and its containers. A published Record is never changed.
type Record struct {
	ID        ID
	State     State
	CreatedAt time.Time
	Handler   string // the runtime handler as asked for, "" for the default
	Runtime   string // the handler's name in force
	// Using is the handler as it was when the pod was made; nil in a record of an earlier release. What the pod has is
	// unmade by it, whatever the configuration says by then.
	Using  *runtime.Handler `json:",omitempty"`
	Digest string           // of the request, to tell a repeated one from another
	Boot   string           // the boot in which its live things were made
	Config PodConfig
	IPs    []netip.Addr `json:",omitempty"` // first is the primary
	// SELinux are the labels of the pod's processes and files, with the categories that are its own; none where it has
	// none.
	SELinux spec.Labels `json:",omitzero"`
	// Stuck says at which step its undo fails, until it succeeds.
	Stuck      *Failure     `json:",omitempty"`
	Containers []*Container `json:",omitempty"` // in the order of their creation
	// Init is the pod's own init process, where it has one.
	Init runtime.Process `json:",omitzero"`
	// StopAsked says that a client asked for the pod's end, so that nothing of it starts again by itself. It is noted in
	// pods of berth run alone, as that of containers is.
	StopAsked bool `json:",omitempty"`
}

// Failure says what keeps an undo from ending.
type Failure struct {
	Error string
	Since time.Time
	Tries int
}

// Again is what is known once the undo has failed again, for the first time where f is nil. The text is clipped: what
// has failed may say megabytes, and the record is written anew with each try.
func (f *Failure) Again(cause error) *Failure {
	next := Failure{Since: time.Now()}
	if f != nil {
		next = *f
	}
	next.Error, next.Tries = fail.Clip(cause.Error()), next.Tries+1
	return &next
}

// Container is all that is known of a container.
type Container struct {
	ID         ID
	State      State
	CreatedAt  time.Time
	StartedAt  time.Time `json:",omitzero"`
	FinishedAt time.Time `json:",omitzero"`
	ExitCode   int32     `json:",omitempty"`
	Reason     string    `json:",omitempty"`
	Message    string    `json:",omitempty"`
	Digest     string    // of the request
	Config     ContainerConfig
	Image      string // the image's id
	// ImageRef is the image by its digest in a repository, as the request named it, or its id where it is in none. It
	// stays what it was when names of the image are removed. Records of an earlier release have none.
	ImageRef   string          `json:",omitempty"`
	Volumes    []ImageVolume   `json:",omitempty"` // the images that it mounts
	Layers     []string        // the layers that its root and its volumes are made of, which a sweep of images keeps
	User       spec.User       // resolved from the image and the request
	StopSignal int             // sent by Stop
	Cgroup     string          // linux.cgroupsPath
	Process    runtime.Process `json:",omitzero"`
	Stuck      *Failure        `json:",omitempty"`
	// Reaped says that the runtime, the monitor and the mounts hold nothing of it any more since it ended, so that no
	// caller clears that away again. Records of an earlier release do not say it.
	Reaped bool `json:",omitempty"`
	// Resources are the limits in force, where they were changed since the container was made.
	Resources Resources `json:",omitzero"`
	// Storage is what it may write to its root. Records of an earlier release have none.
	Storage *Storage `json:",omitempty"`
	// LogLimit is what may be written to its log; nil is no limit.
	LogLimit *LogLimit `json:",omitempty"`
	// StopAsked says that a client asked for its end.
	StopAsked bool `json:",omitempty"`
}

// PodConfig and ContainerConfig hold a CRI message together with its JSON form, which is made once: a record is written
// at every change of state, a configuration never changes.
type (
	PodConfig struct {
		message[*runtimeapi.PodSandboxConfig]
	}
	ContainerConfig struct {
		message[*runtimeapi.ContainerConfig]
	}
	// Resources are the limits of a container.
	Resources struct {
		message[*runtimeapi.LinuxContainerResources]
	}
)

type message[M proto.Message] struct {
	msg  M
	json json.RawMessage
}

// NewPodConfig copies what it is given.
func NewPodConfig(m *runtimeapi.PodSandboxConfig) (PodConfig, error) {
	msg, err := newMessage(m)
	return PodConfig{msg}, err
}

// NewContainerConfig copies what it is given.
func NewContainerConfig(m *runtimeapi.ContainerConfig) (ContainerConfig, error) {
	msg, err := newMessage(m)
	return ContainerConfig{msg}, err
}

// NewResources copies what it is given.
func NewResources(m *runtimeapi.LinuxContainerResources) (Resources, error) {
	msg, err := newMessage(m)
	return Resources{msg}, err
}

func newMessage[M proto.Message](m M) (message[M], error) {
	m = proto.Clone(m).(M)
	data, err := protojson.Marshal(m)
	return message[M]{m, data}, err
}

// Get returns the message, which the caller does not change.
func (m message[M]) Get() M { return m.msg }

// MarshalJSON returns the form made when the message was set.
func (m message[M]) MarshalJSON() ([]byte, error) {
	if m.json == nil {
		return []byte("null"), nil
	}
	return m.json, nil
}

// UnmarshalJSON reads the form that MarshalJSON writes. Fields that a later release added are passed over.
func (c *PodConfig) UnmarshalJSON(data []byte) error {
	c.msg = &runtimeapi.PodSandboxConfig{}
	c.json = slices.Clone(data)
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, c.msg)
}

// UnmarshalJSON reads the form that MarshalJSON writes. Fields that a later release added are passed over.
func (c *ContainerConfig) UnmarshalJSON(data []byte) error {
	c.msg = &runtimeapi.ContainerConfig{}
	c.json = slices.Clone(data)
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, c.msg)
}

// UnmarshalJSON reads the form that MarshalJSON writes. Fields that a later release added are passed over.
func (c *Resources) UnmarshalJSON(data []byte) error {
	c.msg = &runtimeapi.LinuxContainerResources{}
	c.json = slices.Clone(data)
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, c.msg)
}

// Limits are the container's limits in force, nil when it asked for none.
func (c *Container) Limits() *runtimeapi.LinuxContainerResources {
	if changed := c.Resources.Get(); changed != nil {
		return changed
	}
	return c.Config.Get().GetLinux().GetResources()
}

// Container returns the container with that id, nil when there is none.
func (r *Record) Container(id ID) *Container {
	for _, c := range r.Containers {
		if c.ID == id {
			return c
		}
	}
	return nil
}

// Named returns the container with that name and attempt, nil when there is none.
func (r *Record) Named(m *runtimeapi.ContainerMetadata) *Container {
	for _, c := range r.Containers {
		if got := c.Config.Get().Metadata; got.GetName() == m.GetName() && got.GetAttempt() == m.GetAttempt() {
			return c
		}
	}
	return nil
}

// Clone returns a copy whose own fields may be set; what its pointers lead to is shared.
func (r *Record) Clone() *Record {
	c := *r
	c.Containers = slices.Clone(r.Containers)
	return &c
}

// Edit replaces the container by a copy that fn changed.
func (r *Record) Edit(id ID, fn func(*Container) error) error {
	for i, c := range r.Containers {
		if c.ID == id {
			changed := *c
			if err := fn(&changed); err != nil {
				return err
			}
			r.Containers[i] = &changed
			return nil
		}
	}
	return NotFound("container", id)
}

// Live reports whether the container has, or may have, a process.
func (c *Container) Live() bool {
	return c.State == Created || c.State == Starting || c.State == Running
}

// Unreaped reports whether the container has ended and something of it may be left to clear away.
func (c *Container) Unreaped() bool { return c.State == Exited && (!c.Reaped || c.Stuck != nil) }

// Listed reports whether a kubelet may see the container: one being created is not there yet, and one whose creation is
// being undone never was. It would be taken for one that ended well.
func (c *Container) Listed() bool {
	return c.State != Creating && (c.State != Removing || !c.FinishedAt.IsZero())
}

// RunLabel marks the pods of berth run. kubeletLabel is one that a kubelet gives each of its pods, and nobody can take
// away.
const (
	RunLabel     = "berth.run"
	kubeletLabel = "io.kubernetes.pod.uid"
)

// ByHand reports whether labels are those of a pod that berth run made. No user of Kubernetes can give a pod of a
// kubelet such labels: the kubelet would lose sight of it.
func ByHand(labels map[string]string) bool {
	return labels[RunLabel] != "" && labels[kubeletLabel] == ""
}

// ByHand reports whether berth run made the pod.
func (r *Record) ByHand() bool { return ByHand(r.Config.Get().GetLabels()) }

// HostNetwork reports whether the pod uses the node's network namespace.
func (r *Record) HostNetwork() bool {
	return Namespaces(r.Config.Get()).GetNetwork() == runtimeapi.NamespaceMode_NODE
}

// HostIPC reports whether a pod uses the node's IPC namespace.
func HostIPC(c *runtimeapi.PodSandboxConfig) bool {
	return Namespaces(c).GetIpc() == runtimeapi.NamespaceMode_NODE
}

// Namespaces are the options of a pod about namespaces, nil where it says nothing.
func Namespaces(c *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	return c.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// HasInit reports whether a container of its own stands for the pod: an init for a shared PID namespace, or one that
// its handler asks for.
func (r *Record) HasInit() bool {
	return SharedPID(r.Config.Get()) || r.Using != nil && (r.Using.Init || r.Using.Infra)
}

// Sandboxed reports whether the container has no process of its own on the host: its runtime named that of the pod's
// own container.
func (r *Record) Sandboxed(c *Container) bool { return r.Init.PID != 0 && c.Process == r.Init }

// SharedPID reports whether the pod's containers share one PID namespace, for which it needs an init. It is what CRI
// means by no namespace options at all; a kubelet always sends them.
func SharedPID(c *runtimeapi.PodSandboxConfig) bool {
	return Namespaces(c).GetPid() == runtimeapi.NamespaceMode_POD
}

// ImageVolume is a mount of the request whose source is an image.
type ImageVolume struct {
	Mount int    // its place among the request's mounts
	Image string // the image's id
}

// Storage is what a container may write to its root. A field that is 0 is no limit.
type Storage struct {
	Bytes  uint64 `json:",omitempty"`
	Inodes uint64 `json:",omitempty"`
}

// Unlimited says that nothing is limited. That is so of nil, too.
func (s *Storage) Unlimited() bool { return s == nil || *s == Storage{} }

// LogLimit is how many bytes may be written to a container's log, in a second and at once.
type LogLimit struct{ Rate, Burst int64 }

// Listed reports whether a kubelet may see the pod: one being created is not there yet, one whose undo is stuck is
// there still.
func (r *Record) Listed() bool { return r.State != Creating && (r.State != Removing || r.Stuck != nil) }

// Hostname is what the pod's containers see as the name of their host. A pod with the node's network has the node's UTS
// namespace, and so its name at this moment.
func (r *Record) Hostname() (string, error) {
	if r.HostNetwork() {
		return os.Hostname()
	}
	return OwnHostname(r.Config.Get()), nil
}

// OwnHostname is the name in a pod's own UTS namespace: the one asked for, or the pod's as far as the kernel takes it.
func OwnHostname(cfg *runtimeapi.PodSandboxConfig) string {
	if cfg.Hostname != "" {
		return cfg.Hostname
	}
	name := cfg.Metadata.GetName()
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

// UserNamespace is the user namespace that a pod asks for, nil for the host's. A client that says nothing means the
// host's.
func UserNamespace(c *runtimeapi.PodSandboxConfig) *runtimeapi.UserNamespace {
	u := Namespaces(c).GetUsernsOptions()
	if u == nil || u.GetMode() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	return u
}

// GivenPlain says that the pod was given its cgroup while the driver was cgroupfs: it is not converted for systemd,
// whose driver may be another one by now.
func (r *Record) GivenPlain() bool {
	return r.Config.Get().GetLinux().GetCgroupParent() != "" && r.Using != nil && !r.Using.SystemdCgroup
}

// Log says where the container's log goes.
func (r *Record) Log(c *Container) runtime.Log {
	dir, path := r.Config.Get().LogDirectory, c.Config.Get().LogPath
	if dir == "" || path == "" {
		return runtime.Log{}
	}
	log := runtime.Log{Dir: dir, Path: path}
	if c.LogLimit != nil {
		log.Rate, log.Burst = c.LogLimit.Rate, c.LogLimit.Burst
	}
	return log
}

// LogPath is the container's log file, "" when it has none.
func (r *Record) LogPath(c *Container) string {
	l := r.Log(c)
	return filepath.Join(l.Dir, l.Path)
}

// Problem is something that a person should look at: a record that cannot be read, an undo that does not succeed.
type Problem struct {
	Pod   ID
	What  string
	Since time.Time
}
