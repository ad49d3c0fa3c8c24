# `make help` lists what there is. demo, test, bench and the lab need root and
# install by themselves what they miss of the system (scripts/deps).

ifndef GO
GO := $(shell ./scripts/find-go)
endif
# What is exec'd below (tests run "go list" too) finds the same Go.
export PATH := $(if $(GO),$(patsubst %/,%,$(dir $(GO))):)$(PATH):/usr/sbin:/sbin

VERSION ?= $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo dev)

# GOARCH=arm64 makes programs and packages for other machines, and leaves the
# programs in bin/arm64. What is run on the way is this machine's.
ARCH := $(GOARCH)
unexport GOARCH
BIN := bin$(if $(ARCH),/$(ARCH))
ARM64 := CGO_ENABLED=0 GOARCH=arm64 $(GO)

BUILD := $(GO) build -trimpath -buildvcs=false
STAMP := -X main.version=$(VERSION)
TOOLS := $(CURDIR)/bin/tools

FAULT := $(GO) test -buildvcs=false -count=1 -timeout 0 -v ./test/fault -run

# Under sudo, what was built is handed to the user who will build again.
GIVE := if [ -n "$$SUDO_UID" ] && [ "$$(id -u)" = 0 ]; then for d in bin dist; do [ ! -e $$d ] || chown -R "$$SUDO_UID:$$SUDO_GID" $$d; done; fi

.DEFAULT_GOAL := build
.PHONY: help build tools demo test test-long test-fault test-soak test-mutants test-short test-arm64 fuzz lint man vulncheck bench bench-path bench-scale lab-up lab-down install packages clean go root

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-19s %s\n", $$1, $$2}'

build: go ## the four static programs, in bin/ (GOARCH=arm64: in bin/arm64/)
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(if $(ARCH),GOARCH=$(ARCH)) $(BUILD) -ldflags '-s -w $(STAMP)' -o $(BIN)/ ./plugins/tenure ./plugins/tenure-ipam
	CGO_ENABLED=0 $(if $(ARCH),GOARCH=$(ARCH)) $(BUILD) -ldflags '$(STAMP)' -o $(BIN)/ ./daemon/tenured ./daemon/tenurectl
	@$(GIVE)

tools: go $(TOOLS)/cnitool ## helpers of the lab: cnitool, reference plugins, an etcd; in bin/tools/
	CGO_ENABLED=0 $(BUILD) -ldflags '-s -w' -o $(TOOLS)/ ./test/lab/etcdd
	@$(GIVE)

demo: root ## a cluster of three, what goes wrong with it and how it holds (root)
	@./scripts/deps run
	@$(MAKE) --no-print-directory build tools
	$(GO) run -buildvcs=false ./test/demo

test: root ## all tests, with the race detector (root)
	@./scripts/deps test
	@$(MAKE) --no-print-directory build tools $(TOOLS)/nfpm
	CGO_ENABLED=1 $(GO) run -buildvcs=false ./scripts/gotest -race -timeout 25m -p 2 -parallel 8 ./...

test-long: root ## all tests, some of them at full length: hours (root)
	@./scripts/deps test
	@$(MAKE) --no-print-directory build tools $(TOOLS)/nfpm
	CGO_ENABLED=1 TENURE_LONG=1 $(GO) run -buildvcs=false ./scripts/gotest -race -timeout 8h -p 1 -parallel 8 ./...

test-fault: root ## faults by schedule: SEED= TIME= NODES= for one run, else those of CI (root)
	@./scripts/deps test
	@$(MAKE) --no-print-directory build tools
	TENURE_SEED=$(SEED) TENURE_TIME=$(TIME) TENURE_NODES=$(NODES) TENURE_SCHEDULE=$(SCHEDULE) $(FAULT) $(if $(SCHEDULE),TestNamed,TestFaults)

test-soak: root ## runs of faults with random seeds for TIME= (30m), then a table (root)
	@./scripts/deps test
	@$(MAKE) --no-print-directory build tools
	TENURE_SOAK=1 TENURE_TIME=$(TIME) $(FAULT) TestFaults

test-mutants: root ## break the product in each of many ways: the faults must show it (root)
	@./scripts/deps test
	@$(MAKE) --no-print-directory build tools
	TENURE_MUTANTS=$(or $(MUTANTS),all) $(FAULT) TestMutants

test-short: go ## the tests that need neither root nor a C compiler
	CGO_ENABLED=0 $(GO) test -short ./...

