package remote

import (
	"os"
	"path/filepath"

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
	entries, _ := os.ReadDir(dir) // the library tells of an error
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".crt", ".cert", ".key":
			paths = append(paths, e.Name())
		}
	}
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if err := limit.CheckFile(path, limit.LibraryFile); err != nil {
			return err
		}
	}
	return nil
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
