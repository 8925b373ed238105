package image

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
	"berth/internal/limit"
)

// usedConfig is what Berth uses of an image config. All else, such as the history, is passed over when one is read: an
// image may have any amount of it. The record of the image has the config as it was fetched.
type usedConfig struct {
	Architecture string   `json:"architecture"`
	OS           string   `json:"os"`
	OSVersion    string   `json:"os.version"`
	OSFeatures   []string `json:"os.features"`
	Variant      string   `json:"variant"`
	Config       struct {
		User       string
		Env        []string
		Entrypoint []string
		Cmd        []string
		Volumes    map[string]struct{}
		WorkingDir string
		StopSignal string
	} `json:"config"`
	RootFS ocispec.RootFS `json:"rootfs"`
}

// parseConfig reads of an image config what is used, and refuses one that could be understood differently.
func parseConfig(raw []byte) (ocispec.Image, error) {
	img, err := decodeConfig(raw)
	if err != nil {
		return img, err
	}
	return img, unambiguous(raw)
}

func decodeConfig(raw []byte) (ocispec.Image, error) {
	var used usedConfig
	if err := json.Unmarshal(raw, &used); err != nil {
		return ocispec.Image{}, err
	}
	img := ocispec.Image{
		Platform: ocispec.Platform{
			Architecture: used.Architecture, OS: used.OS, OSVersion: used.OSVersion, OSFeatures: used.OSFeatures,
			Variant: used.Variant,
		},
		RootFS: used.RootFS,
	}
	c := used.Config
	img.Config = ocispec.ImageConfig{
		User: c.User, Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Volumes: c.Volumes, WorkingDir: c.WorkingDir,
		StopSignal: c.StopSignal,
	}
	return img, nil
}

// checkConfig refuses what no container could be started with.
func checkConfig(img ocispec.Image) error {
	if err := limit.DeclaredVolumes.Check(int64(len(img.Config.Volumes))); err != nil {
		return err
	}
	if err := limit.OSFeatures.Check(int64(len(img.OSFeatures))); err != nil {
		return err
	}
	var size int64
	for _, list := range [][]string{img.Config.Env, img.Config.Entrypoint, img.Config.Cmd} {
		for _, s := range list {
			size += int64(len(s)) + 9 // the NUL at its end, and a pointer
		}
	}
	return limit.Arguments.Check(size)
}

// readRecord reads the record of an image from the disk. It has the config, which is too large to be kept in memory for
// all images.
func readRecord(path, id string) (*imageRecord, error) {
	rec := &imageRecord{}
	if _, err := imageKind.Read(path, rec); err != nil {
		return nil, err
	}
	if rec.ID != id || digest.FromBytes(rec.Config).String() != rec.ID {
		return nil, fail.New(errdefs.ErrDataLoss, "record is not that of %s", id)
	}
	return rec, nil
}

// whole is a record with its config, which is read when it is one in memory.
func whole(d *disk, rec *imageRecord) (*imageRecord, error) {
	if rec.Config != nil {
		return rec, nil
	}
	stored, err := readRecord(d.recordPath(rec.ID), rec.ID)
	if err != nil {
		return nil, fmt.Errorf("read the config of image %s: %w", rec.ID, err)
	}
	full := *rec
	full.Config = stored.Config
	return &full, nil
}

// slim is a record without its config.
func (rec *imageRecord) slim() *imageRecord {
	small := *rec
	small.Config = nil
	return &small
}

// RawConfig reads the config of an image as it was fetched: its digest is the id.
func (img Image) RawConfig() ([]byte, error) {
	rec, err := readRecord(img.record, img.ID)
	if err != nil {
		return nil, failed("read the config of image "+img.ID, err)
	}
	return rec.Config, nil
}