test-arm64: go ## programs and all tests for arm64, and those without root or etcd under qemu-user
	@./scripts/deps arm64
	@$(MAKE) --no-print-directory build GOARCH=arm64
	$(ARM64) vet ./...
	$(ARM64) test -short -vet=off -p 1 -exec qemu-aarch64-static -skip '^(TestBinary|TestItEndsWithAKilledDaemon)$$' ./conf/... ./daemon/api ./daemon/attach ./daemon/cnidir ./daemon/doctor ./daemon/fence ./daemon/hook ./daemon/node ./daemon/server ./plugins/...
	$(ARM64) test -short -vet=off -p 1 -exec qemu-aarch64-static -run '^Fuzz' ./daemon/dataplane ./daemon/lease ./ipam

fuzz: go ## every fuzz target for TIME (30s), one after the other
	$(GO) run -buildvcs=false ./scripts/fuzz -time $(or $(TIME),30s)

lint: $(TOOLS)/golangci-lint ## golangci-lint (its first build takes minutes)
	$(TOOLS)/golangci-lint run ./...

man: build ## the manual pages, in dist/man/
	@mkdir -p dist/man
	bin/tenurectl man dist/man
	@$(GIVE)

vulncheck: $(TOOLS)/govulncheck ## known vulnerabilities that the code calls (asks vuln.go.dev)
	$(TOOLS)/govulncheck ./...

bench: root ## Tenure beside the reference plugins: times, throughput, CPU (root)
	@./scripts/deps bench
	@$(MAKE) --no-print-directory build tools
	CGO_ENABLED=0 $(BUILD) -ldflags '-s -w' -o $(TOOLS)/ ./scripts/bench/delegating
	@$(GIVE)
	$(GO) run -buildvcs=false ./scripts/bench

bench-path: root ## packets beside paths made by hand: CPU, throughput, latency, connections (root; PATHS='-rounds 3 -volume 1' for less)
	@./scripts/deps bench
	@$(MAKE) --no-print-directory build tools
	$(GO) run -buildvcs=false ./scripts/bench -only paths $(PATHS)

bench-scale: root ## 1,000 and 5,000 nodes against one etcd, a daemon with 5,000 peers (root; SCALE='-nodes 200' for less)
	@./scripts/deps run
	@$(MAKE) --no-print-directory build tools
	$(GO) run -buildvcs=false ./scripts/bench -only starts,peers,fleet $(SCALE)

lab-up: root ## start a lab of three nodes and leave it running (root)
	@./scripts/deps run
	@$(MAKE) --no-print-directory build tools
	$(GO) run -buildvcs=false ./test/lab/labctl up

lab-down: root go ## remove every lab that lab-up left running (root)
	$(GO) run -buildvcs=false ./test/lab/labctl down

install: ## put bin/, the unit and a first configuration where a node wants them (DESTDIR, PREFIX, CNI_BIN, UNIT_DIR)
	./scripts/install

packages: build $(TOOLS)/nfpm ## deb and rpm, in dist/ (GOARCH=arm64: for such machines)
	@$(if $(ARCH),$(MAKE) --no-print-directory build GOARCH=)
	./scripts/packages dist $(VERSION) $(ARCH)
	@$(GIVE)

clean: ## remove what was built
	rm -rf bin dist

go:
	@if [ -z "$(GO)" ]; then echo "No Go found: not in PATH nor in the usual places. Say GO=/path/to/go." >&2; exit 1; fi

root: go
	@if [ "$$(id -u)" != 0 ]; then echo "This needs root, for network namespaces: sudo make $(MAKECMDGOALS)" >&2; exit 1; fi

# The tools are modules of their own, so that their graphs stay out of ours.
$(TOOLS)/cnitool: scripts/tools/cni/go.mod scripts/tools/cni/go.sum | go
	@mkdir -p $(TOOLS)
	cd scripts/tools/cni && CGO_ENABLED=0 $(BUILD) -ldflags '-s -w' -o $(TOOLS)/ tool
	@touch $@

$(TOOLS)/govulncheck: scripts/tools/vuln/go.mod scripts/tools/vuln/go.sum | go
	@mkdir -p $(TOOLS)
	cd scripts/tools/vuln && CGO_ENABLED=0 $(BUILD) -ldflags '-s -w' -o $(TOOLS)/ tool
	@$(GIVE)
	@touch $@

$(TOOLS)/nfpm: scripts/tools/pack/go.mod scripts/tools/pack/go.sum | go
	@mkdir -p $(TOOLS)
	cd scripts/tools/pack && CGO_ENABLED=0 $(BUILD) -ldflags '-s -w' -o $(TOOLS)/ tool
	@$(GIVE)
	@touch $@

$(TOOLS)/golangci-lint: scripts/tools/lint/go.mod scripts/tools/lint/go.sum | go
	@mkdir -p $(TOOLS)
	cd scripts/tools/lint && CGO_ENABLED=0 $(BUILD) -ldflags '-s -w' -o $(TOOLS)/ tool
	@$(GIVE)
	@touch $@
