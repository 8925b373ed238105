package limit

// table has every Budget that is defined here, in this order.
var table []Budget

func define(b Budget) Budget {
	table = append(table, b)
	return b
}

// All returns every limit, in the order of the documentation. Those with a key have no Limit of their own.
func All() []Budget { return append([]Budget(nil), table...) }

const (
	refused = "is refused"
	waits   = "waits"
	kernels = "build the image without it: the kernel takes no more"
)

// The limits of images.
var (
	ImageLayers = define(Budget{
		Name: "layers of an image", Key: "images.max_layers", Beyond: refused,
	})
	ManifestBytes = define(Budget{
		Name: "size of a manifest or an index", Key: "images.max_manifest_bytes", Unit: Bytes, Beyond: refused,
	})
	ConfigBytes = define(Budget{
		Name: "size of an image config", Key: "images.max_config_bytes", Unit: Bytes, Beyond: refused,
	})
	IndexManifests = define(Budget{
		Name:  "manifests without a platform that the indexes of an image lead to",
		Limit: 64, Beyond: refused,
	})
	ImageBytes = define(Budget{
		Name: "size of the layers of an image, as they are fetched", Key: "images.max_image_bytes", Unit: Bytes,
		Beyond: refused, Advice: "build it smaller",
	})
	LayerBytes = define(Budget{
		Name: "size of an unpacked layer, a file or directory counting 4 KiB more", Key: "images.max_layer_bytes",
		Unit: Bytes, Beyond: refused, Advice: "make the layer smaller",
	})
	LayerEntries = define(Budget{
		Name: "files and directories of a layer", Key: "images.max_layer_entries", Beyond: refused,
		Advice: "make fewer in one layer",
	})
	LayerMemory = define(Budget{
		Name: "memory for the directories and hard links of a layer", Key: "images.max_layer_memory_bytes",
		Unit: Bytes, Beyond: refused, Advice: "make fewer in one layer",
	})
	LayerPath = define(Budget{
		Name: "length of a path in a layer", Unit: Bytes, Limit: 4095, Beyond: refused, Advice: kernels,
	})
	TitleDepth = define(Budget{
		Name: "directories and the file in the title of a layer of an artifact", Limit: 64, Beyond: refused,
		Advice: "give the file a shorter name",
	})
	EntryName = define(Budget{
		Name: "length of the name or link target of an entry of a layer or archive", Unit: Bytes, Limit: 4096,
		Beyond: refused, Advice: kernels,
	})
	LayerSteps = define(Budget{
		Name: "components of a path in a layer, those of symlinks among them", Limit: 4096, Beyond: refused,
		Advice: kernels,
	})
	ImageMarks = define(Budget{
		Name:  "directories of layers below that an image's layers need to know the overlay's marks of",
		Limit: 500_000, Beyond: refused, Advice: "build it of fewer layers, or with fewer directories that replace others",
	})
	ImageLooks = define(Budget{
		Name:  "look-ups in the layers below, of one name in one layer each, that an image's layers need",
		Limit: 50_000_000, Beyond: refused, Advice: "build it of fewer layers, or with fewer hard links to files of others",
	})
	LayerTarget = define(Budget{
		Name: "length of a path in a layer with the targets of its symlinks", Unit: Bytes, Limit: 16 << 10,
		Beyond: refused, Advice: kernels,
	})
	LayerXattr = define(Budget{
		Name: "size of an extended attribute in a layer", Unit: Bytes, Limit: 64 << 10, Beyond: refused,
		Advice: kernels,
	})
	LayerGrants = define(Budget{
		Name: "devices, marks of the overlay and attributes of a layer that only the daemon can make", Beyond: refused,
	})
	LayerLine = define(Budget{
		Name: "length of a line of a layer's manifest", Unit: Bytes, Limit: 4 << 20, Beyond: "is not read",
	})
	DocumentValues = define(Budget{
		Name: "values in a manifest, an index or an image config", Limit: 250_000, Beyond: refused,
	})
	OSFeatures = define(Budget{
		Name: "features of the operating system that an image needs", Limit: 100, Beyond: refused,
	})
	// Arguments is what execve takes of both together, with a stack of any size.
	Arguments = define(Budget{
		Name: "size of the environment and the command of an image", Unit: Bytes, Limit: 6 << 20, Beyond: refused,
	})
	ZstdWindow = define(Budget{
		Name: "window of a zstd stream", Unit: Bytes, Limit: 128 << 20, Beyond: refused,
	})
	ArchiveBytes = define(Budget{
		Name: "size of an archive of images", Key: "images.max_layer_bytes", Unit: Bytes, Beyond: refused,
	})
	ArchiveFiles = define(Budget{
		Name: "files of an archive of images", Limit: 1 << 20, Beyond: refused,
	})
	ArchiveNames = define(Budget{
		Name: "size of all names in an archive of images", Unit: Bytes, Limit: 32 << 20, Beyond: refused,
	})
	ArchiveDocument = define(Budget{
		Name: "size of a document in an archive of images (or images.max_config_bytes, if that is more)",
		Key:  "images.max_manifest_bytes", Unit: Bytes, Beyond: refused,
	})
	ArchiveImages = define(Budget{
		Name: "images and tags that an archive lists", Limit: 10_000, Beyond: refused,
	})
	Documents = define(Budget{
		Name: "size of the manifests, indexes and configs of a pull, or of an archive (more where the keys allow one of " +
			"that size)", Unit: Bytes,
		Limit: 64 << 20, Beyond: refused,
	})
	PreloadFiles = define(Budget{
		Name: "files of the directory of images that are to be there", Limit: 10_000, Beyond: "is not taken in, and told of",
		Advice: "put several images into one archive, and several names into one list",
	})
	PreloadList = define(Budget{
		Name: "size of a list of images to pull", Unit: Bytes, Limit: 1 << 20, Beyond: "is refused, and told of",
	})
	PreloadNames = define(Budget{
		Name: "names in the lists of images to pull", Limit: 10_000, Beyond: "is not pulled, and told of",
	})
	Downloads = define(Budget{
		Name: "layers fetched at once", Key: "images.max_concurrent_downloads", Beyond: waits,
	})
	// SlowDownloads are of layers that need no slot, or lost theirs to one that makes more of it.
	SlowDownloads = define(Budget{
		Name: "layers fetched at once besides, at most 256 KiB a second each", Limit: 64,
		Beyond: "waits; the slowest of the registry host that has the most ends for one of another host",
	})
	PullLayers = define(Budget{
		Name: "layers fetched at once for one pull", Key: "images.max_pull_layers", Beyond: waits,
	})
	LayerConnections = define(Budget{
		Name: "connections of a layer to its registry", Key: "images.max_layer_connections", Beyond: "is not opened",
	})
	BufferBytes = define(Budget{
		Name: "memory for what is fetched ahead", Key: "images.max_buffer_bytes", Unit: Bytes, Beyond: waits,
	})
	ForeignPlaces = define(Budget{
		Name: "places that are asked for a foreign layer", Limit: 4, Beyond: "is not asked",
	})
	Verifiers = define(Budget{
		Name: "programs that verify images", Key: "image_verifier.max", Beyond: "has every image refused",
	})
)

