package document

import (
	"encoding/json"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

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

// ParseConfig reads of an image config what is used, and refuses one that could be understood differently.
func ParseConfig(raw []byte) (ocispec.Image, error) {
	img, err := DecodeConfig(raw)
	if err != nil {
		return img, err
	}
	return img, unambiguous(raw)
}

// DecodeConfig reads of an image config what is used, of one that was judged before.
func DecodeConfig(raw []byte) (ocispec.Image, error) {
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

// CheckConfig refuses what no container could be started with.
func CheckConfig(img ocispec.Image) error {
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
