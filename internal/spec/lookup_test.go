package spec

import (
	"reflect"
	"strings"
	"testing"
)

const testPasswd = "root:x:0:0:root:/root:/bin/sh\n# comment\n+::::::\nbad:x:-1:0::/:\ntoo:x:1:4294967295::/:\n" +
	"app:x:1000:1000::/home/app:/bin/sh\n42:x:77:77::/odd:\nbare:x:5:6\n"
const testGroup = "root:x:0:\nwheel:x:10:root,app\napp:x:1000:\nbroken\nvideo:x:44:app\r\n"

func id(v int64) *int64 { return &v }

func TestResolveUser(t *testing.T) {
	app := User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1000, 10, 44}, Username: "app", HomeDir: "/home/app"}
	for name, c := range map[string]struct {
		want UserRequest
		user User
	}{
		"nothing asked":    {UserRequest{}, User{AdditionalGids: []uint32{0, 10}, Username: "root", HomeDir: "/root"}},
		"image name":       {UserRequest{Image: "app"}, app},
		"image uid":        {UserRequest{Image: "1000"}, app},
		"image name:group": {UserRequest{Image: "app:video"}, User{1000, 44, []uint32{44, 10}, "app", "/home/app"}},
		"image uid:gid":    {UserRequest{Image: "9:8"}, User{9, 8, []uint32{8}, "", ""}},
		"image :group":     {UserRequest{Image: ":8"}, User{0, 8, []uint32{8, 10}, "root", "/root"}},
		"unknown uid":      {UserRequest{RunAsUser: id(9)}, User{9, 0, []uint32{0}, "", ""}},
		"uid over image":   {UserRequest{Image: "app:video", RunAsUser: id(5)}, User{5, 6, []uint32{6}, "bare", ""}},
		"uid and group": {UserRequest{RunAsUser: id(1000), RunAsGroup: id(3)},
			User{1000, 3, []uint32{3, 10, 44}, "app", "/home/app"}},
		"name":                {UserRequest{RunAsUsername: "app"}, app},
		"name that is digits": {UserRequest{RunAsUsername: "42"}, User{77, 77, []uint32{77}, "42", "/odd"}},
		"supplemental": {UserRequest{Image: "app", Supplemental: []int64{44, 7}},
			User{1000, 1000, []uint32{1000, 10, 44, 7}, "app", "/home/app"}},
		"strict": {UserRequest{Image: "app", Supplemental: []int64{7}, Strict: true},
			User{1000, 1000, []uint32{1000, 7}, "app", "/home/app"}},
	} {
		got, err := ResolveUser([]byte(testPasswd), []byte(testGroup), c.want)
		if err != nil || !reflect.DeepEqual(got, c.user) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, c.user)
		}
	}
	if got, err := ResolveUser(nil, nil, UserRequest{Image: "1000:50"}); err != nil || got.UID != 1000 || got.GID != 50 {
		t.Errorf("numbers in an image without /etc/passwd: %+v, %v", got, err)
	}
}

func TestResolveUserRefuses(t *testing.T) {
	for want, req := range map[string]UserRequest{
		"user nobody is not in the image's /etc/passwd": {Image: "nobody"},
		"user 1000 is not in the image's /etc/passwd":   {RunAsUsername: "1000"},
		"user bad is not":                  {RunAsUsername: "bad"},
		"group none is not in the image's": {Image: "app:none"},
		"run_as_group needs":               {RunAsGroup: id(1)},
		"are both set":                     {RunAsUser: id(1), RunAsUsername: "app"},
		"user -1":                          {RunAsUser: id(-1)},
		"user 4294967295":                  {RunAsUser: id(4294967295)},
		"group 4294967296":                 {RunAsUser: id(1), RunAsGroup: id(4294967296)},
		"supplemental group -5":            {Supplemental: []int64{-5}},
	} {
		if got, err := ResolveUser([]byte(testPasswd), []byte(testGroup), req); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %+v, %v, want %q", req, got, err, want)
		}
	}
}