// The limits of pods and containers.
var (
	Processes = define(Budget{
		Name: "processes of a container that asks for no limit", Key: "limits.pids",
		Beyond: "is not forked: the kernel answers EAGAIN",
	})
	DeclaredVolumes = define(Budget{
		Name: "volumes that an image declares", Limit: 1000, Beyond: refused,
	})
	ContainerDevices = define(Budget{
		Name: "devices of a container's request, those below a directory each", Limit: 32768,
		Beyond: "has the container refused",
		Advice: "ask for the devices alone, not for a directory of them",
	})
	CDIDevices = define(Budget{
		Name: "CDI devices of a container, those of its annotations among them", Limit: 1000,
		Beyond: "has the container refused",
	})
	AccountFile = define(Budget{
		Name: "size of /etc/passwd or /etc/group of an image", Unit: Bytes, Limit: 8 << 20,
		Beyond: "has the container refused",
	})
	SeccompProfile = define(Budget{
		Name: "size of a seccomp profile", Unit: Bytes, Limit: 4 << 20, Beyond: "has the container refused",
	})
	BaseSpec = define(Budget{
		Name: "size of the base spec of a runtime handler", Unit: Bytes, Limit: 1 << 20,
		Beyond: "has the pods of the handler refused",
	})
	SELinuxLevels = define(Budget{
		Name: "SELinux levels for pods that name none", Limit: 1024 * 1023 / 2, Beyond: "has the pod refused",
	})
)

