package image

import "testing"

// TestCompareWhiteoutsThroughSymlinks has a layer hide and bring the same name, by the directory's own path and through
// a symlink of a lower layer, in either order: a whiteout never removes what its own layer brings.
func TestCompareWhiteoutsThroughSymlinks(t *testing.T) {
	low := []entry{
		aDir("usr", 0o755), aDir("usr/bin", 0o755), aDir("usr/lib", 0o755), aFile("usr/bin/x", "low"),
		aDir("usr/lib/foo", 0o711), aFile("usr/lib/foo/old", "low"), aSymlink("bin", "usr/bin"), aSymlink("lib", "usr/lib"),
		aSymlink("one", "two"), aSymlink("two", "usr/lib"),
	}
	var cases []comparison
	add := addTo(t, &cases)
	both := func(name string, bring, hide []entry, shows map[string]string, differs ...string) {
		first := (len(differs) + 2) / 4 * 2 // the pairs of the first case, half of them or the only one
		add(name+", hidden last", layers{low, append(append([]entry{}, bring...), hide...)}, shows, differs[:first]...)
		add(name+", hidden first", layers{low, append(append([]entry{}, hide...), bring...)}, shows, differs[first:]...)
	}
	emptied := []string{`"usr/lib/foo": mtime 2020-09-13`, "umoci sets the time of the directory before it empties it"}
	unknown := []string{
		`"usr/lib/foo": mode 0755, and 0711`,
		"whether the directory or its whiteout came first is not known when both paths turn out to be one",
		`"usr/lib/foo": mtime 1970-01-01T00:00:00Z`, untimed, // hidden last; and hidden first:
		`"usr/lib": mtime 2020-09-13`,
		"umoci takes the directory away and makes it anew, which changes the time of the one that it is in",
		`"usr/lib/foo": mtime 1970-01-01T00:00:00Z`, untimed,
	}
	mine := map[string]string{"usr/bin/x": "file mine"}
	both("a file, and its whiteout through a symlink",
		[]entry{aFile("usr/bin/x", "mine")}, []entry{aFile("bin/.wh.x", "")}, mine)
	both("a file through a symlink, and its whiteout",
		[]entry{aFile("bin/x", "mine")}, []entry{aFile("usr/bin/.wh.x", "")}, mine)
	both("a file, and two whiteouts",
		[]entry{aFile("bin/x", "mine")}, []entry{aFile("usr/bin/.wh.x", ""), aFile("bin/.wh.x", "")}, mine)
	both("a hard link through a symlink, and its whiteout", []entry{aFile("new", "mine"), aLink("bin/x", "new")},
		[]entry{aFile("usr/bin/.wh.x", "")}, mine)
	both("a link to a lower file, and its whiteout through a symlink", []entry{aLink("usr/bin/y", "usr/lib/foo/old")},
		[]entry{aFile("bin/.wh.y", "")}, map[string]string{"usr/bin/y": "file low"})
	both("a link to a lower file through a symlink, and its whiteout", []entry{aLink("bin/y", "lib/foo/old")},
		[]entry{aFile("usr/bin/.wh.y", "")}, map[string]string{"usr/bin/y": "file low"})
	foo := map[string]string{"usr/lib/foo/a": "file mine", "usr/lib/foo/old": "nothing"}
	both("a directory, and its whiteout through a symlink",
		[]entry{aDir("usr/lib/foo", 0o750), aFile("usr/lib/foo/a", "mine")},
		[]entry{aFile("lib/.wh.foo", "")}, foo, emptied...)
	both("a directory, and its whiteout through two symlinks",
		[]entry{aDir("usr/lib/foo", 0o750), aFile("usr/lib/foo/a", "mine")},
		[]entry{aFile("one/.wh.foo", "")}, foo, emptied...)
	both("a directory through a symlink, and its whiteout", []entry{aDir("lib/foo", 0o750), aFile("lib/foo/a", "mine")},
		[]entry{aFile("usr/lib/.wh.foo", "")}, foo, emptied...)
	both("a directory in both spellings, and its whiteout",
		[]entry{aDir("lib/foo", 0o750), aFile("usr/lib/foo/a", "mine")},
		[]entry{aFile("lib/.wh.foo", "")}, foo, emptied...)
	both("a directory that no entry describes, and its whiteout through a symlink",
		[]entry{aFile("usr/lib/foo/a", "mine")},
		[]entry{aFile("lib/.wh.foo", "")}, foo, unknown...)
	both("a directory that no entry describes, through a symlink, and its whiteout", []entry{aFile("lib/foo/a", "mine")},
		[]entry{aFile("usr/lib/.wh.foo", "")}, foo, unknown...)
	both("a file, and the opaque mark through a symlink", []entry{aFile("usr/lib/foo/a", "mine")},
		[]entry{aFile("lib/foo/.wh..wh..opq", "")}, foo)
	both("a file through a symlink, and the opaque mark", []entry{aFile("lib/foo/a", "mine")},
		[]entry{aFile("usr/lib/foo/.wh..wh..opq", "")}, foo)
	both("the opaque mark of what the symlink leads to",
		[]entry{aFile("usr/lib/own", "mine")}, []entry{aFile("lib/.wh..wh..opq", "")},
		map[string]string{"usr/lib/own": "file mine", "usr/lib/foo": "nothing"})
	add("a whiteout through a symlink, in a directory that is described",
		layers{low, {aDir("usr/lib", 0o700), aFile("lib/.wh.foo", "")}},
		map[string]string{"usr/lib/foo": "nothing"})
	add("a directory described through a symlink", layers{low, {aDir("lib/foo", 0o700), aFile("usr/lib/foo/a", "mine")}},
		map[string]string{"usr/lib/foo/a": "file mine", "usr/lib/foo/old": "file low"})
	add("a directory through a symlink, over a whiteout",
		layers{low, {aFile("usr/lib/.wh.foo", ""), aFile("lib/foo/a", "mine")}}, foo,
		unknown[len(unknown)/2:]...)
	for i := range cases {
		cases[i].keepLinks = true
	}
	compareAll(t, cases)
}
