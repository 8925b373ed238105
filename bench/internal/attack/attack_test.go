package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// get fetches a path of a registry.
func get(t *testing.T, r *registry, path string) (int, []byte) {
	t.Helper()
	resp, err := http.Get("http://" + r.addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}

// TestImagesAreServed fetches what a pull would fetch of every bomb, and looks whether it is the attack that it says.
func TestImagesAreServed(t *testing.T) {
	evil, err := startRegistry()
	if err != nil {
		t.Fatal(err)
	}
	defer evil.close()
	good, err := startRegistry()
	if err != nil {
		t.Fatal(err)
	}
	defer good.close()
	all, err := publishAll(evil, good, 60)
	if err != nil || len(all) != 4 {
		t.Fatalf("%d bombs, %v", len(all), err)
	}
	for name, want := range map[string]int{"b0": 1, "b2": 2, "slow11": 4, "thief": 1} {
		status, body := get(t, evil, "/v2/"+name+"/manifests/v1")
		var m ocispec.Manifest
		if err := json.Unmarshal(body, &m); status != http.StatusOK || err != nil || len(m.Layers) != want {
			t.Errorf("%s: %d, %v, %d layers", name, status, err, len(m.Layers))
		}
	}
	_, body := get(t, evil, "/v2/b3/manifests/v1")
	var m ocispec.Manifest
	if err := json.Unmarshal(body, &m); err != nil || m.Config.Size < 120_000 {
		t.Errorf("the config with the long history has %d bytes, %v", m.Config.Size, err)
	}
	var stolen, private ocispec.Manifest
	_, body = get(t, evil, "/v2/thief/manifests/v1")
	if err := json.Unmarshal(body, &stolen); err != nil {
		t.Fatal(err)
	}
	_, body = get(t, good, "/v2/private/manifests/v1")
	if err := json.Unmarshal(body, &private); err != nil || private.Config.Digest != stolen.Config.Digest {
		t.Errorf("the thief names %s, not %s: %v", stolen.Config.Digest, private.Config.Digest, err)
	}
	if status, _ := get(t, evil, "/v2/thief/blobs/"+stolen.Config.Digest.String()); status != http.StatusNotFound {
		t.Errorf("the thief's registry has the config: %d", status)
	}
}

// TestDrip has a blob come in pieces, and end with who asks for it.
func TestDrip(t *testing.T) {
	r, err := startRegistry()
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	data := bytes.Repeat([]byte("x"), 3*pieceSize)
	d := r.put("any", data)
	r.drip(d, time.Millisecond)
	if _, body := get(t, r, "/v2/any/blobs/"+d.String()); !bytes.Equal(body, data) {
		t.Errorf("%d bytes of %d came", len(body), len(data))
	}
	r.drip(d, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr+"/v2/any/blobs/"+d.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.ReadFull(resp.Body, make([]byte, pieceSize)); err != nil {
		t.Errorf("%d bytes of the first piece, %v", n, err)
	}
	cancel()
	if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
		t.Error("a second piece came at once")
	}
}
