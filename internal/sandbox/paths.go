package sandbox

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
)

// ID names a pod or a container: 64 lower-case hex digits, made at random.
type ID string

// NewID makes an id that nothing else has.
func NewID() ID {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program rather than return an error
	return ID(hex.EncodeToString(b[:]))
}

// Valid reports whether s has the form of an id.
func (id ID) Valid() bool {
	b, err := hex.DecodeString(string(id))
	return err == nil && len(b) == 32
}

// Layout says where everything of a pod is: each name derives from the id alone.
type Layout struct {
	Root     string // survives a boot
	State    string // dies with a boot
	Instance string // tells the names of one daemon from another's
	NetNS    string // the directory of network namespace pins
}

// PodsRoot has a directory for each pod.
func (l Layout) PodsRoot() string { return filepath.Join(l.Root, "pods") }

// PodsState has a directory for what of each pod dies with a boot.
func (l Layout) PodsState() string { return filepath.Join(l.State, "pods") }

// Pod is a pod's directory below the root.
func (l Layout) Pod(id ID) string { return filepath.Join(l.PodsRoot(), string(id)) }

// Record is the file with all that is known of a pod.
func (l Layout) Record(id ID) string { return filepath.Join(l.Pod(id), "record") }

// Exit is where a container's exit is kept over a boot.
func (l Layout) Exit(id, ctr ID) string { return filepath.Join(l.Pod(id), "exits", string(ctr)) }

// Writable is the directory of a container's writable layer.
func (l Layout) Writable(id, ctr ID) string { return filepath.Join(l.Pod(id), "c", string(ctr)) }

// Run is a pod's directory below the state.
func (l Layout) Run(id ID) string { return filepath.Join(l.PodsState(), string(id)) }

// Shm is where a pod's /dev/shm is mounted.
func (l Layout) Shm(id ID) string { return filepath.Join(l.Run(id), "shm") }

// RunContainer is a container's directory below the state; it is also the bundle of its OCI runtime.
func (l Layout) RunContainer(id, c ID) string { return filepath.Join(l.Run(id), "c", string(c)) }

// RunExit is where a monitor writes how a container has ended.
func (l Layout) RunExit(id, c ID) string { return filepath.Join(l.RunContainer(id, c), "exit") }

// RunOwed is where a monitor finds what the log of a container is owed that has no directory below the state any more.
func RunOwed(l *Layout, id, c ID) string { return filepath.Join(l.Run(id), "owed", string(c)) }

// Rootfs is where a container's root is mounted.
func (l Layout) Rootfs(id, ctr ID) string { return filepath.Join(l.RunContainer(id, ctr), "rootfs") }

// BundleSpec is the spec that a container's OCI runtime was given.
func (l Layout) BundleSpec(id, ctr ID) string {
	return filepath.Join(l.RunContainer(id, ctr), "config.json")
}

// NetNSPrefix begins the name of each pin of a network namespace.
func (l Layout) NetNSPrefix() string { return l.Instance + "-" }

// NetNSPin is where a pod's network namespace is pinned.
func (l Layout) NetNSPin(id ID) string { return filepath.Join(l.NetNS, l.NetNSPrefix()+string(id)) }

// IPCNSPin is where a pod's IPC namespace is pinned.
func (l Layout) IPCNSPin(id ID) string { return filepath.Join(l.Run(id), "ns", "ipc") }

// UTSNSPin is where a pod's UTS namespace is pinned.
func (l Layout) UTSNSPin(id ID) string { return filepath.Join(l.Run(id), "ns", "uts") }

// ImageVolumes has a directory for each image that a container mounts.
func (l Layout) ImageVolumes(id, ctr ID) string {
	return filepath.Join(l.RunContainer(id, ctr), "images")
}

// ImageVolume is of the image that a container mounts by that mount of its request.
func (l Layout) ImageVolume(id, ctr ID, mount int) string {
	return filepath.Join(l.ImageVolumes(id, ctr), strconv.Itoa(mount))
}

// UserNSPin is where a pod's user namespace is pinned.
func UserNSPin(l *Layout, id ID) string { return filepath.Join(l.Run(id), "ns", "user") }

// StagedMounts is where the mounts of a container are that are made for it alone.
func StagedMounts(l *Layout, id, ctr ID) string {
	return filepath.Join(l.RunContainer(id, ctr), "mounts")
}

// Etc is where the pod's files below /etc are. Releases before the tmpfs have left them in the pod's run directory.
func Etc(l *Layout, id ID) string {
	etc := EtcMount(l, id)
	if _, err := os.Lstat(etc); err != nil {
		return l.Run(id)
	}
	return etc
}

// EtcMount is where a pod's tmpfs for them is mounted.
func EtcMount(l *Layout, id ID) string { return filepath.Join(l.Run(id), "etc") }
