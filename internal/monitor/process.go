package monitor

// process is a container's first process, as the monitor reaches it: native where it is a process of this host,
// sandboxed where the runtime alone reaches it. All of it may be called at once, and after the end of the process, when
// there is nothing left to do.
type process interface {
	// signal sends a signal to the process. One that has ended needs none.
	signal(sig int) error
	// kill kills everything that is in the container.
	kill() error
	// startStreams are descriptors that the runtime's start is given; the caller closes them, also when that fails.
	startStreams() (files [3]int, err error)
	// started is told once that the process was let go.
	started()
	// execArgs are what the runtime is told of an exec, whose pid in a sandbox goes to the file inside; nil where an exec
	// is a process of this host.
	execArgs(inside string) []string
	// endExec kills what is left of such an exec.
	endExec(inside string)
	// takeOver takes up a process that another monitor has left, whose end no monitor has seen, and returns what begins
	// then. It is called once, first. The error says what this monitor lacks for that.
	takeOver() (begin func(), err error)
	// inherit takes what the daemon has held of the container while no monitor was there, and closes what is not needed.
	inherit(fds []int) error
	// close lets go of what is held of the process.
	close()
}

var (
	_ process = (*native)(nil)
	_ process = (*sandboxed)(nil)
)
