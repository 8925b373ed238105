package image

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/image/catalog"
	"berth/internal/image/inflate"
	"berth/internal/image/progress"
	"berth/internal/image/verifier"
	"berth/internal/rootfs"
)

// Config configures a Store. Root and the limits are required; the zero value of the others is a sound default.
type Config struct {
	// Root is the directory of the store. Its file system must be able to hold overlay layers.
	Root string
	// RegistryConfigDir holds <host>/hosts.toml files, as containerd documents them. They are read for each pull.
	RegistryConfigDir string
	// Platform is the platform for which images are chosen; this machine's if empty.
	Platform string
	// Pinned names images that the kubelet must not collect: references, in which * is a wildcard.
	Pinned []string

	// The limits. All are required.

	MaxLayers           int   // layers of an image
	MaxManifestBytes    int64 // bytes of a manifest or an index
	MaxConfigBytes      int64 // bytes of an image config
	MaxImageBytes       int64 // bytes of all layers of an image, compressed
	MaxLayerBytes       int64 // bytes of one layer, unpacked
	MaxLayerEntries     int   // entries of the tar of one layer
	MaxLayerMemoryBytes int64 // memory for one layer until it is finalized
	MinFreePercent      int   // the part of the file system that pulls and imports leave free; 0 for none
	MaxPullLayers       int   // layers fetched at once for one pull
	MaxParallelLayers   int   // layers fetched at once for the whole store

	MaxLayerConnections int           // connections of one layer to its registry
	StallTimeout        time.Duration // how long a registry may send hardly anything
	FirstByteTimeout    time.Duration // how long a registry may take until the first byte of a blob
	ForeignLayerURLs    bool          // foreign layers are fetched from the urls of a manifest
	MaxBufferBytes      int64         // bytes fetched ahead of unpacking, for the whole store

	// Gunzip inflates large gzip layers. If nil, the library does.
	Gunzip *inflate.Program
	// Possession is PossessionRepository, the default, or PossessionRegistry.
	Possession string
	// Unpackers starts the processes that unpack layers. If nil, the daemon unpacks them itself.
	Unpackers Crew
	// Verifier is asked at each Pull; nil accepts all images.
	Verifier Verifier
	// Dirty is called with the path of each record and directory that should become durable soon. May be nil.
	Dirty func(path string)
	// InUse lists the layers that containers use. Sweep keeps them; if the list is not whole, Sweep keeps all layers
	// that the store had when it was opened. A container must be in the list before the caller releases its Use. May be
	// nil.
	InUse func() (used map[string]struct{}, whole bool)
	// PullSeen is called after each Pull with its duration and its error. May be nil.
	PullSeen func(took time.Duration, err error)
	// Logger logs what happens in the background.
	Logger *slog.Logger
	// BootID identifies the boot; the kernel's if empty.
	BootID string
}

// Verifier decides whether an image may be used. It may be asked about the same image often, and concurrently.
type Verifier interface {
	// Verify returns nil to accept the image of q. Any error refuses it.
	Verify(ctx context.Context, q Question) error
	// Confirm is Verify for an image that the node has. It may repeat an earlier answer to the same question.
	Confirm(ctx context.Context, q Question) error
}

// Question describes the image that a verifier is asked about.
type Question = verifier.Question

// Image is one image of the store. It is an immutable value.
type Image = catalog.Image

// Finding is one fault of the store.
type Finding = catalog.Finding

// Store is an image store on disk. All methods may be called concurrently. The catalog has the lock of records and
// layers, the pipeline the locks of work that is going on.
type Store struct {
	disk     *catalog.Disk
	catalog  *catalog.Catalog
	sweeper  *catalog.Sweeper
	syncer   *catalog.Syncer
	pipeline *pipeline
	pulls    progress.Board
	work     sync.WaitGroup // the goroutines in the background
	stop     context.CancelFunc
	ctx      context.Context
	unsync   func() error // closes the syncer's flusher
}

