// Package wire is what a daemon and a monitor say to each other: the types of the messages, nothing else.
//
// A message is one packet of a unix SOCK_SEQPACKET socket holding one JSON object, with descriptors beside it
// (SCM_RIGHTS). docs/monitor-protocol.md describes the conversation. Fields are only ever added; what a side does not
// know it passes over.
package wire

// Version is the newest version of the protocol that this release speaks, and Oldest the oldest. A daemon speaks the
// monitor's version, as long as it lies between.
const (
	Version = 1
	Oldest  = 1
)

// MaxMessage bounds a message, in bytes.
const MaxMessage = 160 << 10

// MaxFDs bounds the descriptors beside a message.
const MaxFDs = 4

// Owed is the directory, in a pod's run directory, of what is owed to the logs of containers that are deleted: for each
// a directory with its journal and its bundle.
const Owed = "owed"

// What a daemon asks for.
const (
	Hello   = "hello"    // who are you, what do you hold; with Subscribe, exits are told from now on
	Create  = "create"   // run the runtime's create
	Start   = "start"    // open the log, run the runtime's start
	Signal  = "signal"   // send a signal to the container's first process
	KillAll = "kill-all" // SIGKILL everything in the container's cgroup
	Exec    = "exec"     // run a process in the container; descriptors: stdin, stdout, stderr
	Session = "session"  // exec for a client that may go away; a terminal's master goes to the socket Console
	Drain   = "drain"    // read descriptors, and throw away what comes until nothing holds their other ends
	// copy output to descriptors: stdout, stderr, and one that gets a byte when the client is dropped
	Attach     = "attach"
	Console    = "console"     // answers with the terminal's master
	CloseStdin = "close-stdin" // let the container see the end of its input
	ReopenLog  = "reopen-log"  // begin a new file at the log's path
	Forget     = "forget"      // the container is deleted
	// to a monitor that takes over; descriptors: a pidfd, and the terminal's master if there is one
	Inherit  = "inherit"
	Cancel   = "cancel"   // the request Cancels is not waited for any more
	Shutdown = "shutdown" // end, when no container lives
)

// Request is what a daemon sends.
type Request struct {
	ID        uint64 `json:"id"`
	Op        string `json:"op"`
	Container string `json:"ctr,omitempty"`
	Timeout   int64  `json:"timeout,omitempty"` // milliseconds; of create, start, exec and session

	Version   int     `json:"version,omitempty"` // hello: the daemon's
	Subscribe bool    `json:"subscribe,omitempty"`
	Create    *Bundle `json:"create,omitempty"`
	Log       *Log    `json:"log,omitempty"`
	Signal    int     `json:"signal,omitempty"`
	// exec, session: a file with the OCI process, in the container's directory
	Process string `json:"process,omitempty"`
	// session with a terminal: a socket in that directory, on which the daemon listens
	Console string `json:"console,omitempty"`
	Cancels uint64 `json:"cancels,omitempty"`
}

// Bundle says how the container's runtime is called. The monitor keeps it beside the container, for the one that may
// have to take over.
type Bundle struct {
	Runtime   string   `json:"runtime"`        // the program
	Args      []string `json:"args,omitempty"` // before the command, such as --root
	Terminal  bool     `json:"tty,omitempty"`
	Stdin     bool     `json:"stdin,omitempty"`
	StdinOnce bool     `json:"stdinOnce,omitempty"`
	Cgroups   []string `json:"cgroups,omitempty"` // the directories of its own cgroup, in all hierarchies
	Log       *Log     `json:"log,omitempty"`     // once it is started
	Started   int64    `json:"started,omitempty"` // nanoseconds since 1970
	// Init identifies what the process executes until it is let go, while it is being started.
	Init string `json:"init,omitempty"`
	// Owner is whom the standard streams are given to: those of a process in a user namespace.
	Owner *Owner `json:"owner,omitempty"`
	// StdinClosed says that the container has been let see the end of its input.
	StdinClosed bool `json:"stdinClosed,omitempty"`
	// Sandbox is the container whose process the runtime named for this one too, which has none of its own.
	Sandbox string `json:"sandbox,omitempty"`
	// Tracked is where on the tracking hierarchy the process was before it was started. It may move further down since.
	Tracked string `json:"tracked,omitempty"`
}

// Owner is a user and a group of the host.
type Owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Log is a file below a directory, and what may be written to it: Rate bytes a second, and Burst at once. A Rate of 0
// is no limit.
type Log struct {
	Dir   string `json:"dir"`
	Path  string `json:"path"`
	Rate  int64  `json:"rate,omitempty"`
	Burst int64  `json:"burst,omitempty"`
}

// Dropped is what a container has written that is not in its log, because of the log's rate, since the container began.
type Dropped struct {
	Lines int64 `json:"lines"`
	Bytes int64 `json:"bytes"`
}

// Process is a process that cannot be mistaken for another.
type Process struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start"` // clock ticks after boot, /proc/<pid>/stat
}

// Exit is how a container ended. It is also what the exit file holds.
type Exit struct {
	Process
	Code       int32 `json:"code"` // 128+n for a process that signal n ended
	Signal     int   `json:"signal,omitempty"`
	OOMKilled  bool  `json:"oom,omitempty"`
	StartedAt  int64 `json:"startedAt,omitempty"` // nanoseconds since 1970
	FinishedAt int64 `json:"finishedAt"`
	Unknown    bool  `json:"unknown,omitempty"` // no process saw how
	// Draining says that the output may not have been read to its end. Such an exit is not told yet.
	Draining bool `json:"draining,omitempty"`
}

// The states of a container, as a monitor knows them.
const (
	Created = "created"
	Running = "running"
	Exited  = "exited"
)

// Container is one entry of an inventory.
type Container struct {
	ID        string  `json:"id"`
	State     string  `json:"state"`
	Process   Process `json:"process"`
	Terminal  bool    `json:"tty,omitempty"`
	StdinOnce bool    `json:"stdinOnce,omitempty"` // it has an input that is meant for one client, and has not been closed
	Started   int64   `json:"started,omitempty"`
	Exit      *Exit   `json:"exit,omitempty"`
	// Dropped is nil where nothing was.
	Dropped *Dropped `json:"dropped,omitempty"`
}

// Reply is what a monitor sends: the answer to the request ID, or, with ID 0, an exit or what was dropped of a log.
type Reply struct {
	ID    uint64 `json:"id,omitempty"`
	Error string `json:"error,omitempty"`
	// Errno is what the kernel said, where the error comes from it, and Path the file that it said it of.
	Errno int    `json:"errno,omitempty"`
	Path  string `json:"path,omitempty"`

	Version    int         `json:"version,omitempty"` // hello
	PID        int         `json:"pid,omitempty"`
	Containers []Container `json:"containers,omitempty"`
	Process    *Process    `json:"process,omitempty"` // create
	Code       int         `json:"code,omitempty"`    // exec, session
	TimedOut   bool        `json:"timedOut,omitempty"`
	Full       bool        `json:"full,omitempty"` // drain: not all are read; the others are closed

	Container string   `json:"ctr,omitempty"` // what follows is of
	Exit      *Exit    `json:"exit,omitempty"`
	Dropped   *Dropped `json:"dropped,omitempty"`
}
