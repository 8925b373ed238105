// Package attack measures what images and registries that want to hurt a node cost container runtimes, side by side:
// memory of the daemon and of what it started, time, whether the image was taken, and what a healthy pull beside it
// takes.
package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/bench/internal/footprint"
	"berth/bench/internal/peer"
	"berth/bench/internal/report"
)

// Suite is what to measure. Set every field.
type Suite struct {
	Setup    peer.Setup
	Names    []string // of the runtimes, as package peer knows them
	Report   *report.Report
	Progress io.Writer
	Rounds   int
	Patience time.Duration // how long a pull may take before it is given up
}

// Hostile registries, and layers of each, that drip beside a healthy pull.
const (
	slowImages = 12
	slowLayers = 4
	slowPause  = 800 * time.Millisecond // between pieces: some 640 bytes a second
)

// Run measures each attack on each runtime, on a daemon that was just started, then all of them at once.
func (s *Suite) Run(ctx context.Context) (err error) {
	evil, err := startRegistry()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, evil.close()) }()
	good, err := startRegistry()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, good.close()) }()
	for _, r := range []*registry{evil, good} {
		if err := peer.WriteHosts(s.Setup.Images.Certs, r.addr); err != nil {
			return err
		}
	}
	bombs, err := publishAll(evil, good, 1)
	if err != nil {
		return err
	}
	for round := range s.Rounds {
		for i := range s.Names {
			name := s.Names[(i+round)%len(s.Names)]
			fmt.Fprintf(s.Progress, "round %d: %s\n", round+1, name)
			if err := s.round(ctx, name, evil, good, bombs); err != nil {
				return err
			}
		}
	}
	return nil
}

// publishAll puts all images where they belong, and returns the bombs. They are at evil, under b0, b1 …
func publishAll(evil, good *registry, part int) ([]bomb, error) {
	all, err := bombs(part)
	if err != nil {
		return nil, err
	}
	for i, b := range all {
		if _, err := evil.publish(fmt.Sprintf("b%d:v1", i), b.extra, b.layers...); err != nil {
			return nil, err
		}
	}
	secret, err := honest("secret", 50)
	if err != nil {
		return nil, err
	}
	id, err := good.publish("private:v1", nil, secret)
	if err != nil {
		return nil, err
	}
	if err := steal(evil, good, id); err != nil {
		return nil, err
	}
	var healthy []layer
	for i := range 4 {
		l, err := honest(fmt.Sprint("healthy", i), 400)
		if err != nil {
			return nil, err
		}
		healthy = append(healthy, l)
	}
	if _, err := good.publish("healthy:v1", nil, healthy...); err != nil {
		return nil, err
	}
	return all, publishSlow(evil)
}

// steal publishes a manifest with the id of a private image, and layers that nobody has.
func steal(evil, good *registry, id digest.Digest) error {
	return evil.manifest("thief:v1", ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: id, Size: int64(len(good.blobs[id]))},
		Layers: []ocispec.Descriptor{{
			MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("nothing"), Size: 1000,
		}},
	})
}

func publishSlow(evil *registry) error {
	for i := range slowImages {
		var layers []layer
		for n := range slowLayers {
			l, err := honest(fmt.Sprint("slow", i, "-", n), 400)
			if err != nil {
				return err
			}
			evil.drip(digest.FromBytes(l.blob), slowPause)
			layers = append(layers, l)
		}
		if _, err := evil.publish(fmt.Sprintf("slow%d:v1", i), nil, layers...); err != nil {
			return err
		}
	}
	return nil
}

func (s *Suite) round(ctx context.Context, name string, evil, good *registry, bombs []bomb) error {
	for i, b := range bombs {
		err := s.on(ctx, name, func(p *peer.Peer) error {
			return s.weigh(ctx, p, b.title, func(ctx context.Context) (string, error) {
				return s.outcome(ctx, p, fmt.Sprintf("%s/b%d:v1", evil.addr, i))
			})
		})
		if err != nil {
			return err
		}
	}
	if err := s.on(ctx, name, func(p *peer.Peer) error { return s.thief(ctx, p, evil, good) }); err != nil {
		return err
	}
	if err := s.on(ctx, name, func(p *peer.Peer) error { return s.alone(ctx, p, good) }); err != nil {
		return err
	}
	if err := s.on(ctx, name, func(p *peer.Peer) error { return s.crowd(ctx, p, evil, good) }); err != nil {
		return err
	}
	return s.on(ctx, name, func(p *peer.Peer) error { return s.allAtOnce(ctx, p, evil, len(bombs)) })
}

// on starts a runtime on an empty store of its own, and leaves nothing.
func (s *Suite) on(ctx context.Context, name string, do func(p *peer.Peer) error) (err error) {
	dir := filepath.Join(s.Setup.Dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH), os.RemoveAll(dir))
		err = errors.Join(err, os.RemoveAll(filepath.Join("/run", name)))
	}()
	p, err := s.Setup.Start(ctx, name)
	if p != nil {
		defer func() { err = errors.Join(err, p.Stop()) }()
	}
	if err != nil {
		return err
	}
	s.Report.Introduce(name, p.Version)
	return do(p)
}