// Open opens the store at cfg.Root, or makes one. Records that it cannot read are left out and listed by Problems. On a
// file system that has become read-only, it serves what is complete. It removes unfinished work of an earlier daemon in
// the background.
func Open(cfg Config) (*Store, error) {
	cfg, err := complete(cfg)
	if err != nil {
		return nil, failed("open image store", err)
	}
	platform, err := targetFor(cfg.Platform)
	if err != nil {
		return nil, failed("open image store", err)
	}
	d := catalog.NewDisk(cfg.Root, cfg.Logger)
	c := catalog.New(d, cfg.BootID, cfg.Pinned, platform.compare, cfg.Dirty)
	sweeper := catalog.NewSweeper(c, cfg.InUse)
	s := &Store{
		disk: d, catalog: c, sweeper: sweeper, pipeline: newPipeline(cfg, d, c, sweeper, platform),
	}
	if err := d.MakeDirs(); err != nil {
		return nil, failed("open image store", err)
	}
	if s.pipeline.unpackers, err = newUnpackers(cfg.Unpackers, s.disk.Path(catalog.IngestDir)); err != nil {
		return nil, failed("open image store", err)
	}
	flush, unsync, err := catalog.DiskFlusher(cfg.Root)
	if err != nil {
		s.pipeline.unpackers.close()
		return nil, failed("open image store", err)
	}
	s.syncer, s.unsync = catalog.NewSyncer(c, flush), unsync
	left, err := catalog.Load(c)
	if err != nil {
		s.pipeline.unpackers.close()
		return nil, failed("open image store", errors.Join(err, s.unsync()))
	}
	for l := range c.Snapshot().EachLayer() {
		s.pipeline.proofs.note(l.Blob, l.ProvenBy...)
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.work.Go(func() {
		for _, discard := range left {
			if s.ctx.Err() != nil {
				return // the next Open goes on
			}
			discard()
		}
	})
	s.work.Go(func() { s.syncer.Run(s.ctx) })
	s.work.Go(func() { s.sweeper.Run(s.ctx) })
	s.syncer.Wake()
	return s, nil
}

// landing is how long Close waits for work that it has ended. It is short, so that a restart of the daemon does not
// wait until all files of large layers are removed, or a disk has taken all that was written.
const landing = 5 * time.Second

// Close ends all work in the background. When it returns, that work no longer touches the disk, except the removal of
// files and a sync of the disk that take longer than a few seconds; the next Open finishes that. Calls that have not
// returned get an error.
func (s *Store) Close() error {
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), landing)
	defer cancel()
	worked := make(chan struct{})
	go func() { s.work.Wait(); close(worked) }()
	var landed sync.WaitGroup
	landed.Go(func() { s.pipeline.configs.land(ctx) })
	landed.Go(func() { s.pipeline.proving.land(ctx) })
	landed.Go(func() { s.pipeline.layers.land(ctx) })
	landed.Wait()
	select {
	case <-worked:
	case <-ctx.Done():
	}
	s.pipeline.unpackers.close()
	_ = s.unsync()
	return nil
}

// complete returns an error for a configuration without a limit, and fills in optional values. Limits have no defaults
// here: package config has them.
func complete(cfg Config) (Config, error) {
	for name, v := range map[string]int64{
		"MaxLayers": int64(cfg.MaxLayers), "MaxManifestBytes": cfg.MaxManifestBytes, "MaxConfigBytes": cfg.MaxConfigBytes,
		"MaxLayerBytes": cfg.MaxLayerBytes, "MaxLayerEntries": int64(cfg.MaxLayerEntries),
		"MaxPullLayers": int64(cfg.MaxPullLayers), "MaxParallelLayers": int64(cfg.MaxParallelLayers),
		"MaxLayerConnections": int64(cfg.MaxLayerConnections), "StallTimeout": int64(cfg.StallTimeout),
		"MaxBufferBytes": cfg.MaxBufferBytes, "MaxImageBytes": cfg.MaxImageBytes,
		"MaxLayerMemoryBytes": cfg.MaxLayerMemoryBytes,
		"FirstByteTimeout":    int64(cfg.FirstByteTimeout),
	} {
		if v <= 0 {
			return cfg, fail.New(errdefs.ErrInvalidArgument, "the configuration of the image store has no %s", name)
		}
	}
	cfg.MaxLayers = min(cfg.MaxLayers, rootfs.MaxLayers) // an image with more could be pulled but not run
	if cfg.Dirty == nil {
		cfg.Dirty = func(string) {}
	}
	if cfg.InUse == nil {
		cfg.InUse = func() (map[string]struct{}, bool) { return nil, true }
	}
	if cfg.PullSeen == nil {
		cfg.PullSeen = func(time.Duration, error) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.BootID == "" {
		id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
		cfg.BootID = strings.TrimSpace(string(id))
	}
	return cfg, nil
}

// Get finds an image by name, name@digest, id, id without the algorithm, or the first 12 or more digits of an id that
// no other image begins with. It never waits.
func (s *Store) Get(refOrID string) (Image, bool) {
	return s.catalog.Snapshot().Find(refOrID)
}

// List returns all images, by id. It never waits.
func (s *Store) List() []Image {
	return s.catalog.Snapshot().List()
}

// Usage returns the space that the layers take on the disk, and the time for which this holds. It reads no directory:
// each layer was counted when it was unpacked.
func (s *Store) Usage() (bytes, inodes uint64, at time.Time) {
	return s.catalog.Snapshot().Usage()
}

// Fetched returns how many bytes of layers were read from registries since the store was opened, compressed. It never
// waits.
func Fetched(s *Store) uint64 { return s.pipeline.fetched.Load() }

// LayerDirs returns the directories of an image's layers for an overlay mount, the topmost first. If an image has a
// layer twice, only the upper one is returned: the kernel refuses a directory that occurs twice, and the upper one
// hides the lower one anyway.
func (s *Store) LayerDirs(img Image) []string {
	now, seen := s.catalog.Snapshot(), map[string]bool{}
	var out []string
	for i := len(img.Layers) - 1; i >= 0; i-- {
		if seen[img.Layers[i]] {
			continue
		}
		seen[img.Layers[i]] = true
		out = append(out, s.disk.LayerFS(img.Layers[i]))
		if now.Layer(img.Layers[i]).Opaque {
			break
		}
	}
	return out
}

// Use finds an image by name or whole id, and keeps Sweep from its layers until release is called, which may be
// repeated. It does not take the beginning of an id, because a container must not get another image by accident. It
// does not wait for changes of the store.
func (s *Store) Use(refOrID string) (Image, func(), error) {
	img, release, err := catalog.Use(s.catalog, refOrID)
	return img, release, failed("use image "+refOrID, err)
}
