// Package containerd reads the images that a containerd keeps in its root directory, without containerd, and trusts
// nothing in there: names and digests come from a file that anybody may have made, and blobs are proven as they are
// read.
package containerd

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/containerd/bolt"
)

// DefaultRoot is where containerd keeps its things, and DefaultNamespace is where its CRI plugin keeps a kubelet's.
const (
	DefaultRoot      = "/var/lib/containerd"
	DefaultNamespace = "k8s.io"
)

// Where things are in a root, from containerd 1.0 to 2.4.
const (
	metadataFile = "io.containerd.metadata.v1.bolt/meta.db"
	blobsDir     = "io.containerd.content.v1.content/blobs"
)

// The labels that CRI has on images.
const (
	pinnedLabel = "io.cri-containerd.pinned"
	pinnedValue = "pinned"
)

// The bounds of what the metadata may have.
const (
	mostImages = 100_000 // names, those by id among them
	mostName   = 4096    // bytes
	mostLabels = 1000    // of an image
)

// ErrLocked says that a containerd that runs has the metadata.
var ErrLocked = errors.New("a containerd that runs holds the lock of it")

// Root is the root directory of a containerd. Close lets go of it.
type Root struct{ dir *os.Root }

// Image is what several names lead to.
type Image struct {
	Target  ocispec.Descriptor // a manifest or an index
	Tags    []string           // names by tag, in full
	Digests []string           // names by digest, in full
	Odd     []string           // what no registry could call the image, but for ids
	Pinned  bool               // no garbage collection removes it
}

// Name is what to call the image.
func (i *Image) Name() string {
	for _, names := range [][]string{i.Tags, i.Digests, i.Odd} {
		if len(names) > 0 {
			return names[0]
		}
	}
	return i.Target.Digest.String()
}

// Open opens the root directory of a containerd.
func Open(dir string) (*Root, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Root{root}, nil
}

// Close closes the directory.
func (r *Root) Close() { _ = r.dir.Close() }

// Images are those of a namespace, by name. It holds a lock meanwhile, for which a containerd that is started waits.
func (r *Root) Images(namespace string) ([]Image, error) {
	f, err := r.open(metadataFile)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	path := filepath.Join(r.dir.Name(), metadataFile)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	db, err := bolt.Open(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	images, err := imagesIn(db.Root(), namespace)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return images, nil
}

// open opens a regular file of the root. A link that leads out of the root is followed nowhere.
func (r *Root) open(name string) (*os.File, error) {
	f, err := r.dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", filepath.Join(r.dir.Name(), name))
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func imagesIn(root *bolt.Bucket, namespace string) ([]Image, error) {
	v1, err := root.Bucket("v1")
	if err != nil {
		return nil, err
	}
	if v1 == nil {
		return nil, errors.New("it is not the metadata of a containerd: it has no v1")
	}
	space, err := v1.Bucket(namespace)
	if err != nil {
		return nil, err
	}
	if space == nil {
		return nil, noNamespace(v1, namespace)
	}
	names, err := space.Bucket("images")
	if err != nil || names == nil {
		return nil, err
	}
	found := map[digest.Digest]*Image{}
	count := 0
	err = names.Each(func(e bolt.Entry) error {
		if count++; count > mostImages {
			return fmt.Errorf("it has more than %d names of images", mostImages)
		}
		if e.Bucket == nil || len(e.Key) > mostName {
			return nil
		}
		img, err := readImage(e.Bucket)
		if err != nil {
			return fmt.Errorf("image %q: %w", e.Key, err)
		}
		known := found[img.Target.Digest]
		if known == nil {
			known = img
			found[img.Target.Digest] = img
		}
		known.Pinned = known.Pinned || img.Pinned
		known.call(e.Key)
		return nil
	})
	return sorted(found), err
}

// noNamespace says which namespaces there are.
func noNamespace(v1 *bolt.Bucket, namespace string) error {
	var have []string
	err := v1.Each(func(e bolt.Entry) error {
		if e.Bucket != nil && len(have) < 20 {
			have = append(have, fmt.Sprintf("%.76q", e.Key))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("there is no namespace %q: it has %s", namespace, cmp.Or(strings.Join(have, ", "), "none"))
}

// readImage reads what one name leads to.
func readImage(b *bolt.Bucket) (*Image, error) {
	img := &Image{}
	target, err := b.Bucket("target")
	if err != nil {
		return nil, err
	}
	if target == nil {
		return nil, errors.New("it leads nowhere")
	}
	err = target.Each(func(e bolt.Entry) error {
		switch {
		case len(e.Value) > mostName:
			return fmt.Errorf("its %.20q is too long", e.Key)
		case e.Key == "digest":
			img.Target.Digest = digest.Digest(e.Value)
		case e.Key == "mediatype":
			img.Target.MediaType = string(e.Value)
		case e.Key == "size":
			img.Target.Size, _ = binary.Varint(e.Value)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	labels, err := b.Bucket("labels")
	if err != nil || labels == nil {
		return img, err
	}
	count := 0
	err = labels.Each(func(e bolt.Entry) error {
		if count++; count > mostLabels {
			return fmt.Errorf("it has more than %d labels", mostLabels)
		}
		img.Pinned = img.Pinned || e.Key == pinnedLabel && string(e.Value) == pinnedValue
		return nil
	})
	return img, err
}

// call gives the image one more name. CRI has one that is the image's id, by which Berth finds it all the same.
func (i *Image) call(name string) {
	if digest.Digest(name).Validate() == nil {
		return
	}
	named, err := reference.ParseDockerRef(name)
	switch {
	case err != nil || !strings.ContainsAny(name, "/:"):
		i.Odd = append(i.Odd, name)
	case strings.Contains(named.String(), "@"):
		switch {
		case !strings.HasSuffix(named.String(), "@"+i.Target.Digest.String()):
			i.Odd = append(i.Odd, name)
		case !slices.Contains(i.Digests, named.String()):
			i.Digests = append(i.Digests, named.String())
		}
	case !slices.Contains(i.Tags, named.String()):
		i.Tags = append(i.Tags, named.String())
	}
}

func sorted(found map[digest.Digest]*Image) []Image {
	out := make([]Image, 0, len(found))
	for _, i := range slices.SortedFunc(maps.Values(found), func(a, b *Image) int {
		return cmp.Or(cmp.Compare(a.Name(), b.Name()), cmp.Compare(a.Target.Digest, b.Target.Digest))
	}) {
		out = append(out, *i)
	}
	return out
}
