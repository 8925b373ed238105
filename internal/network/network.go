package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/internal/record"
)

// checkTimeout is the deadline of the verb CHECK, for all plugins of the list together.
const checkTimeout = 30 * time.Second

// ifName is the name of a pod's first interface, inside.
const ifName = "eth0"

// Config is what a Network needs. ConfigDir, PluginDirs, CacheDir and Run are required.
type Config struct {
	// ConfigDir holds CNI configurations (*.conflist, *.conf, *.json): the first by name is the pods' network.
	ConfigDir string
	// PluginDirs are searched for plugins, in this order.
	PluginDirs []string
	// CacheDir holds one record for each attached pod. It must not be used by others.
	CacheDir string
	// Run runs a program and leaves nothing of it behind. Programs of one pod run under one name.
	Run func(ctx context.Context, name string, cmd *exec.Cmd) error
	// Logger is told of changes of readiness. Nil is silent.
	Logger *slog.Logger
	// AddTimeout and DelTimeout bound an ADD and a DEL of all plugins of a pod's network.
	AddTimeout, DelTimeout time.Duration
	// Template is the path of a CNI configuration template for SetPodCIDR; "" when there is none.
	Template string
	// Dirty is told of files to make durable, DirtyRecord of records. Nil drops it.
	Dirty, DirtyRecord func(path string)
}

// Network attaches pods. Its methods may be called concurrently.
type Network struct {
	CNI *CNIConfig // what pods are attached by

	attachments cache
	run         runProgram
	log         *slog.Logger
}

// runProgram runs a program and leaves nothing of it behind.
type runProgram func(ctx context.Context, name string, cmd *exec.Cmd) error

// Pod is what a network is told of a pod. Detach needs only its ID.
type Pod struct {
	ID, Name, Namespace, UID string
	NetNS                    string // the path of its network namespace
	CgroupPath               string
	Ports                    []Port
	DNS                      DNS
	Annotations, Labels      map[string]string
}

// Port is a port of the host that leads to a port of the pod. One without a HostPort is not passed on.
type Port struct {
	HostPort, ContainerPort int32
	Protocol                string // TCP, UDP or SCTP, in any case; TCP when empty
	HostIP                  string
}

// DNS is what plugins with the dns capability are told.
type DNS struct{ Servers, Searches, Options []string }

// Result is what a network gave to a pod.
type Result struct {
	IPs []netip.Addr    // of all families; the first is the primary one
	Raw json.RawMessage // the CNI result of the last plugin, in the configuration's version
}

