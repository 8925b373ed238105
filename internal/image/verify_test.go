package image

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// judge is a Verifier whose verdict a test sets.
type judge struct {
	mu      sync.Mutex // guards what follows
	verdict error
	asked   []string // name and digest

	question Question // the last one
}

func (j *judge) Verify(_ context.Context, q Question) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked = append(j.asked, q.Name+" "+q.Descriptor.Digest.String())
	j.question = q
	return j.verdict
}

func (j *judge) Confirm(ctx context.Context, q Question) error { return j.Verify(ctx, q) }

func (j *judge) decide(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.verdict = err
}

func (j *judge) last() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.asked) == 0 {
		return ""
	}
	return j.asked[len(j.asked)-1]
}

// TestVerifierStandsBeforeAnyFetch refuses an image that is not here, and one that is.
func TestVerifierStandsBeforeAnyFetch(t *testing.T) {
	host := startRegistry(t, "")
	built := imageOf(t, gz(t, file("a", "1")))
	push(t, host+"/signed:v1", built)
	want, err := built.Digest()
	if err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, host, func(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) })
	j := &judge{verdict: errors.New(`verifier "cosign" refuses it: no signature`)}
	s := open(t, t.TempDir(), func(c *Config) { c.Verifier = j })
	ref := p.host + "/signed:v1"
	text := want.String() + `: verifier "cosign" refuses it: no signature`
	refused(t, s, PullRequest{Reference: ref}, crierrors.ErrSignatureValidationFailed, text)
	if got := p.blobGets(); len(got) > 0 {
		t.Errorf("fetched %v of a refused image", got)
	}
	if j.last() != ref+" "+want.String() {
		t.Errorf("asked about %q", j.last())
	}
	j.decide(nil)
	img := pull(t, s, ref)
	j.decide(errors.New("revoked"))
	refused(t, s, PullRequest{Reference: ref}, crierrors.ErrSignatureValidationFailed, "revoked")
	_, err = s.Pull(t.Context(), PullRequest{Reference: p.host + "/signed@" + want.String()})
	if kindOf(err) != crierrors.ErrSignatureValidationFailed || !strings.HasPrefix(err.Error(),
		"pull image "+p.host+"/signed@") {
		t.Errorf("by digest: %v", err)
	}
	if got, ok := s.Get(ref); !ok || got.ID != img.ID {
		t.Error("a refusal took what was here")
	}
}

// TestVerifierAndCaller has a caller whose time is up while the verifier thinks: that is no refusal.
func TestVerifierAndCaller(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/signed:v1", imageOf(t, gz(t, file("a", "1"))))
	ctx, cancel := context.WithCancel(t.Context())
	s := open(t, t.TempDir(), func(c *Config) { c.Verifier = thinking(cancel) })
	if _, err := s.Pull(ctx, PullRequest{Reference: host + "/signed:v1"}); kindOf(err) != context.Canceled {
		t.Errorf("got %v", err)
	}
}

// thinking is a Verifier that goes on until its caller gives up.
type thinking func()

func (giveUp thinking) Verify(ctx context.Context, _ Question) error {
	giveUp()
	<-ctx.Done()
	return context.Cause(ctx)
}

func (giveUp thinking) Confirm(ctx context.Context, q Question) error { return giveUp.Verify(ctx, q) }

// TestImportIsNotVerified has an archive that somebody brought by hand: there is no registry's name to ask about.
func TestImportIsNotVerified(t *testing.T) {
	j := &judge{verdict: errors.New("no")}
	s := open(t, t.TempDir(), func(c *Config) { c.Verifier = j })
	archive := ociTar(t, map[string]v1.Image{"registry.example/x:v1": imageOf(t, gz(t, file("a", "1")))})
	if imgs, err := s.Import(t.Context(), strings.NewReader(string(archive)), nil); err != nil || len(imgs) != 1 ||
		j.last() != "" {
		t.Errorf("%v, %v, asked %q", imgs, err, j.last())
	}
}

// TestConfirmAsksWhatThePullAsked wants the verifier to be told of an image that is here what the pull has told it, by
// the name that the user has written and with the namespace; of an image from an archive it is told nothing.
func TestConfirmAsksWhatThePullAsked(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/signed:v1", imageOf(t, gz(t, file("a", "1"))))
	j := &judge{}
	dir := t.TempDir()
	s := open(t, dir, func(c *Config) { c.Verifier = j })
	img := pull(t, s, host+"/signed:v1")
	atPull := j.question
	if atPull.Descriptor.Size == 0 || atPull.Descriptor.MediaType == "" {
		t.Fatalf("at the pull it is asked about %+v", atPull)
	}
	s.Close()
	s = open(t, dir, func(c *Config) { c.Verifier = j }) // what it knows is in the record
	img, release, err := s.Use(img.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{host + "/signed:v1", img.ID}, host + "/signed:v1"},
		{[]string{"", img.ID}, img.RepoDigests[0]},
		{[]string{host + "/signed:v2"}, img.RepoDigests[0]}, // not what it is called
		{[]string{"example.org/other:v1", host + "/signed:v1"}, host + "/signed:v1"},
	} {
		if err := Confirm(t.Context(), s, img, "shop", c.names...); err != nil {
			t.Error(err)
		}
		got, want := j.question, atPull
		want.Name, want.Namespace = c.want, "shop"
		if got.Name != want.Name || got.Namespace != want.Namespace || got.Descriptor.Digest != want.Descriptor.Digest ||
			got.Descriptor.Size != want.Descriptor.Size || got.Descriptor.MediaType != want.Descriptor.MediaType {
			t.Errorf("%q: asked about %+v, wanted %+v", c.names, got, want)
		}
	}
	j.decide(errors.New("revoked"))
	if err := Confirm(t.Context(), s, img, "shop"); !errors.Is(err, crierrors.ErrSignatureValidationFailed) {
		t.Errorf("got %v", err)
	}
	archive := ociTar(t, map[string]v1.Image{"registry.example/x:v1": imageOf(t, gz(t, file("b", "1")))})
	imported, err := s.Import(t.Context(), strings.NewReader(string(archive)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := Confirm(t.Context(), s, imported[0], "shop", "registry.example/x:v1"); err != nil {
		t.Errorf("an image from an archive: %v", err)
	}
}
