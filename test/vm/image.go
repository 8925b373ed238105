package vm

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Image is what a machine boots from. Its files are never written to.
type Image struct {
	Disk   string // an ext4 file system with the node's root
	Kernel string
	Initrd string
	Append string // more of the kernel's command line
}

// suite is the release of Debian that runs in the machine, from debootstrap's own mirror.
const suite = "trixie"

// packages are what the image holds beyond debootstrap's minbase.
const packages = "systemd,systemd-sysv,dbus,udev,kmod,procps,iproute2,iptables,nftables,e2fsprogs,xfsprogs," +
	"crun,runc,criu,containernetworking-plugins,apparmor,docker-registry,busybox-static," +
	"apache2-utils,umoci,ca-certificates"

// kernelPackage is that of the release's own kernel.
const kernelPackage = ",linux-image-" + runtime.GOARCH

// diskSize is that of the root disk. The file is sparse.
const diskSize = "8G"

// furnish makes the node out of what debootstrap unpacked.
//
//go:embed furnish.sh
var furnish []byte

// furnishSELinux labels what furnish has left.
//
//go:embed furnish-selinux.sh
var furnishSELinux []byte

// furnishKernel installs the kernel of the release kernel_from in what furnish has left.
//
//go:embed furnish-kernel.sh
var furnishKernel []byte

// recipe is what an image is made from.
type recipe struct {
	packages string
	furnish  []byte
	append   string // see Image
}

var (
	usual = recipe{packages + kernelPackage, furnish, ""}
	// withSELinux is a node whose kernel has SELinux in the place of AppArmor, a policy, and labels on all its files.
	withSELinux = recipe{"selinux-policy-default,policycoreutils,selinux-utils," + packages + kernelPackage,
		slices.Concat(furnish, furnishSELinux), "security=selinux selinux=1"}
	// onOldest is a node whose kernel is the oldest that Berth runs on: Linux 5.10.
	onOldest = withKernelFrom("bullseye")
	// onEarlier is a node with the kernel of the release of Debian before this one: Linux 6.1.
	onEarlier = withKernelFrom("bookworm")
)

// withKernelFrom is a node with the kernel of an earlier release of Debian.
func withKernelFrom(release string) recipe {
	script := slices.Concat(furnish, []byte("\nkernel_from="+release), furnishKernel)
	return recipe{packages + ",initramfs-tools", script, ""}
}

// CacheDir is where images are kept between runs: BERTH_TEST_CACHE, or berth-test in the user's cache.
func CacheDir() (string, error) {
	if dir := os.Getenv("BERTH_TEST_CACHE"); dir != "" {
		return dir, nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for the image of the virtual machine: %w; set BERTH_TEST_CACHE", err)
	}
	return filepath.Join(base, "berth-test"), nil
}

// Prepare returns the image, and builds it when the cache has none for this recipe. That takes root, Debian's mirror,
// two minutes and a gigabyte. Several may call it at once. say hears what takes time.
func Prepare(say func(string)) (Image, error) { return usual.prepare(say) }

// PrepareSELinux is Prepare for an image whose kernel has SELinux, not AppArmor.
func PrepareSELinux(say func(string)) (Image, error) { return withSELinux.prepare(say) }

// PrepareOldest is Prepare for an image with the oldest kernel that Berth runs on.
func PrepareOldest(say func(string)) (Image, error) { return onOldest.prepare(say) }

// PrepareEarlier is Prepare for an image with the kernel of the release of Debian before the machine's own.
func PrepareEarlier(say func(string)) (Image, error) { return onEarlier.prepare(say) }

func (r recipe) prepare(say func(string)) (Image, error) {
	cache, err := CacheDir()
	if err != nil {
		return Image{}, err
	}
	dir := filepath.Join(cache, "vm-"+r.name())
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Image{}, err
	}
	unlock, err := lock(dir + ".lock")
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if img, err := r.found(dir); err == nil {
		return img, nil
	}
	say("building the image of the virtual machine with debootstrap, once, in " + dir)
	if err := r.build(dir); err != nil {
		return Image{}, fmt.Errorf("build the image of the virtual machine, which takes debootstrap, e2fsprogs and a "+
			"Debian mirror that can be reached: %w", err)
	}
	return r.found(dir)
}

// name names an image by all that it is made from.
func (r recipe) name() string {
	sum := sha256.Sum256([]byte(suite + r.packages + diskSize + string(r.furnish)))
	return hex.EncodeToString(sum[:])[:12]
}

func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func (r recipe) found(dir string) (Image, error) {
	img := Image{Disk: filepath.Join(dir, "root.img"), Kernel: filepath.Join(dir, "vmlinuz"),
		Initrd: filepath.Join(dir, "initrd.img"), Append: r.append}
	for _, path := range []string{img.Disk, img.Kernel, img.Initrd} {
		if _, err := os.Stat(path); err != nil {
			return Image{}, err
		}
	}
	return img, nil
}

// build makes dir, which appears only when it is whole.
func (r recipe) build(dir string) (err error) {
	work := dir + ".new"
	root := filepath.Join(work, "root")
	if err := errors.Join(os.RemoveAll(work), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(work))
		}
	}()
	if err := run("debootstrap", "--variant=minbase", "--include="+r.packages, suite, root); err != nil {
		return err
	}
	script := filepath.Join(root, "furnish")
	if err := os.WriteFile(script, r.furnish, 0o755); err != nil {
		return err
	}
	if err := errors.Join(run("chroot", root, "/furnish"), os.Remove(script)); err != nil {
		return err
	}
	if err := takeKernel(root, work); err != nil {
		return err
	}
	disk := filepath.Join(work, "root.img")
	if err := run("mke2fs", "-q", "-t", "ext4", "-L", "node", "-d", root, "-F", disk, diskSize); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(root), os.Rename(work, dir))
}

// takeKernel moves what QEMU is given directly out of the root.
func takeKernel(root, to string) error {
	for _, name := range []string{"vmlinuz", "initrd.img"} {
		found, err := filepath.Glob(filepath.Join(root, "boot", name+"-*"))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("the new root has %d files boot/%s-*, not one", len(found), name)
		}
		if err := os.Rename(found[0], filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

func run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, tail(out.String(), 20))
	}
	return nil
}
