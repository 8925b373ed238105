// Package bundle turns what is known of a pod (the record, its images, the node, the runtime handler) into what an OCI
// runtime is asked for, and makes on the host what that names: directories, mounts, files, namespaces, labels, limits.
//
// Builder has the inputs from the node as fields. Pod and its parts are what the containers of a pod share, Container
// is what one of them has, and Container.Request returns what the runtime is asked for. All of it is computed from the
// record each time, so that it can be made in a test without pods, and removed after a crash; nothing here has a lock,
// a goroutine that stays or a state of its own. The plans of package pod decide when and in which order.
//
// Read builder.go first, then pod.go and container.go, and request.go for the spec. What they use: images.go and
// volume.go (images, and those that are mounted), declared.go (directories that an image promises), staging.go and
// ids.go (mounts and files in user namespaces), files.go (what is below /etc), cgroup.go, handler.go, labels.go
// (SELinux), limits.go (storage, logs, /dev/shm).
package bundle