// outcome pulls, and says in a word what came of it.
func (s *Suite) outcome(ctx context.Context, p *peer.Peer, image string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	_, err := p.PullImage(ctx, image)
	switch {
	case ctx.Err() != nil:
		return fmt.Sprintf("nothing after %s", s.Patience), nil
	case err != nil:
		return "refused", nil
	}
	return "served", nil
}

// weigh measures memory and time of what do does to a runtime, and notes the outcome.
func (s *Suite) weigh(
	ctx context.Context, p *peer.Peer, title string, do func(context.Context) (string, error),
) error {
	const settle = 300 * time.Millisecond
	time.Sleep(settle)
	pid, err := p.Daemon()
	if err != nil {
		return err
	}
	if err := footprint.ResetPeak(pid); err != nil {
		return err
	}
	before, err := footprint.ResidentOf(pid)
	if err != nil {
		return err
	}
	stop := watchHelpers(pid)
	begin := time.Now()
	outcome, err := do(ctx)
	took := time.Since(begin)
	helpers := stop()
	if err != nil {
		return err
	}
	after, err := footprint.ResidentOf(pid)
	if err != nil {
		return err
	}
	const mib = 1 << 20
	s.Report.Add(title, "peak of the daemon above idle", report.Mebibytes, p.Name, float64(after.Peak-before.Now)/mib)
	s.Report.Add(title, "peak of its helpers together", report.Mebibytes, p.Name, float64(helpers)/mib)
	s.Report.AddTime(title, "time", p.Name, took)
	s.note(fmt.Sprintf("%s: %s: %s", title, p.Name, outcome))
	return nil
}

func (s *Suite) note(text string) {
	for _, known := range s.Report.Notes {
		if known == text {
			return
		}
	}
	s.Report.Notes = append(s.Report.Notes, text)
}

// thief pulls a private image, and then the stranger's manifest that names its id.
func (s *Suite) thief(ctx context.Context, p *peer.Peer, evil, good *registry) error {
	if _, err := p.PullImage(ctx, good.addr+"/private:v1"); err != nil {
		return err
	}
	outcome, err := s.outcome(ctx, p, evil.addr+"/thief:v1")
	s.note(fmt.Sprintf("a private image's id in a stranger's manifest: %s: %s", p.Name, outcome))
	return err
}

const crowded = "a healthy pull beside 12 images that drip"

// alone pulls the healthy image from a runtime that does nothing else.
func (s *Suite) alone(ctx context.Context, p *peer.Peer, good *registry) error {
	took, err := p.PullImage(ctx, good.addr+"/healthy:v1")
	s.Report.AddTime(crowded, "alone", p.Name, took)
	return err
}

// crowd pulls it while images of another registry drip.
func (s *Suite) crowd(ctx context.Context, p *peer.Peer, evil, good *registry) error {
	busy, end := context.WithCancel(ctx)
	var pulls sync.WaitGroup
	defer func() { end(); pulls.Wait() }()
	for i := range slowImages {
		pulls.Go(func() { _, _ = p.PullImage(busy, fmt.Sprintf("%s/slow%d:v1", evil.addr, i)) })
	}
	time.Sleep(2 * time.Second) // until all that can has begun
	begin := time.Now()
	outcome, err := s.outcome(ctx, p, good.addr+"/healthy:v1")
	s.Report.AddTime(crowded, "beside them", p.Name, time.Since(begin))
	s.note(fmt.Sprintf("%s: %s: %s", crowded, p.Name, outcome))
	return err
}

// allAtOnce has every bomb and every dripping image pulled at the same moment.
func (s *Suite) allAtOnce(ctx context.Context, p *peer.Peer, evil *registry, bombs int) error {
	return s.weigh(ctx, p, "all at once", func(ctx context.Context) (string, error) {
		busy, end := context.WithCancel(ctx)
		var slow, pulls sync.WaitGroup
		defer func() { end(); slow.Wait() }()
		for i := range slowImages {
			slow.Go(func() { _, _ = p.PullImage(busy, fmt.Sprintf("%s/slow%d:v1", evil.addr, i)) })
		}
		outcomes := make([]string, bombs)
		for i := range bombs {
			pulls.Go(func() { outcomes[i], _ = s.outcome(ctx, p, fmt.Sprintf("%s/b%d:v1", evil.addr, i)) })
		}
		pulls.Wait()
		return strings.Join(outcomes, ", "), nil
	})
}

// watchHelpers looks at the memory of all that a process has started, and what those have, until it is stopped. It
// returns the most that they had together.
func watchHelpers(pid int) (stop func() int64) {
	const tick = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var watcher sync.WaitGroup
	most := int64(0)
	watcher.Go(func() {
		for ctx.Err() == nil {
			most = max(most, footprint.ResidentBelow(pid))
			select {
			case <-ctx.Done():
			case <-time.After(tick):
			}
		}
	})
	return func() int64 {
		cancel()
		watcher.Wait()
		return most
	}
}
