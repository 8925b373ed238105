package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// standIn does what the programs do that the suite's images run, when it is called by one of their names.
func standIn(args []string) bool {
	name, _, _ := strings.Cut(args[0], ":")
	switch filepath.Base(name) {
	case "nginx", "httpd":
		serve(filepath.Base(name), args)
	case "pause":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
		<-stop
	case "sudo": // where the suite is root already
		path, err := exec.LookPath(args[1])
		if err == nil {
			err = syscall.Exec(path, args[1:], os.Environ())
		}
		log.Fatal(err)
	case "ipcmk":
		share(args[2])
	case "ipcs":
		segments()
	case "pgrep":
		find(args[1])
	case "nnp":
		fmt.Printf("Effective uid: %d\n", os.Geteuid())
	default:
		return false
	}
	return true
}

// serve answers HTTP and logs requests. As nginx it is called a master process, as httpd it says how it was called.
func serve(name string, args []string) {
	if name == "nginx" && args[0] == name {
		title := "nginx: master process " + strings.Join(args, " ")
		log.Fatal(syscall.Exec("/proc/self/exe", []string{title}, os.Environ()))
	}
	if err := os.WriteFile("/var/run/"+name+".pid", []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		log.Print(err)
	}
	if name == "httpd" {
		log.Printf("[core:notice] Command line: '%s'", strings.Join(args, " "))
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "80"
	}
	log.Fatal(http.ListenAndServe(":"+port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf("%s %s %s\n", r.RemoteAddr, r.Method, r.URL.Path)
		_, _ = fmt.Fprintln(w, "Welcome to "+name+"!")
	})))
}

// segments lists shared memory as `ipcs -m` does, as far as the suite reads it: the ids in the second column.
func segments() {
	data, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("key shmid perms size")
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n")[1:] {
		f := strings.Fields(line)
		fmt.Println(f[0], f[1], f[2], f[3])
	}
}

// find lists the processes of a name as pgrep does.
func find(name string) {
	paths, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range paths {
		if comm, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(comm)) == name {
			fmt.Println(filepath.Base(filepath.Dir(path)))
		}
	}
}

// share makes a shared memory segment of so many bytes, as `ipcmk -M` does, and leaves it.
func share(bytes string) {
	size, err := strconv.Atoi(bytes)
	if err != nil {
		log.Fatal(err)
	}
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, size, unix.IPC_CREAT|0o644)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("Shared memory id:", id)
}
