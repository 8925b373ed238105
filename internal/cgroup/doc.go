// Package cgroup makes, reads, kills and removes control groups, on cgroup v1, hybrid and v2 hosts.
//
// A Group is a tracking group: a directory of a cgroup2 hierarchy without controllers, into which processes are born
// (SysProcAttr.CgroupFD) so that none of their descendants is ever lost. It can be killed, seen empty and removed.
//
// A Usage is what a control group uses: a dozen small files, read when asked, with no walk and next to no garbage.
//
// The package uses the standard library without os/exec and net, and golang.org/x/sys/unix, because each monitor
// carries it.
package cgroup
