package limit

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
)

func TestCheck(t *testing.T) {
	for _, b := range []Budget{ImageLayers.At(3), ImageLayers} { // at its limit, and without one
		if err := b.Check(3); err != nil {
			t.Errorf("%+v: %v", b, err)
		}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{ImageLayers.At(3).Check(4),
			"layers of an image: 4, more than the 3 allowed: raise images.max_layers"},
		{LayerBytes.At(10).Exceeded(),
			LayerBytes.Name + ": more than the 10 bytes allowed: make the layer smaller or raise images.max_layer_bytes"},
		{ZstdWindow.Check(1 << 30), "window of a zstd stream: 1073741824 bytes, more than the 134217728 bytes allowed"},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("%v, want %q", c.err, c.want)
		}
		if !fail.Is(c.err, errdefs.ErrResourceExhausted) {
			t.Errorf("%v is of the kind %s", c.err, fail.KindOf(c.err).Name)
		}
	}
	err := LayerEntries.At(7).Check(9)
	var reached *Error
	if !errors.As(err, &reached) || reached.Budget.Used != 9 || reached.Budget.Limit != 7 {
		t.Errorf("%+v", reached)
	}
	want := fail.Detail{Limit: LayerEntries.Name, Key: "images.max_layer_entries",
		Remedy: "make fewer in one layer or raise images.max_layer_entries"}
	if got := fail.Details(err); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
