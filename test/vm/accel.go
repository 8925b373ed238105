package vm

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"sync"
	"time"
)

// An accelerator is a way in which the machine's processor is had.
type accelerator struct {
	name  string
	flags []string
	scale int // how many times longer than on the host things may take
}

var (
	hardware  = accelerator{"kvm", []string{"-accel", "kvm", "-cpu", "host"}, 2}
	emulation = accelerator{"tcg", []string{"-accel", "tcg,thread=multi", "-cpu", "max"}, 10}
)

// probeTimeout is how long a kernel may take to reach its first process with hardware's help, which is a second or two.
const probeTimeout = 20 * time.Second

var probed struct {
	once sync.Once
	is   accelerator
}

// accelerate chooses. That there is a /dev/kvm says little: in a virtual machine it may fail at an instruction, or
// hang. So a kernel is started with it and has a deadline.
func accelerate(img Image) accelerator {
	probed.once.Do(func() {
		probed.is = emulation
		if _, err := os.Stat("/dev/kvm"); err == nil && works(hardware, img) {
			probed.is = hardware
		}
	})
	return probed.is
}

func works(a accelerator, img Image) bool {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	args := append([]string{"-machine", "q35", "-m", "512", "-nographic", "-no-reboot", "-monitor", "none", "-nic", "none",
		"-serial", "stdio",
		"-kernel", img.Kernel, "-initrd", img.Initrd, "-append", "console=ttyS0 panic=-1 rdinit=/probe"}, a.flags...)
	out, _ := exec.CommandContext(ctx, program(), args...).CombinedOutput()
	return bytes.Contains(out, []byte("Kernel panic")) // there is no /probe, so the kernel came to its end
}
