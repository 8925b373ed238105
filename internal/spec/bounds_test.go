package spec

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestManyVariables sets as many variables as fit into an environment, each twice: looking through all of them for each
// would take half an hour.
func TestManyVariables(t *testing.T) {
	const n = 400_000
	in := Input{Pod: &runtimeapi.PodSandboxConfig{}, Container: &runtimeapi.ContainerConfig{}}
	b := &build{base: (*Base)(nil).spec(), Input: in}
	for _, value := range []string{"1", "2"} {
		for i := range n {
			b.Image.Env = append(b.Image.Env, fmt.Sprintf("%x=%s", i, value))
		}
	}
	env, err := b.environment()
	if err != nil || len(env) != n+3 || env[2] != "0=2" {
		t.Errorf("%d variables, %v", len(env), err)
	}
}

// TestArgumentBounds refuses what no process can have, before a container is made that never starts.
func TestArgumentBounds(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for words, args := range map[string][]string{
		"":                      {"a", long},
		"more than the 131071":  {"a", long + long},
		"more than the 6291456": strings.SplitAfter(strings.Repeat(long+",", 63), ","),
	} {
		err := checkArguments(args, []string{"A=B"})
		if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", words, err)
		}
	}
	b := &build{base: (*Base)(nil).spec(), Input: Input{
		Pod: &runtimeapi.PodSandboxConfig{}, Container: &runtimeapi.ContainerConfig{},
		Image: imagespec.ImageConfig{Cmd: []string{"x", long + long}},
	}}
	if err := b.process(); err == nil || !strings.Contains(err.Error(), "make it shorter") {
		t.Error(err)
	}
}

// TestManyGroups has an image whose /etc/group puts the user into more groups than the kernel takes, and just as many.
func TestManyGroups(t *testing.T) {
	groups := func(n int) []byte {
		var g bytes.Buffer
		for i := range n {
			fmt.Fprintf(&g, "g::%d:r\n", i+1)
		}
		return g.Bytes()
	}
	passwd := []byte("r::0:0\n")
	u, err := ResolveUser(passwd, groups(maxGroups-1), UserRequest{Image: "r"})
	if err != nil || len(u.AdditionalGids) != maxGroups {
		t.Errorf("%d groups, %v", len(u.AdditionalGids), err)
	}
	_, err = ResolveUser(passwd, groups(700_000), UserRequest{Image: "r"})
	if err == nil || !strings.Contains(err.Error(), "700001 groups") {
		t.Error(err)
	}
	u, err = ResolveUser(passwd, groups(700_000), UserRequest{Image: "r", Strict: true})
	if err != nil || len(u.AdditionalGids) != 1 {
		t.Errorf("%d groups, %v", len(u.AdditionalGids), err)
	}
}
