package remote

import (
	"io/fs"
	"path/filepath"
	"slices"

	toml "github.com/pelletier/go-toml/v2"

	"berth/internal/limit"
)

// certificateKeys name the certificates of one host: a path, several, or pairs of them.
type certificateKeys struct {
	CA     any `toml:"ca"`
	Client any `toml:"client"`
}

// checkCertificates refuses certificates that the library must not open: it reads all that the hosts.toml of a
// directory names and all that Docker's layout has, and would wait for the writer of a FIFO for ever.
func checkCertificates(dir string, hostsTOML []byte) error {
	var named struct {
		certificateKeys
		Hosts map[string]certificateKeys `toml:"host"`
	}
	if err := toml.Unmarshal(hostsTOML, &named); err != nil {
		return err
	}
	paths := append(texts(named.CA), texts(named.Client)...)
	for _, keys := range named.Hosts {
		paths = append(append(paths, texts(keys.CA)...), texts(keys.Client)...)
	}
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if err := limit.CheckFile(path, limit.LibraryFile); err != nil {
			return err
		}
	}
	certificate := func(e fs.DirEntry) bool {
		return slices.Contains([]string{".crt", ".cert", ".key"}, filepath.Ext(e.Name()))
	}
	return limit.CheckFiles(dir, certificate, limit.LibraryFile)
}

// texts are all texts in a value of a TOML file, however deep.
func texts(value any) (all []string) {
	switch v := value.(type) {
	case string:
		all = append(all, v)
	case []any:
		for _, one := range v {
			all = append(all, texts(one)...)
		}
	}
	return all
}
