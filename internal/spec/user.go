package spec

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UserRequest is who a container is to run as.
type UserRequest struct {
	Image         string // the image's user: empty, name, uid, either with :group
	RunAsUser     *int64
	RunAsGroup    *int64
	RunAsUsername string
	Supplemental  []int64
	Strict        bool // the supplemental_groups_policy: no group just because the image's /etc/group says so
}

// RequestedUser reads the request out of the container and its image.
func RequestedUser(c *runtimeapi.ContainerConfig, image imagespec.ImageConfig) (UserRequest, error) {
	sc := c.GetLinux().GetSecurityContext()
	out := UserRequest{Image: image.User, RunAsUsername: sc.GetRunAsUsername(), Supplemental: sc.GetSupplementalGroups()}
	if v := sc.GetRunAsUser(); v != nil {
		out.RunAsUser = &v.Value
	}
	if v := sc.GetRunAsGroup(); v != nil {
		out.RunAsGroup = &v.Value
	}
	switch p := sc.GetSupplementalGroupsPolicy(); p {
	case runtimeapi.SupplementalGroupsPolicy_Merge:
	case runtimeapi.SupplementalGroupsPolicy_Strict:
		out.Strict = true
	default:
		return out, fmt.Errorf("supplemental_groups_policy %d is not one that CRI defines", p)
	}
	return out, nil
}

type account struct {
	name     string
	uid, gid uint32
	homeDir  string
}

type group struct {
	name    string
	gid     uint32
	members string // with commas between
}

func (g group) has(member string) bool {
	for m := range strings.SplitSeq(g.members, ",") {
		if m == member {
			return true
		}
	}
	return false
}

// ResolveUser finds out who that is, by the image's own /etc/passwd and /etc/group (nil where it has none). A uid that
// the image does not know is fine, a name is not. Without a group of its own, a uid has the group of its account, else
// 0.
func ResolveUser(passwd, groups []byte, want UserRequest) (User, error) {
	accounts, sets := parsePasswd(passwd), parseGroup(groups)
	user, groupName, err := findUser(accounts, want)
	if err != nil {
		return User{}, err
	}
	gid := user.gid
	if want.RunAsGroup != nil {
		groupName = strconv.FormatInt(*want.RunAsGroup, 10)
	}
	if groupName != "" {
		if gid, err = findGroup(sets, groupName); err != nil {
			return User{}, err
		}
	}
	out := User{UID: user.uid, GID: gid, Username: user.name, HomeDir: user.homeDir, AdditionalGids: []uint32{gid}}
	seen := map[uint32]bool{gid: true}
	add := func(gid uint32) {
		if !seen[gid] {
			seen[gid] = true
			out.AdditionalGids = append(out.AdditionalGids, gid)
		}
	}
	if !want.Strict && user.name != "" {
		for g := range sets {
			if g.has(user.name) {
				add(g.gid)
			}
		}
	}
	for _, id := range want.Supplemental {
		if !validID(id) {
			return User{}, fmt.Errorf("supplemental group %d: an id is 0 to %d", id, int64(math.MaxUint32-1))
		}
		add(uint32(id))
	}
	if n := len(out.AdditionalGids); n > maxGroups {
		return User{}, fmt.Errorf("the user is in %d groups, by the image's /etc/group and the request, more than the %d "+
			"that the kernel takes: leave some out, or set supplementalGroupsPolicy to Strict", n, maxGroups)
	}
	return out, nil
}

// maxGroups is NGROUPS_MAX.
const maxGroups = 65536

// findUser is the account, and the group that came with its name. The image's group counts only with the image's user.
func findUser(accounts iter.Seq[account], want UserRequest) (account, string, error) {
	name, groupName := want.RunAsUsername, ""
	switch {
	case want.RunAsUser != nil && name != "":
		return account{}, "", errors.New("run_as_user and run_as_username are both set: set one")
	case want.RunAsGroup != nil && want.RunAsUser == nil && name == "":
		return account{}, "", errors.New("run_as_group needs run_as_user or run_as_username")
	case want.RunAsUser != nil:
		name = strconv.FormatInt(*want.RunAsUser, 10)
	case name == "":
		name, groupName, _ = strings.Cut(want.Image, ":")
	}
	if name == "" {
		name = "0"
	}
	if want.RunAsUsername == "" {
		if id, err := strconv.ParseInt(name, 10, 64); err == nil {
			user, err := byUID(accounts, id)
			return user, groupName, err
		}
	}
	for a := range accounts {
		if a.name == name {
			return a, groupName, nil
		}
	}
	return account{}, "", fmt.Errorf("user %s is not in the image's /etc/passwd", name)
}

func byUID(accounts iter.Seq[account], id int64) (account, error) {
	if !validID(id) {
		return account{}, fmt.Errorf("user %d: an id is 0 to %d", id, int64(math.MaxUint32-1))
	}
	for a := range accounts {
		if int64(a.uid) == id {
			return a, nil
		}
	}
	return account{uid: uint32(id)}, nil
}

func findGroup(sets iter.Seq[group], name string) (uint32, error) {
	if id, err := strconv.ParseInt(name, 10, 64); err == nil {
		if !validID(id) {
			return 0, fmt.Errorf("group %d: an id is 0 to %d", id, int64(math.MaxUint32-1))
		}
		return uint32(id), nil
	}
	for g := range sets {
		if g.name == name {
			return g.gid, nil
		}
	}
	return 0, fmt.Errorf("group %s is not in the image's /etc/group", name)
}

// validID leaves out the highest number, which the kernel takes for "no id".
func validID(id int64) bool { return id >= 0 && id < math.MaxUint32 }

// parsePasswd skips lines that are no accounts: an image's files are not ours to judge. Nothing is kept: a file of some
// MiB has a million of them.
func parsePasswd(data []byte) iter.Seq[account] {
	return func(yield func(account) bool) {
		for line := range bytes.Lines(data) {
			f, ok := fields(line, 4)
			if !ok {
				continue
			}
			uid, err1 := strconv.ParseUint(f[2], 10, 32)
			gid, err2 := strconv.ParseUint(f[3], 10, 32)
			if err1 != nil || err2 != nil || !validID(int64(uid)) || !validID(int64(gid)) {
				continue
			}
			a := account{name: f[0], uid: uint32(uid), gid: uint32(gid)}
			if len(f) > 5 {
				a.homeDir = f[5]
			}
			if !yield(a) {
				return
			}
		}
	}
}

func parseGroup(data []byte) iter.Seq[group] {
	return func(yield func(group) bool) {
		for line := range bytes.Lines(data) {
			f, ok := fields(line, 3)
			if !ok {
				continue
			}
			gid, err := strconv.ParseUint(f[2], 10, 32)
			if err != nil || !validID(int64(gid)) {
				continue
			}
			g := group{name: f[0], gid: uint32(gid)}
			if len(f) > 3 {
				g.members = f[3]
			}
			if !yield(g) {
				return
			}
		}
	}
}

// fields are those of a line, of which there are to be at least so many, the first not empty. No file has more than
// seven.
func fields(line []byte, least int) (f []string, ok bool) {
	f = strings.SplitN(strings.TrimSpace(string(line)), ":", 8)
	return f, len(f) >= least && f[0] != ""
}
