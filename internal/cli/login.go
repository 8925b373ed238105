package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/types"
	"github.com/spf13/cobra"

	"berth/internal/admin"
)

// dockerHub is the registry of names without one, and hubKey what Docker calls it where it keeps credentials.
const (
	dockerHub = "docker.io"
	hubKey    = "https://index.docker.io/v1/"
)

// credentials is Docker's file of credentials, ~/.docker/config.json or that in DOCKER_CONFIG, with the programs that
// it names to keep them elsewhere.
func credentialFile() (*configfile.ConfigFile, error) {
	f, err := config.Load(config.Dir())
	if err != nil {
		return nil, fmt.Errorf("credentials of registries: %w", err)
	}
	return f, nil
}

// registryKey is the name under which credentials of a registry are kept.
func registryKey(registry string) string {
	registry = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(registry, "https://"), "http://"), "/")
	switch registry {
	case "", dockerHub, "index.docker.io", "index.docker.io/v1", "registry-1.docker.io":
		return hubKey
	}
	return registry
}

// withCredentials gives a pull what Docker's file has for its registry. One that cannot be read is said, and the pull
// goes on without.
func withCredentials(req *admin.PullRequest, warn io.Writer) {
	if req.Username != "" || req.Password != "" {
		return
	}
	f, err := credentialFile()
	var auth types.AuthConfig
	if err == nil {
		auth, err = f.GetAuthConfig(registryKey(registryOf(req.Reference)))
	}
	if err != nil {
		fmt.Fprintf(warn, "berth: %v; going on without credentials\n", err)
		return
	}
	req.Username, req.Password = auth.Username, auth.Password
	req.IdentityToken, req.RegistryToken = auth.IdentityToken, auth.RegistryToken
}

// registryOf is the registry of an image's name, as Docker tells it: the part before the first slash, where it looks
// like a host.
func registryOf(name string) string {
	host, _, found := strings.Cut(name, "/")
	if !found || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return dockerHub
	}
	return host
}

func loginCommand() *cobra.Command {
	var user, password string
	var fromStdin bool
	cmd := &cobra.Command{
		Use: "login [flags] [REGISTRY]", Short: "Store credentials of a registry for berth pull and berth run", Args: takes(0,
			1),
		DisableFlagsInUseLine: true,
		Long: "Store credentials of a registry, in Docker's file ~/.docker/config.json (or DOCKER_CONFIG), or " +
			"with the credential helper that the file names. berth pull and berth run read them from there, " +
			"also those that docker login has stored. They are not verified: the next pull shows whether the " +
			"registry accepts them. A kubelet has credentials of its own.",
		Example: examples("berth login registry.example", "berth login -u me --password-stdin registry.example <file"),
	}
	cmd.Flags().StringVarP(&user, "username", "u", "", "user `name`")
	cmd.Flags().StringVarP(&password, "password", "p", "", "`password`; others can see it in the list of processes")
	cmd.Flags().BoolVar(&fromStdin, "password-stdin", false, "read the password from standard input")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		key := registryKey(strings.Join(args, ""))
		if fromStdin && (password != "" || user == "") {
			return wrongUse(cmd, errors.New("--password-stdin needs --username, and no --password"))
		}
		user, password, err := askedUntil(cmd, user, password, fromStdin)
		if err != nil {
			return err
		}
		f, err := credentialFile()
		if err == nil {
			err = f.GetCredentialsStore(key).Store(types.AuthConfig{Username: user, Password: password, ServerAddress: key})
		}
		if err != nil {
			return fmt.Errorf("keep the credentials of %s: %w", key, err)
		}
		_, err = fmt.Fprintf(stdout(cmd), "kept for %s, not tried\n", key)
		return err
	}
	return cmd
}

// askedUntil is asked, until the command is interrupted. The terminal, which shows nothing while a password is typed,
// is then as it was before.
func askedUntil(cmd *cobra.Command, user, password string, fromStdin bool) (string, string, error) {
	terminal := &echo{fd: -1}
	if f := terminalOf(cmd.InOrStdin()); f != nil {
		terminal.fd = int(f.Fd())
	}
	type answer struct {
		user, password string
		err            error
	}
	answered := make(chan answer, 1)
	go func() {
		var a answer
		a.user, a.password, a.err = asked(cmd, terminal, user, password, fromStdin)
		answered <- a
	}()
	select {
	case a := <-answered:
		return a.user, a.password, a.err
	case <-cmd.Context().Done():
		terminal.giveBack()
		return "", "", errInterrupted
	}
}

// asked is what was said of user and password, and asked for where it was not: at a terminal, where there is one.
func asked(cmd *cobra.Command, terminal *echo, user, password string, fromStdin bool) (string, string, error) {
	in := bufio.NewReader(cmd.InOrStdin())
	if user != "" && password != "" {
		return user, password, nil
	}
	if terminal.fd < 0 && !fromStdin {
		return "", "", errors.New("there is no terminal to ask at: use --username and --password-stdin")
	}
	if user == "" {
		fmt.Fprint(stderr(cmd), "username: ")
		line, err := in.ReadString('\n')
		if user = strings.TrimSpace(line); user == "" {
			return "", "", errors.Join(errors.New("no username"), err)
		}
	}
	var data []byte
	var err error
	if fromStdin {
		data, err = io.ReadAll(io.LimitReader(in, mostPassword))
	} else if password == "" {
		if err := terminal.hide(); err != nil { // before it is asked for: what is typed then is the password
			return "", "", err
		}
		fmt.Fprint(stderr(cmd), "password: ")
		data, err = in.ReadBytes('\n')
		if terminal.show(); len(data) > 0 && errors.Is(err, io.EOF) {
			err = nil
		}
		fmt.Fprintln(stderr(cmd))
	}
	if password = strings.TrimRight(password+string(data), "\r\n"); password == "" && err == nil {
		err = errors.New("no password")
	}
	return user, password, err
}

// mostPassword is how much is read of a password; tokens of registries are some thousand bytes.
const mostPassword = 64 << 10

func logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logout [REGISTRY]", Short: "Remove the stored credentials of a registry", Args: takes(0, 1),
		Example: examples("berth logout registry.example"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key := registryKey(strings.Join(args, ""))
			f, err := credentialFile()
			if err == nil {
				err = f.GetCredentialsStore(key).Erase(key)
			}
			if err != nil {
				return fmt.Errorf("forget the credentials of %s: %w", key, err)
			}
			_, err = fmt.Fprintf(stdout(cmd), "there are no credentials for %s any more\n", key)
			return err
		},
	}
}
