package pull

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// atOnce is how many blobs a bare download fetches at the same time.
const atOnce = 4

// download fetches an image's manifest, config and layers, throws them away, and says how long that took.
func download(ctx context.Context, registry, image string) (time.Duration, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: atOnce}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	name, tag, _ := strings.Cut(image, ":")
	base := "http://" + registry + "/v2/" + name
	begin := time.Now()
	var m ocispec.Manifest
	err := get(ctx, client, base+"/manifests/"+tag, func(r io.Reader) error { return json.NewDecoder(r).Decode(&m) })
	if err != nil {
		return 0, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, blob := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		g.Go(func() error {
			return get(ctx, client, base+"/blobs/"+blob.Digest.String(), func(r io.Reader) error {
				_, err := io.Copy(io.Discard, r)
				return err
			})
		})
	}
	err = g.Wait()
	return time.Since(begin), err
}

func get(ctx context.Context, client *http.Client, url string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", ocispec.MediaTypeImageManifest)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, resp.Status)
	}
	if err := read(resp.Body); err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	return nil
}
