package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"berth/test/fixture"
)

// Binaries returns the folder that holds berth and its programs, built from this working tree. With fault, they are the
// variants whose fault points work. BERTH_BIN names a folder to use as it is, and then nothing is built.
func Binaries(fault bool) (string, error) {
	if dir := os.Getenv("BERTH_BIN"); dir != "" {
		if fault {
			dir = filepath.Join(dir, "fault")
		}
		return dir, nil
	}
	if fault {
		return buildFault()
	}
	return buildNormal()
}

var (
	buildNormal = sync.OnceValues(func() (string, error) { return build("bin", "-tags=grpcnotrace") })
	buildFault  = sync.OnceValues(func() (string, error) { return build("bin/fault", "-tags=grpcnotrace,berth_fault") })
)

func build(dir string, flags ...string) (string, error) {
	out := filepath.Join(fixture.Repo(), dir)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	args := append([]string{"build", "-trimpath", "-o", out + "/"}, flags...)
	cmd := exec.Command("go", append(args, "./cmd/berth", "./cmd/berth-monitor", "./cmd/berth-unpack")...)
	cmd.Dir, cmd.Env = fixture.Repo(), append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build berth: %w\n%s", err, text)
	}
	return out, nil
}

// Unpacker returns the program berth-unpack, built from this working tree into a folder of its own for each user, or
// that in BERTH_BIN.
func Unpacker() (string, error) {
	if dir := os.Getenv("BERTH_BIN"); dir != "" {
		return filepath.Join(dir, "berth-unpack"), nil
	}
	out := filepath.Join(fixture.Repo(), "bin", "test")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out+"/", "./cmd/berth-unpack")
	cmd.Dir, cmd.Env = fixture.Repo(), append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build berth-unpack: %w\n%s", err, text)
	}
	return filepath.Join(out, "berth-unpack"), nil
}
