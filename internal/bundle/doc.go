// Package bundle turns what is known of a pod (the record, its images, the node, the runtime handler) into what an OCI
// runtime is asked for, and makes on the host what that names: directories, mounts, files, namespaces, labels, limits.
//
// Builder is the node's part of it, with its inputs as fields. Pod makes and unmakes what the containers of a pod
// share, Container what one of them has, and Container.Request returns what the runtime is asked for. All are computed
// from the record each time, so that they can be made in a test without pods, and unmade after a crash; nothing here
// has a lock, a goroutine that stays or a state of its own. When and in which order it is done, and undone, is the
// plan's of package pod.
//
// Read builder.go first, then pod.go and container.go, and request.go for the spec. What they use: images.go and
// volume.go (images, and those that are mounted), declared.go (directories that an image promises), staging.go and
// ids.go (mounts and files in user namespaces), files.go (what is below /etc), cgroup.go, handler.go, labels.go
// (SELinux), limits.go (storage, logs, /dev/shm).
package bundle