// Open reads the configuration and begins to watch it.
func Open(cfg Config) (*Network, error) {
	if cfg.AddTimeout <= 0 || cfg.DelTimeout <= 0 {
		return nil, errors.New("open network: the configuration has no AddTimeout, or no DelTimeout")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Dirty == nil {
		cfg.Dirty = func(string) {}
	}
	if cfg.DirtyRecord == nil {
		cfg.DirtyRecord = func(string) {}
	}
	n := &Network{attachments: cache{cfg.CacheDir, cfg.Dirty, cfg.DirtyRecord}, run: cfg.Run, log: cfg.Logger}
	if err := n.attachments.open(); err != nil {
		return nil, fmt.Errorf("open network: %w", err)
	}
	n.CNI = openCNIConfig(cfg)
	return n, nil
}

// Attachments lists the pods that are, or may be, attached: those whose ADD has begun and whose DEL has not succeeded.
func (n *Network) Attachments() ([]string, error) { return n.attachments.list() }

// Deadline is the time that an Attach or a Detach may take with all that it may run: an ADD, and of DELs one by the
// attachment's configuration, one by that in force, and the last one, in which each plugin that hangs has the time of a
// DEL. Three that hang fit. It follows the settings in force.
func (n *Network) Deadline() time.Duration {
	const (
		others = 2 * time.Minute // for what is no plugin, such as iptables
		dels   = 6
		most   = 24 * time.Hour // of a setting, so that the sum has no overflow
	)
	cfg := n.CNI.inForce()
	return others + min(cfg.AddTimeout, most) + dels*min(cfg.DelTimeout, most)
}

// Forget drops what is known of a pod's attachment without a DEL. It is the way out where DEL can never succeed; what
// the plugins hold for the pod is then left to the administrator. It is nil when nothing is there.
func (n *Network) Forget(podID string) error { return n.attachments.remove(podID) }

// kind is the record of a pod's attachment.
var kind = record.Kind{Name: "network", Version: 1, Oldest: 1}

// attachment is what must be known to undo an ADD.
type attachment struct {
	Pod      string     `json:"pod"`
	NetNS    string     `json:"netns"`
	Networks []attached `json:"networks"`
	// Boot is the id of the boot of the ADD. Where an earlier release wrote the record it is that of the first DEL.
	Boot string `json:"boot,omitempty"`
	// Undoing says that a DEL has begun. One that was cut off leaves what the next one may not find.
	Undoing bool `json:"undoing,omitempty"`
	// Guessed says that this stands in for a damaged record: the ADD may have succeeded, also without a result here.
	Guessed bool      `json:"guessed,omitempty"`
	Refused *refusals `json:"refused,omitempty"`
}

// attached is the attachment to one network.
type attached struct {
	Config       netconf                    `json:"config"`
	IfName       string                     `json:"ifname"`
	Args         [][2]string                `json:"args,omitempty"`
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
	// Result is that of the last plugin, absent until ADD has succeeded. Until then Partial is that of the last plugin
	// that has answered, if any but the last has.
	Result  json.RawMessage `json:"result,omitempty"`
	Partial json.RawMessage `json:"partial,omitempty"`
}

// known is what the plugins have said of the attachment, nil where that is nothing.
func (on *attached) known() json.RawMessage {
	if on.Result == nil {
		return on.Partial
	}
	return on.Result
}

// cache keeps attachments, a record each, named by the pod's id.
type cache struct {
	dir                string
	dirty, dirtyRecord func(string)
}

// open makes the directory and removes what a crash left half written or half removed.
func (c cache) open() error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	return record.Tidy(c.dir)
}

func (c cache) path(pod string) (string, error) {
	if pod == "" || !filepath.IsLocal(pod) || strings.ContainsRune(pod, '/') || strings.HasPrefix(pod, ".") {
		return "", fmt.Errorf("%q is not a pod id", pod)
	}
	return filepath.Join(c.dir, pod), nil
}

func (c cache) read(pod string) (*attachment, error) {
	path, err := c.path(pod)
	if err != nil {
		return nil, err
	}
	a, err := readOf(pod, path, kind.Read)
	var damaged *record.CorruptError
	if errors.As(err, &damaged) {
		if synced, syncedErr := readOf(pod, path, kind.ReadSynced); syncedErr == nil {
			synced.Guessed = true // it is what the pod was attached by, if not all that came of it
			return synced, nil
		}
	}
	return a, err
}

// readOf reads a record, and takes one of another pod for damaged: by that the other would be detached while it lives,
// and what this one holds would be lost.
func readOf(pod, path string, read func(path string, v any) (int, error)) (*attachment, error) {
	a := &attachment{}
	if _, err := read(path, a); err != nil {
		return nil, err
	}
	if a.Pod != pod {
		return nil, &record.CorruptError{Path: path, Reason: fmt.Sprintf("it is that of pod %q", a.Pod)}
	}
	return a, nil
}

func (c cache) write(a *attachment) error {
	path, err := c.path(a.Pod)
	if err != nil {
		return err
	}
	if err := kind.Write(path, a); err != nil {
		return err
	}
	c.dirtyRecord(path)
	return nil
}

// save writes the record, with a fault point on each side of it.
func (c cache) save(a *attachment, point string) error {
	if err := fault.At(point + ".before"); err != nil {
		return err
	}
	if err := c.write(a); err != nil {
		return err
	}
	return fault.At(point + ".after")
}

func (c cache) remove(pod string) error {
	path, err := c.path(pod)
	if err != nil {
		return err
	}
	if err := record.Remove(path); err != nil {
		return fmt.Errorf("forget the network attachment: %w", err)
	}
	c.dirty(c.dir)
	return nil
}

func (c cache) list() ([]string, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("list network attachments: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
