package image

import (
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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

// What an image may have of what its containers get.
const (
	maxVolumes  = 1000
	maxFeatures = 100
	// maxArguments is what execve takes of arguments and environment together, with a stack of any size.
	maxArguments = 6 << 20
)

// checkConfig refuses what no container could be started with.
func checkConfig(img ocispec.Image) error {
	if n := len(img.Config.Volumes); n > maxVolumes {
		return tooMuch("the image declares", int64(n), maxVolumes, "volumes", "")
	}
	if n := len(img.OSFeatures); n > maxFeatures {
		return tooMuch("the image needs", int64(n), maxFeatures, "features of the operating system", "")
	}
	var size int64
	for _, list := range [][]string{img.Config.Env, img.Config.Entrypoint, img.Config.Cmd} {
		for _, s := range list {
			size += int64(len(s)) + 9 // the NUL at its end, and a pointer
		}
	}
	if size > maxArguments {
		return tooMuch("the environment and the command of the image take", size, maxArguments, "bytes", "")
	}
	return nil
}

// tooMuch says what has how much of a unit, where limit is the most, and which key of the configuration says so; "" for
// none.
func tooMuch(has string, found, limit int64, unit, key string) error {
	remedy := "build it with less"
	if key != "" {
		remedy = "build it with less, or raise " + key
	}
	return errorf(ResourceExhausted, "%s %d %s, more than the %d allowed: %s", has, found, unit, limit, remedy)
}

// readRecord reads the record of an image from the disk. It has the config, which is too large to be kept in memory for
// all images.
func readRecord(path, id string) (*imageRecord, error) {
	rec := &imageRecord{}
	if _, err := imageKind.Read(path, rec); err != nil {
		return nil, err
	}
	if rec.ID != id || digest.FromBytes(rec.Config).String() != rec.ID {
		return nil, errorf(DataLoss, "record is not that of %s", id)
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
		return nil, fail("read the config of image "+img.ID, err)
	}
	return rec.Config, nil
}
