package main

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"berth/internal/admin"
	"berth/internal/callers"
	"berth/internal/config"
	"berth/internal/fail"
	"berth/test/timeouts"
)

// TestWithoutSecrets has credentials in the forms in which texts of plugins, runtimes and registries hold them.
func TestWithoutSecrets(t *testing.T) {
	for _, text := range []string{
		"GET https://me:hunter2@registry.example/v2/", "Authorization: Bearer hunter2.abc", `{"auth_token": "hunter2 x"}`,
		"PASSWORD=hunter2", "--api-key hunter2=1 api_key: hunter2", "get https://x.example/a?X-Sig=hunter2&b=c: 403",
		"basic aHVudGVyMg==hunter2",
		"client_secret='hunter2 x'", "X-Registry-Authorization: hunter2",
	} {
		if got := withoutSecrets(text); strings.Contains(strings.Replace(got, "--api-key hunter2", "", 1), "hunter2") {
			t.Errorf("%s became %s", text, got)
		}
	}
	const harmless = "pod: undo step network: plugin bridge: exit code 1: no route to 10.0.0.1:53 (https://x.example/v2/a)"
	if got := withoutSecrets(harmless); got != harmless {
		t.Errorf("got %s", got)
	}
}

// waitsWith has arguments that may be secrets, as words of the stack.
//
//go:noinline
func waitsWith(key [2]uint64, began, end chan struct{}) uint64 {
	close(began)
	<-end
	return key[0] ^ key[1]
}

// TestGoroutinesWithoutArguments has a goroutine wait in a call that was given a secret number.
func TestGoroutinesWithoutArguments(t *testing.T) {
	began, end := make(chan struct{}), make(chan struct{})
	done := make(chan uint64)
	go func() { done <- waitsWith([2]uint64{0xfeedfacecafe, 0x5ec2e7}, began, end) }()
	<-began
	var text bytes.Buffer
	err := writeGoroutines(&text)
	close(end)
	<-done
	if err != nil {
		t.Fatal(err)
	}
	if got := text.String(); !strings.Contains(got, "berth.waitsWith(...)") || strings.Contains(got, "feedfacecafe") {
		t.Errorf("got %s", got)
	}
	if args := regexp.MustCompile(`(?m)^[^\t\n]+\((?:0x|\{)[^\n]*$`).FindString(text.String()); args != "" {
		t.Errorf("arguments are left: %s", args)
	}
}

func TestOnlyRoot(t *testing.T) {
	nobody := &net.UnixAddr{}
	for _, addr := range []net.Addr{nil, nobody, callers.Address{Addr: nobody, UID: 1000}, callers.Address{Addr: nobody}} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: addr})
		if err := (debugger{}).Debug(ctx, admin.DebugVersion, nil); !fail.Is(err, errdefs.ErrPermissionDenied) {
			t.Errorf("%v: %v", addr, err)
		}
	}
}

// TestDebugBeforeTheDaemonIsReady asks a daemon that is starting, over its real listener and interceptors.
func TestDebugBeforeTheDaemonIsReady(t *testing.T) {
	cfg := config.Default()
	n := newNode(cfg)
	listener, err := listenTo(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	unary, stream := n.interceptors(func() bool { return false })
	g := grpc.NewServer(grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))
	admin.RegisterDebug(g, newDebugger(n))
	go func() { _ = g.Serve(n.callers.Listener(listener)) }()
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("unix:"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, ends := map[string]string{}, map[string]error{}
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(time.Minute))
	defer cancel()
	parts := append(admin.DebugParts(), "nothing")
	err = admin.Debug(ctx, conn, parts, func(part string, data []byte, end bool, err error) error {
		got[part] += string(data)
		if end {
			ends[part] = err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range admin.DebugParts() {
		switch part {
		case admin.DebugSituations, admin.DebugHost, admin.DebugProblems, admin.DebugLimits:
			if err := ends[part]; err == nil || !strings.Contains(err.Error(), "starting") {
				t.Errorf("%s: %v", part, err)
			}
		default:
			if ends[part] != nil || got[part] == "" {
				t.Errorf("%s: %q, %v", part, got[part], ends[part])
			}
		}
	}
	if ends["nothing"] == nil {
		t.Error("a part that there is not was told")
	}
	if err := admin.NewClient(conn).Check(ctx, &admin.CheckRequest{}, nil); err == nil {
		t.Error("another call was answered")
	}
}