func TestCheckSysctls(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward": "", "net/ipv4/conf/eth0.1/mtu": "", "net.ipv4.conf.eth0/1.mtu": "", "kernel.shmmax": "",
		"kernel.shm_rmid_forced": "", "kernel.sem": "", "kernel.msgmax": "", "fs.mqueue.msg_max": "", "kernel.domainname": "",
		"kernel.hostname": "hostname field", "kernel.panic": "the node's", "vm.swappiness": "the node's",
		"fs.file-max":   "the node's",
		"kernel.shmfoo": "the node's", "net": "two parts", "net..x": "not one a sysctl",
		"net/../kernel/panic": "not one a sysctl",
		"net.//x":             "", "net./.": "not one a sysctl", "net.a b": "not one a sysctl", "": "two parts",
		"netx.y": "the node's", "net.ipv4.": "not one",
	} {
		err := CheckSysctls(map[string]string{name: "1"}, true, true, true)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
	for name, kind := range map[string]string{"net.core.somaxconn": "network", "kernel.sem": "IPC",
		"fs.mqueue.msg_max": "IPC", "kernel.domainname": "UTS"} {
		if err := CheckSysctls(map[string]string{name: "1"}, false, false, false); err == nil ||
			!strings.Contains(err.Error(), "node's "+kind+" namespace") {
			t.Errorf("%q on the node's namespaces: %v", name, err)
		}
	}
	if err := CheckSysctls(map[string]string{"net.a.b": "1\n2"}, true, true, true); err == nil {
		t.Error("a value of two lines was allowed")
	}
	for name, want := range map[string]string{"net.ipv4.conf.eth0/1.mtu": "net/ipv4/conf/eth0.1/mtu",
		"net/ipv4/conf/eth0.1/mtu": "net/ipv4/conf/eth0.1/mtu"} {
		if got, err := SysctlPath(name); got != want || err != nil {
			t.Errorf("path of %q: %q, %v", name, got, err)
		}
	}
}

func TestParseSeccomp(t *testing.T) {
	for profile, want := range map[string]string{
		`{"defaultAction":"SCMP_ACT_ALLOW"}`: "",
		`{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,"defaultErrno":"ENOSYS","syscalls":[]}`:                     "",
		`{"defaultAction":"SCMP_ACT_LOG","syscalls":[{"names":["a"],"action":"SCMP_ACT_ALLOW","args":null,"comment":"c"}]}`: "",
		``:                                    "EOF",
		`not json`:                            "invalid character",
		`[]`:                                  "cannot unmarshal",
		`{}`:                                  `defaultAction "" is not known`,
		`{"defaultAction":"ALLOW"}`:           `defaultAction "ALLOW"`,
		`{"defaultAction":"SCMP_ACT_ALLOW"}x`: "after its closing brace",
		`{"defaultAction":"SCMP_ACT_ALLOW","sycalls":[]}`:                                                                                            "sycalls",
		`{"defaultAction":"SCMP_ACT_ALLOW","defaultErrnoRet":1}`:                                                                                     "has an errno",
		`{"defaultAction":"SCMP_ACT_ERRNO","defaultErrno":"EPERM"}`:                                                                                  "without its number",
		`{"defaultAction":"SCMP_ACT_ALLOW","architectures":["x86"]}`:                                                                                 `architecture "x86"`,
		`{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86"],"archMap":[{"architecture":"SCMP_ARCH_X86"}]}`:                          "both given",
		`{"defaultAction":"SCMP_ACT_ALLOW","flags":["X"]}`:                                                                                           `flag "X"`,
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"action":"SCMP_ACT_KILL"}]}`:                                                                 "names no system call",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":[""],"action":"SCMP_ACT_KILL"}]}`:                                                    "has no name",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"name":"b","action":"SCMP_ACT_KILL"}]}`:                                        "both given",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"KILL"}]}`:                                                            `action "KILL"`,
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_NOTIFY"}]}`:                                                 "listenerPath",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_KILL","args":[{"index":6,"value":1,"op":"SCMP_CMP_EQ"}]}]}`: "0 to 5",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_KILL","args":[{"index":0,"value":1,"op":"=="}]}]}`:          "0 to 5",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_KILL","includes":{"minKernel":"x"}}]}`:                      `minKernel "x"`,
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_KILL","includes":{"minKernel":"5.1.2"}}]}`:                  `minKernel "5.1.2"`,
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_KILL","includes":{"minKernel":5.1}}]}`:                      "cannot unmarshal number",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_KILL","includes":{"minKernel":""}}]}`:                       "",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_KILL","excludes":{"capz":["x"]}}]}`:                         "capz",
	} {
		_, err := ParseSeccomp([]byte(profile))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", profile, err, want)
		}
	}
}
