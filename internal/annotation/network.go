package annotation

import (
	"errors"
	"net"
	"net/netip"
	"strings"

	"berth/internal/quantity"
)

// Ingress is how many bits a second a pod may receive; 0 is any number.
func Ingress(all map[string]string) (uint64, error) { return bandwidth(all, KeyIngress) }

// Egress is how many bits a second a pod may send; 0 is any number.
func Egress(all map[string]string) (uint64, error) { return bandwidth(all, KeyEgress) }

// errBandwidth refuses what Kubernetes does not allow.
var errBandwidth = errors.New("a bandwidth must be from 1k to 1P bits a second")

func bandwidth(all map[string]string, key string) (uint64, error) {
	value := all[key]
	if value == "" {
		return 0, nil
	}
	bits, err := quantity.Parse(value)
	if err == nil && (bits < 1e3 || bits > 1e15) {
		err = errBandwidth
	}
	if err != nil {
		return 0, invalid(key, value, err)
	}
	return bits, nil
}

// IPs are the addresses, each with or without a length of its network, that a pod asks for.
func IPs(all map[string]string) (ips []string, err error) {
	value := all[KeyIPs]
	if value == "" {
		return nil, nil
	}
	for s := range strings.SplitSeq(value, ",") {
		s = strings.TrimSpace(s)
		if _, err := netip.ParsePrefix(s); err != nil {
			if _, err := netip.ParseAddr(s); err != nil {
				return nil, invalid(KeyIPs, value, err)
			}
		}
		ips = append(ips, s)
	}
	return ips, nil
}

// MAC is the hardware address that a pod asks for, "" for none.
func MAC(all map[string]string) (string, error) {
	value := all[KeyMAC]
	if value == "" {
		return "", nil
	}
	if _, err := net.ParseMAC(value); err != nil {
		return "", invalid(KeyMAC, value, err)
	}
	return value, nil
}

// InfinibandGUID is what the plugins of an InfiniBand network take as it is, "" for none.
func InfinibandGUID(all map[string]string) string { return all[KeyInfiniband] }
