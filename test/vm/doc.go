// Package vm boots a whole node as a virtual machine (systemd, cgroup v2, AppArmor, a kernel of its own) and runs tests
// in it, which a development machine without these cannot show.
//
// The image is built once from Debian's packages and kept in a cache; a machine never changes it. Berth and the
// compiled tests come on a second disk, and what the tests say leaves through a serial port, line by line. Software
// emulation is enough: it takes a minute to boot.
package vm