// The limits of clients and of what they are answered.
var (
	Message = define(Budget{
		Name: "size of a message of gRPC", Unit: Bytes, Limit: 16 << 20, Beyond: "fails, as with a kubelet's own client",
	})
	DetachedCommands = define(Budget{
		Name: "commands in containers that nobody waits for (berth exec -d)", Limit: 1000, Beyond: refused,
	})
	// Of what clients share, each process may have as much as is free besides; package callers counts it.
	Connections = define(Budget{
		Name: "connections to the socket, of which one process has half at most", Key: "limits.connections",
		Beyond: "is closed at once", Advice: "end clients that leave connections open",
	})
	Calls = define(Budget{
		Name: "calls under way, of which one process has half at most", Key: "limits.calls", Beyond: refused,
		Advice: "end clients that ask for much at once",
	})
	Execs = define(Budget{
		Name: "ExecSyncs under way, of which one process has half at most", Key: "limits.execs", Beyond: refused,
	})
	Pulls = define(Budget{
		Name: "pulls and imports of images that clients wait for, of which one process has half at most",
		Key:  "limits.pulls", Beyond: refused,
	})
	CallSessions = define(Budget{
		Name:  "sessions of berth exec, attach and forward, of which one process has half at most",
		Limit: 2000, Beyond: refused, Advice: "end other sessions",
	})
	Answers = define(Budget{
		Name: "size of answers that clients have not read, of which those of one process are half at most", Unit: Bytes,
		Limit: 256 << 20, Beyond: refused, Advice: "end clients that are stopped",
	})
	RequestBytes = define(Budget{
		Name: "size of a request of CRI", Key: "limits.request_bytes", Unit: Bytes, Beyond: refused,
	})
	RequestEntries = define(Budget{
		Name: "entries of a list or map in a request of CRI", Key: "limits.request_entries", Beyond: refused,
	})
	RequestLabels = define(Budget{
		Name: "size of the labels, annotations or another map in a request of CRI", Key: "limits.label_bytes", Unit: Bytes,
		Beyond: refused,
	})
	// RequestText is PATH_MAX: of paths the kernel takes no more, and nothing else is as long.
	RequestText = define(Budget{
		Name: "length of a path, name or other text in a request of CRI, but for labels, arguments and variables",
		Unit: Bytes, Limit: 4096, Beyond: "is refused as invalid",
	})
	RequestCredential = define(Budget{
		Name: "length of a password or token in a request of CRI", Unit: Bytes, Limit: 64 << 10,
		Beyond: "is refused as invalid",
	})
	PodContainers = define(Budget{
		Name: "containers of a pod, those that have ended among them", Limit: 1000, Beyond: refused,
		Advice: "remove those that have ended",
	})
	// PodRecord is less than what a daemon reads again: what happens to the pod is still written.
	PodRecord = define(Budget{
		Name: "size of the record of a pod, with the requests of its containers, those that have ended among them",
		Unit: Bytes, Limit: 48 << 20, Beyond: "has what was asked for refused",
		Advice: "remove containers that have ended, or ask for fewer variables",
	})
	// PodInterfaces keeps the metrics of 100 pods that make as many as they can below Message.
	PodInterfaces = define(Budget{
		Name: "interfaces of a pod in its stats and metrics, without veth*, docker*, nerdctl* and lo*", Limit: 64,
		Beyond: "is not told; the pod's eth0 always is",
	})
	// ExecOutput leaves room in a message of gRPC for what is not output.
	ExecOutput = define(Budget{
		Name: "output of an ExecSync, both streams", Unit: Bytes, Limit: 16<<20 - 4<<10,
		Beyond: "is lost, and the log says how much",
	})
	// ExecOutputs does not count what every probe may say.
	ExecOutputs = define(Budget{
		Name: "output of all ExecSyncs under way, without the first 64 KiB of each stream", Unit: Bytes, Limit: 128 << 20,
		Beyond: "is lost, and the log says how much",
	})
	DaemonMemory = define(Budget{
		Name: "memory of the daemon", Key: "limits.memory", Unit: Bytes,
		Beyond: "has the kernel end the daemon, which starts again and finds its pods",
	})
	OwnLog = define(Budget{
		Name: "lines of the daemon's own log that wait for what reads its standard error", Unit: Bytes, Limit: 1 << 20,
		Beyond: "are lost, and the log and a metric say how many",
	})
	DebugClients = define(Budget{
		Name: "clients of berth debug at once", Limit: 4, Beyond: refused, Advice: "end other runs of berth debug",
	})
	Sessions = define(Budget{
		Name: "sessions of exec, attach and port-forward asked for within a minute and not begun",
		Key:  "streaming.max_waiting", Beyond: refused,
	})
	OpenSessions = define(Budget{
		Name: "sessions of exec, attach and port-forward over HTTP, those not begun among them",
		Key:  "streaming.max_sessions", Beyond: refused,
	})
	TargetSessions = define(Budget{
		Name: "such sessions of one container, or port-forwards of one pod",
		Key:  "streaming.max_target_sessions", Beyond: refused,
	})
	ForwardedPorts = define(Budget{
		Name: "ports of a port-forward", Limit: 127, Beyond: refused,
		Advice: "ask for less; a client over SPDY need not ask for any",
	})
	ForwardedConnections = define(Budget{
		Name: "connections that one port-forward carries at the same time", Limit: 2000, Beyond: refused,
	})
	// AllForwardedConnections take some 90 KiB each, 350 MiB together.
	AllForwardedConnections = define(Budget{
		Name:  "connections that all port-forwards carry at the same time, of which those to one pod are half at most",
		Limit: 4000, Beyond: "ends the session of SPDY, or is refused over a WebSocket",
		Advice: "end other port-forwards",
	})
	ControlFrame = define(Budget{
		Name: "size of what opens a stream of exec, attach and port-forward", Unit: Bytes, Limit: 8 << 10,
		Beyond: "ends the session",
	})
	TerminalSizes = define(Budget{
		Name: "bytes by which one session tells the sizes of its terminal", Unit: Bytes, Limit: 4 << 20,
		Beyond: "ends the session",
	})
	SessionInput = define(Budget{
		Name: "input of a session that its command, or its ports, have not read", Unit: Bytes, Limit: 1 << 20,
		Beyond: "is not received until they read",
	})
	// SessionInputs does not count what is enough to go on: who reads gets all that its client sends.
	SessionInputs = define(Budget{
		Name: "input of all sessions that was not read, without the first 64 KiB of each", Unit: Bytes, Limit: 128 << 20,
		Beyond: "is not received until the session has read what it has",
	})
	IdleConnections = define(Budget{
		Name: "connections for exec, attach and port-forward that use no address", Limit: 512,
		Beyond: "ends the oldest of them",
	})
	MetricsConnections = define(Budget{
		Name: "connections to metrics.address at once, each for one answer", Limit: 64, Beyond: waits,
	})
	Watchers = define(Budget{
		Name: "clients that watch events over CRI at once, of which one process has half at most", Limit: 100,
		Beyond: refused,
		Advice: "end other runs of berth events",
	})
	UnreadEvents = define(Budget{
		Name: "events that wait for a client that watches", Limit: 1024, Beyond: "ends the watch",
	})
)

