package annotation

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/fail"
)

// TestValues reads each annotation: as it is written, left out, and with values that are refused. The limits of roots
// and logs, whose bounds a handler gives, are in the tests of those who compose them.
func TestValues(t *testing.T) {
	bounds := Bounds{Usual: 100, Least: 10, UsualKey: "usual", MostKey: "most"}
	open := bounds
	open.Most = 1 << 62
	type asks = map[string]string
	for name, c := range map[string]struct {
		asks asks
		get  func(asks) (any, error)
		want any    // with no error
		says string // in the error
	}{
		"no size of /dev/shm":        {nil, shm(7, 0), int64(7), ""},
		"a size":                     {asks{KeyShmSize: "1Mi"}, shm(7, 0), int64(1 << 20), ""},
		"CRI-O's size":               {asks{keyCRIOShmSize: "1Ki"}, shm(7, 0), int64(1 << 10), ""},
		"both sizes":                 {asks{keyCRIOShmSize: "1Ki", KeyShmSize: "1Mi"}, shm(7, 0), int64(1 << 20), ""},
		"a size of nothing":          {asks{KeyShmSize: "0"}, shm(7, 0), nil, "from 1 byte to 8 EiB"},
		"a size as large as allowed": {asks{KeyShmSize: "2Ki"}, shm(7, 2048), int64(2048), ""},
		"a size that is too large":   {asks{keyCRIOShmSize: "2049"}, shm(7, 2048), nil, "2048 bytes that max_shm_size"},
		"a size that is none":        {asks{KeyShmSize: "much"}, shm(7, 0), nil, "not a quantity"},

		"no limit asked for":       {nil, bytes(bounds), uint64(100), ""},
		"a limit":                  {asks{KeyStorageBytes: "50"}, bytes(bounds), uint64(50), ""},
		"an empty limit":           {asks{KeyStorageBytes: ""}, bytes(bounds), nil, "not a quantity"},
		"more than usual":          {asks{KeyStorageBytes: "101"}, bytes(bounds), nil, "than the 100 that usual allows"},
		"more than what is most":   {asks{KeyStorageBytes: "5E"}, bytes(open), nil, "that most allows"},
		"too little":               {asks{KeyStorageBytes: "9"}, bytes(bounds), nil, "at least 10"},
		"the limit of one log":     {asks{KeyLogRate: "20", KeyLogRateOf + "a": "30"}, rate("a", bounds), uint64(30), ""},
		"the limit of all logs":    {asks{KeyLogRate: "20", KeyLogRateOf + "a": "30"}, rate("b", bounds), uint64(20), ""},
		"a container with no name": {asks{KeyLogRate: "20", KeyLogRateOf: "30"}, rate("", bounds), uint64(20), ""},

		"a bandwidth":                {asks{KeyIngress: "1.5M"}, in, uint64(1_500_000), ""},
		"an empty bandwidth":         {asks{KeyIngress: ""}, in, uint64(0), ""},
		"a bandwidth that is little": {asks{KeyEgress: "10"}, out, nil, "from 1k to 1P"},
		"addresses": {asks{KeyIPs: "10.9.8.7, fd00::7/64"},
			func(a asks) (any, error) { return IPs(a) }, []string{"10.9.8.7", "fd00::7/64"}, ""},
		"an address that is none": {asks{KeyIPs: "10.9.8.7,"}, func(a asks) (any, error) { return IPs(a) }, nil, "IP"},
		"removed":                 {asks{KeyRemove: "true"}, remove, AtEnd, ""},
		"not removed":             {asks{KeyRemove: "false"}, remove, Stays, ""},
		"removed later":           {asks{KeyRemove: "later"}, remove, Later, ""},
		"nothing of a removal":    {nil, remove, Stays, ""},
		"no word for it":          {asks{KeyRemove: "1"}, remove, nil, "there is true, later and false"},
		"a hardware address":      {asks{KeyMAC: "02:00:00:00:00:01"}, mac, "02:00:00:00:00:01", ""},
		"one that is none":        {asks{KeyMAC: "zz"}, mac, nil, "annotation " + KeyMAC + `: "zz": `},
		"directories in memory":   {asks{KeyTmpfs: `["/a", "/b:size=1m"]`}, tmpfs, []string{"/a", "/b:size=1m"}, ""},
		"no list of them":         {asks{KeyTmpfs: "/a"}, tmpfs, nil, "annotation " + KeyTmpfs},
		"no directories":          {nil, tmpfs, []string(nil), ""},
		"limits": {asks{KeyUlimits: `[{"type":"RLIMIT_CORE","soft":1,"hard":2}]`}, ulimits,
			[]specs.POSIXRlimit{{Type: "RLIMIT_CORE", Soft: 1, Hard: 2}}, ""},
		"a limit that is none": {asks{KeyUlimits: `[{"type":"core"}]`}, ulimits, nil, "RLIMIT_NOFILE"},
		"no restart":           {nil, restart, Restart{When: Never}, ""},
		"a restart":            {asks{KeyRestart: "always"}, restart, Restart{When: Always}, ""},
		"some restarts":        {asks{KeyRestart: "on-failure:3"}, restart, Restart{When: OnFailure, Most: 3}, ""},
		"none at all":          {asks{KeyRestart: "on-failure:0"}, restart, nil, "on-failure:TIMES"},
		"always so often":      {asks{KeyRestart: "always:3"}, restart, nil, "on-failure:TIMES"},
		"an empty restart":     {asks{KeyRestart: ""}, restart, nil, "unless-stopped"},
		"how often":            {asks{KeyRestarts: "7"}, func(a asks) (any, error) { return Restarts(a), nil }, 7, ""},
		"how often, in words":  {asks{KeyRestarts: "seven"}, func(a asks) (any, error) { return Restarts(a), nil }, 0, ""},
		"devices": {asks{KeyDevices + "b": "v/c=1", KeyDevices + "a": "v/c=2,v/c=3", "other": "v/c=4"},
			func(a asks) (any, error) { return Devices(a), nil }, []string{"v/c=2", "v/c=3", "v/c=1"}, ""},
	} {
		got, err := c.get(c.asks)
		switch {
		case c.says == "" && (err != nil || !reflect.DeepEqual(got, c.want)):
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		case c.says != "" && (!fail.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v, want %q in it", name, err, c.says)
		}
	}
	if err := invalid("k", "v", errBandwidth); !errors.Is(err, errBandwidth) {
		t.Errorf("the cause is lost: %v", err)
	}
}

func shm(usual, most int64) func(map[string]string) (any, error) {
	return func(a map[string]string) (any, error) { return ShmSize(a, usual, most) }
}

func bytes(b Bounds) func(map[string]string) (any, error) {
	return func(a map[string]string) (any, error) { return StorageBytes(a, b) }
}

func rate(container string, b Bounds) func(map[string]string) (any, error) {
	return func(a map[string]string) (any, error) { return LogRate(a, container, b) }
}

func restart(a map[string]string) (any, error) { return RestartPolicy(a) }

func in(a map[string]string) (any, error)      { return Ingress(a) }
func out(a map[string]string) (any, error)     { return Egress(a) }
func tmpfs(a map[string]string) (any, error)   { return Tmpfs(a) }
func ulimits(a map[string]string) (any, error) { return Ulimits(a) }
func mac(a map[string]string) (any, error)     { return MAC(a) }
func remove(a map[string]string) (any, error)  { return Remove(a) }

// TestLogContainers finds the containers that have annotations of their own, each once.
func TestLogContainers(t *testing.T) {
	got := LogContainers(map[string]string{
		KeyLogRateOf + "b": "1", KeyLogBurstOf + "b": "1", KeyLogBurstOf + "a": "1", KeyLogRate: "1", "x": "1",
	})
	if !reflect.DeepEqual(got, []string{"a", "b"}) {
		t.Errorf("got %q", got)
	}
}
