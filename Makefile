# Berth. `make help` lists what there is. Everything installs what it needs and says so.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin
export CGO_ENABLED ?= 0

# Without gRPC's page of traces, which nobody serves, the linker drops the methods that nobody calls: docs/adr/0077.
TAGS    := grpcnotrace
BUILD   := go build -trimpath -tags $(TAGS)
STAMP   := -X main.version=$(VERSION)
SUITE    = CGO_ENABLED=1 BERTH_BIN=$(CURDIR)/bin bin/suite

.PHONY: build fault demo test test-unit test-race test-compare test-e2e test-crash test-arm64 test-vm test-vm-all conformance conformance-smoke conformance-vm soak bench bench-pull bench-attacks bench-hostile install deb dist dist-check clean help
.DEFAULT_GOAL := build

build: ## bin/berth, bin/berth-monitor and bin/berth-unpack
	@mkdir -p bin
	$(BUILD) -ldflags "$(STAMP)" -o bin/berth ./cmd/berth
	$(BUILD) -ldflags "-s -w $(STAMP)" -o bin/berth-monitor ./cmd/berth-monitor
	$(BUILD) -ldflags "-s -w" -o bin/berth-unpack ./cmd/berth-unpack

fault: ## bin/fault/: the same with fault points, for crash tests
	@mkdir -p bin/fault
	$(BUILD),berth_fault -ldflags "$(STAMP)" -o bin/fault/berth ./cmd/berth
	$(BUILD),berth_fault -ldflags "-s -w $(STAMP)" -o bin/fault/berth-monitor ./cmd/berth-monitor
	$(BUILD),berth_fault -ldflags "-s -w" -o bin/fault/berth-unpack ./cmd/berth-unpack

bin/suite: FORCE # not trimmed: it finds the repository by where its source is
	@mkdir -p bin
	@go build -o $@ ./test/cmd/suite
FORCE:

demo: ## a pod lives, survives its daemon and dies, before your eyes (root, a minute)
	@hack/setup run
	@$(MAKE) --no-print-directory build
	@BERTH_BIN=$(CURDIR)/bin go run ./demo

test: ## everything (root, half an hour on 2 cores)
	@hack/setup test
	@hack/setup images
	@$(MAKE) --no-print-directory build fault bin/suite
	@$(SUITE)

test-unit: ## the fast loop: vet, format, staticcheck and unit tests (root, under 90 s on 2 cores when all is built)
	@hack/setup test
	@$(MAKE) --no-print-directory build bin/suite
	@CGO_ENABLED=0 BERTH_BIN=$(CURDIR)/bin bin/suite -race=false vet format staticcheck unit

test-race: ## unit tests with the race detector, as make test has them (root, minutes)
	@hack/setup test
	@$(MAKE) --no-print-directory build bin/suite
	@$(SUITE) unit

test-compare: ## unpacked images, file by file against umoci and GNU tar
	@hack/setup test
	@hack/setup images
	@$(MAKE) --no-print-directory build bin/suite
	@$(SUITE) compare

test-e2e: ## end to end, with runc and crun
	@hack/setup test
	@$(MAKE) --no-print-directory build fault bin/suite
	@$(SUITE) e2e

test-crash: ## kill the daemon at every fault point, once
	@hack/setup test
	@$(MAKE) --no-print-directory build fault bin/suite
	@$(SUITE) crash

test-arm64: ## unit tests as programs of arm64, emulated by QEMU one by one (root, minutes)
	@hack/setup arm64
	@$(MAKE) --no-print-directory bin/suite
	@CGO_ENABLED=0 bin/suite arm64

test-vm: ## in a virtual machine with systemd, cgroup v2 and AppArmor (root, Debian's mirror, long without KVM)
	@hack/setup vm
	@$(MAKE) --no-print-directory build fault bin/suite
	@$(SUITE) vm vm-node

test-vm-all: ## the same with everything (hours without KVM)
	@hack/setup vm
	@hack/setup conformance
	@hack/setup dist
	@hack/setup peers
	@$(MAKE) --no-print-directory build fault bin/suite
	@$(SUITE) dist vm-packages vm-crun vm-runc vm-cgroupfs vm-crash vm-chaos vm-selinux vm-oldest vm-earlier vm-node vm-move vm-conformance

conformance-smoke: ## some sixty of Kubernetes' node tests, with both runtimes beside each other (root, five minutes when all is built)
	@hack/setup conformance
	@$(MAKE) --no-print-directory build bin/suite
	@$(SUITE) conformance-smoke

conformance-vm: ## some of Kubernetes' node tests in a virtual machine, on the package, with systemd and cgroup v2 (root, long without KVM)
	@hack/setup vm
	@hack/setup conformance
	@$(MAKE) --no-print-directory build bin/suite
	@$(SUITE) vm-conformance

conformance: ## all of Kubernetes' node tests that can run here, with both runtimes, into docs/conformance.md (root, hours)
	@hack/setup conformance
	@$(MAKE) --no-print-directory build bin/suite
	@$(SUITE) conformance

soak: ## kill it at every point, in every scenario, at every occurrence (long)
	@hack/setup test
	@$(MAKE) --no-print-directory build fault bin/suite
	@$(SUITE) soak

bench: ## side by side with containerd
	@hack/setup test
	@hack/setup peers
	@$(MAKE) --no-print-directory build
	@bench/run

bench-pull: ## pulls of images side by side with containerd
	@hack/setup test
	@hack/setup peers
	@$(MAKE) --no-print-directory build
	@bench/pull

bench-attacks: ## hostile images and registries, side by side with containerd
	@hack/setup test
	@hack/setup peers
	@$(MAKE) --no-print-directory build
	@bench/attacks

bench-hostile: ## hostile containers beside good pods, and containerd with the same
	@hack/setup test
	@hack/setup peers
	@$(MAKE) --no-print-directory build
	@bench/hostile

install: build ## Berth, its unit, manual and completions below PREFIX (/usr/local)
	@VERSION='$(VERSION)' PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' packaging/install

deb: build ## bin/berth_<version>_<architecture>.deb
	@VERSION='$(VERSION)' packaging/deb

dist: ## bin/dist: tarballs and packages for amd64 and arm64, with SBOMs and digests
	@hack/setup dist
	@VERSION='$(VERSION)' packaging/dist

dist-check: ## two releases of one commit, made in two places, are equal (minutes)
	@hack/setup dist
	@$(MAKE) --no-print-directory bin/suite
	@$(SUITE) dist

clean: ## remove what was built
	rm -rf bin

help: ## this list
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 14