// ConfigFile is of what an administrator writes.
var ConfigFile = define(Budget{
	Name: "size of a file of the daemon's configuration, or of a hosts.toml", Unit: Bytes, Limit: 4 << 20,
	Beyond: "is refused: the daemon does not start, or goes on as it was",
})

// ContainerdFile is of what an administrator of another runtime wrote.
var ContainerdFile = define(Budget{
	Name: "size of a file of containerd's settings", Unit: Bytes, Limit: 1 << 20,
	Beyond: "keeps `berth migrate containerd` from taking settings over",
})

// LibraryFile is of what others write and a library reads whole.
var LibraryFile = define(Budget{
	Name: "size of a description of CDI devices, of a certificate of a registry, or of a plugin's configuration of NRI",
	Unit: Bytes, Limit: 4 << 20, Beyond: refused,
})

// NodeFile is of what each pod gets a copy of, in memory.
var NodeFile = define(Budget{
	Name: "size of the node's /etc/hosts or /etc/resolv.conf, of which a pod gets a copy", Unit: Bytes, Limit: 16 << 20,
	Beyond: "keeps the pod from being made",
})

// The limits of CNI plugins.
var (
	CNIConfig = define(Budget{
		Name: "size of a CNI configuration", Unit: Bytes, Limit: 1 << 20, Beyond: "is not used: the network is not ready",
	})
	CNIAnswer = define(Budget{
		Name: "answer of a CNI plugin", Unit: Bytes, Limit: 4 << 20, Beyond: "fails the call of the plugin",
	})
)
