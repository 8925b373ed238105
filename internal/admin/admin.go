// Package admin is Berth's own small gRPC service, spoken beside CRI on the daemon's socket: what people want and CRI
// has no words for, such as the progress of a pull or a terminal in a container.
//
// It holds the messages, the client, and the glue between gRPC and the Server that the daemon provides. Messages travel
// as JSON (the content subtype "json"), so there is nothing to generate; fields may be added, never renamed or removed.
package admin

import (
	"context"
	"encoding/json"
	"io"
	"time"
)

// ServiceName is the gRPC name of the service.
const ServiceName = "berth.v1.Node"

// Server is what the daemon provides. Every method may be called many times at once, and ends soon after its ctx does.
// An error that carries a gRPC status reaches the client with its code, any other one with the code Unknown. The send
// functions may be called from several goroutines, but not after the method has returned; their error means that the
// client is gone.
type Server interface {
	// Info tells about the daemon. It never waits for an operation in flight.
	Info(ctx context.Context) (*InfoResponse, error)
	// Reload takes over the configuration files as they are now. Bad ones are refused whole, and nothing has changed then.
	Reload(ctx context.Context) (*ReloadResponse, error)
	// Pull brings an image into the store. The last event has Image and Names. It may be repeated: a second pull of what
	// is there or under way joins it.
	Pull(ctx context.Context, req *PullRequest, send func(*PullEvent) error) error
	// Pulls sends how far each pull is that is under way, a kubelet's too, the one that began first at the beginning. It
	// waits for none of them.
	Pulls(ctx context.Context, send func(*Underway) error) error
	// Import reads an archive of images, and sends an event with Image and Names for each image that it held.
	Import(ctx context.Context, archive io.Reader, send func(*PullEvent) error) error
	// Export writes the images as an archive, and sends how far it is. Only what was written when it returns nil is whole.
	Export(ctx context.Context, req *ExportRequest, archive io.Writer, send func(*PullEvent) error) error
	// Images sends what is known of each of the images that are asked for. It never waits for an operation in flight.
	Images(ctx context.Context, req *ImagesRequest, send func(*ImageDetail) error) error
	// Sweep removes layers that no image and no container has, such as those of a pull that failed, and returns when they
	// are gone.
	Sweep(ctx context.Context) error
	// Attach joins the streams of a container that is created or running. It sends one AttachOutput with Ready first,
	// once no later output can be missed; so a client may attach before it starts the container. It returns nil when the
	// container's output ends, but for a client that is behind and has asked to keep its input: it goes on until ctx ends
	// then. recv blocks until the client says something; it returns io.EOF when the client will say no
	// more, another error when the client is gone or Attach has returned. One goroutine at a time may call it.
	Attach(ctx context.Context, req *AttachRequest, recv func() (*AttachInput, error),
		send func(*AttachOutput) error) error
	// Exec runs a command in a running container. What it says goes to send, the last of it with Exit; recv is as for
	// Attach. When the client goes, the command is hung up, and killed a little later. A detached one has no streams; Exec
	// returns without Exit once it runs, and it ends with the daemon or its container.
	Exec(ctx context.Context, req *ExecRequest, recv func() (*AttachInput, error), send func(*AttachOutput) error) error
	// Signal sends a running container's first process a signal, by name or number. It does not wait for what comes of it.
	Signal(ctx context.Context, req *SignalRequest) error
	// Tag gives an image one more name, which leaves the image that had it. Without an image the name leaves that which
	// has it, and no more happens. It may be repeated.
	Tag(ctx context.Context, req *TagRequest) error
	// PortForward connects to a port of a ready pod, until both directions have ended. It sends one message without data
	// first, once it is connected; recv is as for Attach.
	PortForward(ctx context.Context, req *PortForwardRequest, recv func() (*PortData, error),
		send func(*PortData) error) error
	// Check verifies records and stored images, and sends what it finds wrong as it finds it.
	Check(ctx context.Context, req *CheckRequest, send func(*Finding) error) error
}

// A client of CRI's GetContainerEvents that sends the metadata EventsKey with the value EventsOfLimits is told of
// limits that containers reach, too, by events of the type LimitEvent. The status of the container has a reason and a
// message then.
const (
	EventsKey, EventsOfLimits = "berth-events", "limits"

	LimitEvent = 100
)

// A client of CRI that sends the metadata PodsKey with the value AllPods finds the pods of berth run, too, in lists,
// statistics and events.
const PodsKey, AllPods = "berth-pods", "all"

// InfoResponse is what a daemon tells about itself.
type InfoResponse struct {
	Version  string `json:"version"`
	Instance string `json:"instance"`
	// Config is the configuration in force, as TOML.
	Config string `json:"config"`
	// Host is what was found out about the machine.
	Host json.RawMessage `json:"host,omitempty"`
	// Startup is what the start of the daemon consisted of, in order.
	Startup []StartupStep `json:"startup,omitempty"`
	// Problems are what an administrator should look at.
	Problems []Problem `json:"problems,omitempty"`
	// NRI is how the Node Resource Interface is; nil from a daemon of before it was told.
	NRI *NRI `json:"nri,omitempty"`
	// AppArmor and SELinux are what these do with containers; nil from a daemon of before it was told.
	AppArmor *Module `json:"appArmor,omitempty"`
	SELinux  *Module `json:"seLinux,omitempty"`
	// Limits are those that all share, with what is used of them.
	Limits []Limit `json:"limits,omitempty"`
	// Storage has the containers with limits of what they write to their roots.
	Storage []ContainerStorage `json:"storage,omitempty"`
}

