package pull

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/bench/internal/content"
	"berth/bench/internal/link"
	"berth/test/fixture"
)

// Sizes are of the content of the images' layers, in bytes.
type Sizes struct {
	Six   int64 // six layers together
	New   int64 // the layer that the second image has besides five of those
	Large int64
	Forty int64 // forty layers together
}

// Usual are the sizes of a run whose results count.
var Usual = Sizes{Six: 320 << 20, New: 20 << 20, Large: 300 << 20, Forty: 80 << 20}

// Cases are the cases, for images that Publish has made.
var Cases = []Case{
	{Key: "six-gzip", Title: "Six layers, gzip", Steps: []Step{
		{Image: "six:gzip"}, {"again", "six:gzip"}, {"second image", "second:gzip"},
	}},
	{Key: "six-zstd", Title: "Six layers, zstd", Steps: []Step{
		{Image: "six:zstd"}, {"again", "six:zstd"}, {"second image", "second:zstd"},
	}},
	{Key: "large-gzip", Title: "One large layer, gzip", Steps: []Step{{Image: "large:gzip"}}},
	{Key: "large-zstd", Title: "One large layer, zstd", Steps: []Step{{Image: "large:zstd"}}},
	{Key: "forty", Title: "Forty small layers, gzip", Steps: []Step{{Image: "forty:gzip"}}},
	{Key: "ext4", Title: "Six layers, gzip, on ext4", Steps: []Step{{Image: "six:gzip"}}, Ext4: true},
	{
		Key: "link-100", Title: "Six layers, gzip, over 100 Mbit/s", Steps: []Step{{Image: "six:gzip"}},
		Link: &link.Shape{Rate: 100e6},
	},
	{
		Key: "link-20", Title: "Forty small layers, gzip, over 20 Mbit/s and 20 ms each way",
		Steps: []Step{{Image: "forty:gzip"}},
		Link:  &link.Shape{Rate: 20e6, Delay: 20 * time.Millisecond},
	},
	{
		Key: "link-each", Title: "One large layer, gzip, over connections of 100 Mbit/s each",
		Steps: []Step{{Image: "large:gzip"}},
		Link:  &link.Shape{PerConn: 100e6},
	},
	{
		Key: "ten", Title: "Ten layers of one file, and the first start of a pod", Steps: []Step{{Image: tenImage}},
		Start: true,
	},
}

// tenImage is an image of ten layers with a file each, whose containers run Idle.
const tenImage = "ten:gzip"

// Idle is what a container of that image runs: it prints "ready", and waits for a signal.
var Idle = []string{"/webapp", "signal"}

// Choose picks cases by key, all when none is named.
func Choose(keys []string) ([]Case, error) {
	if len(keys) == 0 {
		return Cases, nil
	}
	var chosen []Case
	for _, key := range keys {
		at := slices.IndexFunc(Cases, func(c Case) bool { return c.Key == key })
		if at < 0 {
			return nil, fmt.Errorf("no case %q: there are %s", key, allKeys())
		}
		chosen = append(chosen, Cases[at])
	}
	return chosen, nil
}

func allKeys() (keys []string) {
	for _, c := range Cases {
		keys = append(keys, c.Key)
	}
	return keys
}

// Publish makes the images that the cases pull, with the content of this machine's /usr, pushes them, and says what
// they are. dir is for files in between.
func Publish(r *fixture.Registry, dir string, cases []Case, sizes Sizes) (notes []string, err error) {
	tree, err := content.Open("/")
	if err != nil {
		return nil, err
	}
	for _, name := range imageNames(cases) {
		note, err := publish(r, dir, tree, name, sizes)
		if err != nil {
			return nil, fmt.Errorf("make the image %s: %w", name, err)
		}
		notes = append(notes, note)
	}
	if slices.ContainsFunc(cases, func(c Case) bool { return c.Steps[0].Image == tenImage }) {
		return notes, publishTen(r)
	}
	return notes, nil
}

func publishTen(r *fixture.Registry) error {
	recipe, err := fixture.BusyboxRecipe()
	if err != nil {
		return err
	}
	asleep := v1.Config{Entrypoint: []string{"/bin/busybox", "sleep", "2147483647"}}
	own := append(slices.Clone(recipe.Layers[0]), fixture.File{Name: "pause"}) // a layer that no other image has
	if err := pushRecipe(r, pauseImage, fixture.Recipe{Config: asleep, Layers: [][]fixture.File{own}}); err != nil {
		return err
	}
	for n := len(recipe.Layers); n < 10; n++ {
		one := fixture.File{Name: fmt.Sprintf("etc/%d", n), Body: fmt.Append(nil, n)}
		recipe.Layers = append(recipe.Layers, []fixture.File{one})
	}
	return pushRecipe(r, tenImage, recipe)
}

func pushRecipe(r *fixture.Registry, name string, recipe fixture.Recipe) error {
	img, err := recipe.Build()
	if err != nil {
		return err
	}
	_, err = r.Push(name, img)
	return err
}

// pauseImage is for runtimes with a container of each pod's own.
const pauseImage = "pause:gzip"

// Pause is the reference of that image in a registry.
func Pause(registry string) string { return registry + "/" + pauseImage }

// imageNames leaves out the second image, which comes with the first.
func imageNames(cases []Case) (names []string) {
	for _, name := range []string{"six", "large", "forty"} {
		used := slices.ContainsFunc(cases, func(c Case) bool {
			return c.Steps[0].Image == name+":"+content.Gzip || c.Steps[0].Image == name+":"+content.Zstd
		})
		if used {
			names = append(names, name)
		}
	}
	return names
}

func (s Sizes) layers(name string) []int64 {
	switch name {
	case "six":
		return append(slices.Repeat([]int64{s.Six / 6}, 6), s.New)
	case "large":
		return []int64{s.Large}
	default:
		return slices.Repeat([]int64{s.Forty / 40}, 40)
	}
}

func publish(r *fixture.Registry, dir string, tree *content.Tree, name string, sizes Sizes) (note string, err error) {
	if dir, err = os.MkdirTemp(dir, "blobs-"); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	tree.Rewind()
	layers, err := tree.Layers(dir, sizes.layers(name)...)
	if err != nil {
		return "", err
	}
	if name != "six" {
		return describe(name, layers), push(r, name, layers)
	}
	second := append(slices.Clone(layers[:5]), layers[6])
	note = describe(name, layers[:6]) + "; " + describe("the layer that only the second image has", layers[6:])
	return note, errors.Join(push(r, name, layers[:6]), push(r, "second", second))
}

func push(r *fixture.Registry, name string, layers []*content.Layer) error {
	for _, compression := range []string{content.Gzip, content.Zstd} {
		img, err := content.Image(compression, layers...)
		if err != nil {
			return err
		}
		if _, err := r.Push(name+":"+compression, img); err != nil {
			return err
		}
	}
	return nil
}

func describe(name string, layers []*content.Layer) string {
	var entries int
	var plain, gz, zs int64
	for _, l := range layers {
		entries += l.Entries
		plain, gz, zs = plain+l.Plain, gz+l.Size(content.Gzip), zs+l.Size(content.Zstd)
	}
	const mib = 1 << 20
	return fmt.Sprintf("%s: %d layers, %d entries, %.1f MiB of tar; %.1f as gzip, %.1f as zstd",
		name, len(layers), entries, float64(plain)/mib, float64(gz)/mib, float64(zs)/mib)
}
