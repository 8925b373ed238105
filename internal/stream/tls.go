package stream

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// keyPair is a certificate with its key, read again when the files change.
type keyPair struct {
	cert, key string
	log       *slog.Logger

	mu       sync.Mutex // guards what follows
	loaded   *tls.Certificate
	stamp    [2]time.Time // of the files of loaded
	reported string       // why they cannot be used now, as the log has it; "" where they can
}

// get returns the certificate for a new connection. Files that are no pair, as they are while they are being replaced,
// leave the one before in use.
func (p *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stamp, err := modified(p.cert, p.key)
	if err == nil && p.loaded != nil && stamp == p.stamp {
		p.reported = ""
		return p.loaded, nil
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.LoadX509KeyPair(p.cert, p.key)
	}
	if err == nil {
		p.loaded, p.stamp, p.reported = &pair, stamp, ""
		return p.loaded, nil
	}
	err = fmt.Errorf("load the certificate %s with the key %s: %w", p.cert, p.key, err)
	if p.loaded == nil {
		return nil, err
	}
	if p.reported != err.Error() {
		p.reported = err.Error()
		p.log.Warn("the certificate of the streaming server changed and cannot be used; the one before is", "error", err)
	}
	return p.loaded, nil
}

func modified(paths ...string) (at [2]time.Time, err error) {
	for i, path := range paths {
		st, err := os.Stat(path)
		if err != nil {
			return at, err
		}
		at[i] = st.ModTime()
	}
	return at, nil
}