// ContainerStorage is a container with limits of what it writes to its root. A limit of 0 is none.
type ContainerStorage struct {
	ID          string `json:"id"`
	LimitBytes  uint64 `json:"limitBytes,omitempty"`
	LimitInodes uint64 `json:"limitInodes,omitempty"`
}

// Limit is a limit that all share, as it is used at the moment.
type Limit struct {
	Name  string `json:"name"` // as package limit has it
	Used  int64  `json:"used"`
	Limit int64  `json:"limit"`
}

// NRI reports whether plugins of the Node Resource Interface take part.
type NRI struct {
	On       bool     `json:"on"`
	Off      string   `json:"off,omitempty"`      // what in the configuration has it off
	Failed   string   `json:"failed,omitempty"`   // why it is not on although the configuration has it on
	Socket   string   `json:"socket,omitempty"`   // where plugins connect; empty when none can
	Plugins  int      `json:"plugins"`            // how many take part, as of the last event
	Names    []string `json:"names,omitempty"`    // theirs, where all are known
	Problems []string `json:"problems,omitempty"` // what of it does not work
}

// Module is what a security module of the kernel does with the next container that asks for nothing.
type Module struct {
	On      bool   `json:"on"`                // the kernel has it on, and the configuration does not have it off
	Gives   string `json:"gives,omitempty"`   // the profile or label of the container's processes; empty: none
	Problem string `json:"problem,omitempty"` // what of it is not as it should be
}

// StartupStep is one part of the daemon's start.
type StartupStep struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"` // in nanoseconds
}

// Problem is an undo that does not succeed, or a record that cannot be read.
type Problem struct {
	Pod       string    `json:"pod,omitempty"`
	Container string    `json:"container,omitempty"`
	Path      string    `json:"path,omitempty"`
	Step      string    `json:"step,omitempty"`
	Message   string    `json:"message"`
	Since     time.Time `json:"since,omitzero"`
}

// ReloadResponse says what a reload has changed.
type ReloadResponse struct {
	Changes []Change `json:"changes"`
}

// Change is a key of the configuration that has another value.
type Change struct {
	Key     string `json:"key"`
	Old     string `json:"old,omitempty"` // as in a file; empty when the key was not there
	New     string `json:"new,omitempty"`
	Restart bool   `json:"restart,omitempty"` // it is not in force before the daemon's next start
}

// PullRequest asks for an image.
type PullRequest struct {
	Reference string `json:"reference"`
	Username  string `json:"username,omitempty"`
	Password  string `json:"password,omitempty"`
	// What some registries give in place of a password.
	IdentityToken string `json:"identityToken,omitempty"`
	RegistryToken string `json:"registryToken,omitempty"`
	Platform      string `json:"platform,omitempty"` // os/arch[/variant]; that of the node when empty
}

// PullEvent is a step of a pull, an import or an export. Layer is empty when the event is about the whole. Done and
// Total count the compressed bytes of the layer, in an export those of its tar; Total is 0 while unknown. Image and
// Names are set when an image is complete.
type PullEvent struct {
	Layer string   `json:"layer,omitempty"`
	Phase string   `json:"phase,omitempty"`
	Done  int64    `json:"done,omitempty"`
	Total int64    `json:"total,omitempty"`
	Host  string   `json:"host,omitempty"` // that sends the layer
	Image string   `json:"image,omitempty"`
	Names []string `json:"names,omitempty"`
}

// Underway is a pull that is under way.
type Underway struct {
	Reference string    `json:"reference"`
	Namespace string    `json:"namespace,omitempty"` // of the pod that it is for, where a kubelet said so
	Pod       string    `json:"pod,omitempty"`
	Began     time.Time `json:"began"`
	Phase     string    `json:"phase"` // as in PullEvent; waiting when all that is missing waits for its turn
	Done      int64     `json:"done"`  // bytes of all layers, as in PullEvent
	Total     int64     `json:"total"` // 0 while the layers are not known
	Rate      int64     `json:"rate"`  // bytes a second that have come over the last seconds
	Hosts     []string  `json:"hosts"` // that send them
	// Layers are the latest events of the layers.
	Layers []PullEvent `json:"layers"`
}

// ExportRequest asks for an archive of images.
type ExportRequest struct {
	Images   []string `json:"images"`           // names or ids
	Format   string   `json:"format,omitempty"` // oci or docker; oci when empty
	Compress bool     `json:"compress,omitempty"`
}

