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
	"berth/internal/image/verifier"
	"berth/internal/rootfs"
)

// Config is what a Store needs. Root is required; the zero value of the others is a sound default.
type Config struct {
	// Root is the directory of the store. Its file system must be able to hold overlay layers.
	Root string
	// RegistryConfigDir holds <host>/hosts.toml, as containerd documents it; read anew for every pull.
	RegistryConfigDir string
	// Platform is what images are chosen for; this machine's when empty.
	Platform string
	// Pinned names images that must not be collected: references, with * allowed.
	Pinned []string

	// The limits, of which none may be left out.

	MaxLayers           int   // layers of an image
	MaxManifestBytes    int64 // a manifest or an index
	MaxConfigBytes      int64 // an image config
	MaxImageBytes       int64 // what the layers of one image may have to be transferred
	MaxLayerBytes       int64 // what one layer may unpack to
	MaxLayerEntries     int   // files and directories of one layer
	MaxLayerMemoryBytes int64 // what is kept of one layer in memory until it is finalized
	MinFreePercent      int   // of the file system, which no pull or import may take; 0 for none
	MaxPullLayers       int   // layers fetched at once for one pull
	MaxParallelLayers   int   // layers fetched at once for the whole store

	MaxLayerConnections int           // connections of one layer to its registry
	StallTimeout        time.Duration // how long a registry may send next to nothing
	FirstByteTimeout    time.Duration // how long a registry may take to begin to send a blob
	ForeignLayerURLs    bool          // foreign layers are fetched from the urls of a manifest
	MaxBufferBytes      int64         // fetched ahead of what is unpacked, for the whole store

	// Gunzip inflates large gzip layers; nil leaves them to the library.
	Gunzip *inflate.Program
	// Possession is who has to have served a blob before what came of it is used without a fetch: PossessionRepository,
	// which is also what an empty one means, or PossessionRegistry.
	Possession string
	// Unpackers starts the processes that unpack layers; nil leaves that to the daemon itself.
	Unpackers Crew
	// Verifier is asked at every Pull; nil accepts all.
	Verifier Verifier
	// Dirty is told of each record and directory that should become durable soon. May be nil.
	Dirty func(path string)
	// InUse lists the layers that containers use: Sweep keeps them. Where the list is not whole, it keeps every layer that
	// was there when the store was opened. It must count a container from before its Use is
	// released. May be nil.
	InUse func() (used map[string]struct{}, whole bool)
	// Logger gets what happens behind the callers' backs.
	Logger *slog.Logger
	// BootID tells one boot from another; the kernel's when empty.
	BootID string
}

// Verifier reports whether an image may be used. It may be asked about the same one often, and concurrently.
type Verifier interface {
	// Verify returns nil to accept what q is about, or else the reason. Any error refuses.
	Verify(ctx context.Context, q Question) error
	// Confirm is Verify for an image that the node has. It may answer as Verify has answered the same question before.
	Confirm(ctx context.Context, q Question) error
}

// Question is what a verifier is asked about.
type Question = verifier.Question

// Image is one image of the store. It is a value: nothing changes it after it was handed out.
type Image = catalog.Image

// Finding is one thing that is wrong in the store.
type Finding = catalog.Finding

// Store is an image store on disk. All methods may be called at once from anywhere. Its parts own their locks: the
// catalog that of records and layers, the pipeline those of what is on its way.
type Store struct {
	disk     *catalog.Disk
	catalog  *catalog.Catalog
	sweeper  *catalog.Sweeper
	syncer   *catalog.Syncer
	pipeline *pipeline
	work     sync.WaitGroup // what goes on in the background
	stop     context.CancelFunc
	ctx      context.Context
	unsync   func() error // ends what the syncer syncs with
}

// Open reads the store at cfg.Root, making it when it is not there. A record that cannot be read stops nothing:
// Problems names it. Nor does a file system that has turned read-only: what is whole is served. What an earlier daemon
// left half done is collected in the background.
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
	c := catalog.New(d, cfg.BootID, cfg.Pinned, cfg.Dirty)
	sweeper := &catalog.Sweeper{Catalog: c, InUse: cfg.InUse}
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
			discard()
		}
	})
	s.work.Go(func() { s.syncer.Run(s.ctx) })
	s.syncer.Wake()
	return s, nil
}

// landing is how long a store that is closed waits for fetches that it has ended: who restarts the daemon need not wait
// until all that a large layer left is gone.
const landing = 5 * time.Second

// Close ends what goes on in the background. Nothing of it touches the disk any more when it returns, but for what
// takes longer than a few seconds to clear away: the next Open does that. Callers still inside get an error.
func (s *Store) Close() error {
	s.stop()
	s.work.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), landing)
	defer cancel()
	s.pipeline.configs.land(ctx)
	s.pipeline.proving.land(ctx)
	s.pipeline.layers.land(ctx)
	s.pipeline.unpackers.close()
	_ = s.unsync()
	return nil
}

// complete refuses a configuration that leaves out a limit, and fills in what is optional. The defaults of limits are
// those of package config, and nowhere else.
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
	cfg.MaxLayers = min(cfg.MaxLayers, rootfs.MaxLayers) // one with more could be pulled and never run
	if cfg.Dirty == nil {
		cfg.Dirty = func(string) {}
	}
	if cfg.InUse == nil {
		cfg.InUse = func() (map[string]struct{}, bool) { return nil, true }
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

// Get finds an image by name, name@digest, id, bare hex id or the beginning of one that only one image has, of at least
// 12 digits. It never waits.
func (s *Store) Get(refOrID string) (Image, bool) {
	return s.catalog.Snapshot().Find(refOrID)
}

// List returns all images, by id. It never waits.
func (s *Store) List() []Image {
	return s.catalog.Snapshot().List()
}

// Usage says what the layers take of the disk, and when that was so. Nothing is walked: each layer was counted when it
// was unpacked.
func (s *Store) Usage() (bytes, inodes uint64, at time.Time) {
	return s.catalog.Snapshot().Usage()
}

// LayerDirs returns the directories of an image's layers for an overlay mount, the topmost first. An image without
// layers has none. A layer that an image has twice is there once, the topmost: the kernel refuses it twice, and what it
// brings covers what it brought.
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

// Use finds an image by name or whole id, and holds its layers against Sweep until release is called, which may be more
// than once. The beginning of an id is none: whoever creates a container of an image must know which. It waits for no
// change of the store.
func (s *Store) Use(refOrID string) (Image, func(), error) {
	img, release, err := catalog.Use(s.catalog, refOrID)
	return img, release, failed("use image "+refOrID, err)
}
