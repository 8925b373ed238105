package pod

import (
	"crypto/rand"
	"encoding/hex"
	"path/filepath"
)

// ID names a pod or a container: 64 lower-case hex digits, made at random.
type ID string

// NewID makes an id that nothing else has.
func NewID() ID {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program rather than return an error
	return ID(hex.EncodeToString(b[:]))
}

// Valid says whether s has the form of an id.
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

func (l Layout) podsRoot() string  { return filepath.Join(l.Root, "pods") }
func (l Layout) podsState() string { return filepath.Join(l.State, "pods") }

func (l Layout) pod(id ID) string             { return filepath.Join(l.podsRoot(), string(id)) }
func (l Layout) record(id ID) string          { return filepath.Join(l.pod(id), "record") }
func (l Layout) exit(id, ctr ID) string       { return filepath.Join(l.pod(id), "exits", string(ctr)) }
func (l Layout) writable(id, ctr ID) string   { return filepath.Join(l.pod(id), "c", string(ctr)) }
func (l Layout) run(id ID) string             { return filepath.Join(l.podsState(), string(id)) }
func (l Layout) shm(id ID) string             { return filepath.Join(l.run(id), "shm") }
func (l Layout) runContainer(id, c ID) string { return filepath.Join(l.run(id), "c", string(c)) }
func (l Layout) runExit(id, c ID) string      { return filepath.Join(l.runContainer(id, c), "exit") }
func (l Layout) rootfs(id, ctr ID) string     { return filepath.Join(l.runContainer(id, ctr), "rootfs") }
func (l Layout) bundleSpec(id, ctr ID) string {
	return filepath.Join(l.runContainer(id, ctr), "config.json")
}

func (l Layout) netnsPrefix() string { return l.Instance + "-" }
func (l Layout) netns(id ID) string  { return filepath.Join(l.NetNS, l.netnsPrefix()+string(id)) }
func (l Layout) ipcns(id ID) string  { return filepath.Join(l.run(id), "ns", "ipc") }
func (l Layout) utsns(id ID) string  { return filepath.Join(l.run(id), "ns", "uts") }