// ImagesRequest asks about images by name or id; about all when it names none.
type ImagesRequest struct {
	Images []string `json:"images,omitempty"`
	Config bool     `json:"config,omitempty"` // with their configs
}

// ImageDetail is what is known of one image.
type ImageDetail struct {
	ID       string    `json:"id"`
	Tags     []string  `json:"tags"`
	Digests  []string  `json:"digests"`
	Manifest string    `json:"manifest,omitempty"` // digest of the platform's manifest
	Platform string    `json:"platform,omitempty"`
	Artifact string    `json:"artifact,omitempty"` // the type of an OCI artifact; its manifest is in place of a config
	Size     uint64    `json:"size"`               // bytes of the config and of the compressed layers
	PulledAt time.Time `json:"pulledAt"`
	Pinned   bool      `json:"pinned"`
	Durable  bool      `json:"durable"` // it would survive a power cut
	// Layers are all layers, the lowest first.
	Layers []LayerDetail `json:"layers"`
	// Containers are the ids of those that run the image or mount it as a volume.
	Containers []string `json:"containers"`
	// Config is the image config as it was fetched, when it was asked for.
	Config json.RawMessage `json:"config,omitempty"`
}

// LayerDetail is what is known of one layer of an image. Layers with the same id are one on the disk.
type LayerDetail struct {
	ID      string `json:"id"`
	DiffID  string `json:"diffID"`
	Blob    string `json:"blob,omitempty"` // digest of what was fetched
	Size    int64  `json:"size"`           // bytes of what was fetched
	Disk    uint64 `json:"disk"`           // bytes on disk
	Inodes  uint64 `json:"inodes"`
	Durable bool   `json:"durable"`
}

// AttachRequest opens an attach session.
type AttachRequest struct {
	Container string `json:"container"` // its full id
	TTY       bool   `json:"tty,omitempty"`
	Stdin     bool   `json:"stdin,omitempty"`
	// KeepInput has the input go on when the client does not keep up with the output, which ends then; by default that
	// ends the session. A daemon of an earlier release does not know it.
	KeepInput bool `json:"keepInput,omitempty"`
}

// ExecRequest opens an exec session.
type ExecRequest struct {
	Container string   `json:"container"` // its full id
	Command   []string `json:"command"`
	TTY       bool     `json:"tty,omitempty"`
	Stdin     bool     `json:"stdin,omitempty"`
	// What follows a daemon of an earlier release does not know.
	User   string   `json:"user,omitempty"` // name or number, either with :group; the container's own when empty
	Dir    string   `json:"dir,omitempty"`  // where it starts; as the container's own when empty
	Env    []string `json:"env,omitempty"`  // NAME=VALUE, over the container's own
	Detach bool     `json:"detach,omitempty"`
}

// SignalRequest sends a signal.
type SignalRequest struct {
	Container string `json:"container"` // its full id
	Signal    string `json:"signal"`
}

// TagRequest names an image.
type TagRequest struct {
	Image string `json:"image"` // a name or an id; "" takes the name away
	Name  string `json:"name"`
}

// PortForwardRequest opens one connection to a port.
type PortForwardRequest struct {
	Pod  string `json:"pod"` // its full id
	Port uint16 `json:"port"`
}

// PortData is what goes over such a connection, in either direction. End is the end of that direction.
type PortData struct {
	Data []byte `json:"data,omitempty"`
	End  bool   `json:"end,omitempty"`
}

// AttachInput is what a client says in an attach or exec session: one of these at a time.
type AttachInput struct {
	Stdin      []byte `json:"stdin,omitempty"`
	CloseStdin bool   `json:"closeStdin,omitempty"`
	Resize     *Size  `json:"resize,omitempty"`
}

// Size is that of a terminal.
type Size struct {
	Width  uint16 `json:"width"`
	Height uint16 `json:"height"`
}

// AttachOutput is what a container, or a command in it, says. With a terminal all is Stdout.
type AttachOutput struct {
	Exit   *int   `json:"exit,omitempty"` // the exit code of a command
	Ready  bool   `json:"ready,omitempty"`
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	// Behind says that no more output comes, because the client did not keep up with it. It has had all until then.
	Behind bool `json:"behind,omitempty"`
}

// CheckRequest asks for a check of what is stored.
type CheckRequest struct {
	Repair bool `json:"repair,omitempty"`
}

// Finding is one thing that is wrong with what is stored. Image, Layer and Pod are ids, set when it is about one.
type Finding struct {
	Image    string `json:"image,omitempty"`
	Layer    string `json:"layer,omitempty"`
	Pod      string `json:"pod,omitempty"`
	Path     string `json:"path,omitempty"`
	Problem  string `json:"problem"`
	Repaired bool   `json:"repaired,omitempty"`
}

// chunk is a piece of the archive that Import sends.
type chunk struct {
	Data []byte `json:"data"`
}

// exportEvent is a piece of the archive that Export sends, or a step of the export.
type exportEvent struct {
	Data []byte     `json:"data,omitempty"`
	Step *PullEvent `json:"step,omitempty"`
}

// none is a message without content.
type none struct{}
