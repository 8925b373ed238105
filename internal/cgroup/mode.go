package cgroup

import "path/filepath"

const root = "/sys/fs/cgroup"

var unified = filepath.Join(root, "unified")
