# SPDX-License-Identifier: Apache-2.0 OR MIT
# Every target is a line or two that also works by hand.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
# Where rustup puts cargo, for shells that were started before it was there.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

CARGO ?= cargo
BIFOLD = $${CARGO_TARGET_DIR:-target}/release/bifold
LAB = $${CARGO_TARGET_DIR:-target}/release/lab
TIMING = $${CARGO_TARGET_DIR:-target}/release/timing
REPORT ?= bifold-report.html
CHART ?= bifold-chart.svg
# Series of kernels for the laboratory.
KERNELS ?= $(shell sed -n 's/^\([0-9.]*\) .*/\1/p' kernel/series.txt)
# Switches of a long storm, and of a storm on a debug kernel.
SWITCHES ?= 10000
INTEL_SWITCHES ?= 2000
DEBUG_SWITCHES ?= 2000
# Seconds of the fuzzer on each debug kernel.
DEBUG_FUZZ ?= 3600
KERNEL_LOGS = evidence/pages
# Vendors of the laboratory's processors in `make vmtest`.
VENDORS ?= amd intel
# A checkout of kvm-unit-tests in which ./configure and make were run, for `make kvm-tests`.
UNIT_TESTS ?=
# Programs of `make validate-exits-vcpus` on 4 vCPUs, and those that run on 2 as well.
VCPU_PROGRAMS = idle vcpus-invlpg vcpus-full vcpus-munmap vcpus-touch vcpus-fork vcpus-switch fork munmap-sweep switch-4
VCPU_PROGRAMS_2 = touch-cold dontneed-refill mprotect-sweep exec many-processes
# `make release` of a commit that is not to be released: --draft, or --twice to compare two builds to the byte.
RELEASE ?=
# Where `make install` installs, a prefix for packagers, and the build that is installed.
PREFIX ?= /usr/local
DESTDIR ?=
BUILT ?= $${CARGO_TARGET_DIR:-target}/release
INTO = $(DESTDIR)$(PREFIX)
# The unit, dashboard, libvirt hook and example configuration of `bifold daemon`.
DAEMON_FILES = crates/daemon/install
# The profile of this machine, as `bifold profile measure` writes it.
PROFILE ?= profiles/epyc-zen5-guest.toml
# Scale of the memory and of the times in experiments with sharing guests.
SCALE ?= 1/8

.PHONY: help setup bochs qemu build workspace reporter install uninstall deb release deny test-packages container demo test test-python hwloc-trees docs kernel vmtest vmtest-long vmtest-debug vmtest-host kvm-tests validate-exits validate-exits-vcpus validate-formats validate-inside validate-reclaim validate-time lab-live lab-place lab-policies lab-modes lab-share lab-reclaim lab-reclaim-paging lab-builds lab-sweep published-times noise lab lint fuzz bench clean
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r a b; do printf '  %-20s %s\n' "$$a" "$$b"; done

setup: ## install missing packages on Debian 12 or newer (lists them; no prompt)
	@tools/setup

build: setup ## build the command: target/release/bifold
	$(CARGO) build --release --locked -p bifold

workspace: setup ## build the command, the laboratory and the programs that measure, for the targets below that use them
	$(CARGO) build --release --locked --workspace

# Static, and with a target directory of its own: otherwise the flag makes cargo rebuild everything else.
reporter: setup ## build the program for guests, static: target/reporter/bifold-reporter
	RUSTFLAGS="$${RUSTFLAGS:-} -C target-feature=+crt-static" $(CARGO) build --release --locked -p bifold-reporter --target-dir "$${CARGO_TARGET_DIR:-target}/reporter"
	install -m 755 "$${CARGO_TARGET_DIR:-target}/reporter/release/bifold-reporter" "$${CARGO_TARGET_DIR:-target}/reporter/bifold-reporter"

# The demo needs `compare` alone, so a first build leaves the other verbs out. A build that has them keeps them.
demo: setup ## show what compiling a C file costs in each paging mode: table, chart and report
	$(CARGO) build --release --locked -p bifold $$($(BIFOLD) policy --help >/dev/null 2>&1 || echo --no-default-features)
	@source=$$(realpath --relative-to=. "$$(tools/demo-source)"); set -x; \
	$(BIFOLD) compare --profile i5-7600 --report $(REPORT) --chart $(CHART) -- gcc -O2 -c -DSTB_IMAGE_IMPLEMENTATION "$$source" -o /tmp/stb_image.o

# Root runs this target, so the target does not build: run `make build` first.
install: ## install command, man pages, completions and the daemon's unit (PREFIX=/usr/local, DESTDIR=)
	@for f in bifold libbifold_capture_plugin.so; do test -f "$(BUILT)/$$f" || { echo "make install: $(BUILT)/$$f is not there: run make build first" >&2; exit 1; }; done
	@"$(BUILT)/bifold" policy --help >/dev/null 2>&1 || { echo "make install: $(BUILT)/bifold has not all verbs, as make demo left it: run make build first" >&2; exit 1; }
	install -D -m 755 "$(BUILT)/bifold" "$(INTO)/bin/bifold"
	install -D -m 755 "$(BUILT)/libbifold_capture_plugin.so" "$(INTO)/lib/bifold/libbifold_capture_plugin.so"
	@pages=$$(mktemp -d) && trap 'rm -rf "$$pages"' EXIT && "$(BUILT)/bifold" man "$$pages" && set -x && \
	for s in 1 5 8; do install -D -m 644 -t "$(INTO)/share/man/man$$s" "$$pages"/*.$$s; done
	@set -x; for at in bash:bash-completion/completions/bifold zsh:zsh/site-functions/_bifold fish:fish/vendor_completions.d/bifold.fish; do \
	install -d "$$(dirname "$(INTO)/share/$${at#*:}")" && "$(BUILT)/bifold" completions "$${at%%:*}" > "$(INTO)/share/$${at#*:}"; done
	install -D -m 644 -t "$(INTO)/share/bifold/experiments/share" experiments/share/*.toml
	install -D -m 644 -t "$(INTO)/share/bifold/experiments/reclaim" experiments/reclaim/*.toml
	install -d "$(INTO)/lib/systemd/system"
	sed 's#/usr/local/bin/#$(PREFIX)/bin/#g' $(DAEMON_FILES)/bifoldd.service > "$(INTO)/lib/systemd/system/bifoldd.service"
	install -D -m 644 -t "$(INTO)/share/bifold" $(DAEMON_FILES)/bifold.toml $(DAEMON_FILES)/grafana.json
	install -D -m 755 -t "$(INTO)/share/bifold" $(DAEMON_FILES)/libvirt-qemu-hook

uninstall: ## remove what make install installed, with the same PREFIX and DESTDIR
	rm -f "$(INTO)/bin/bifold" "$(INTO)"/share/man/man1/bifold.1 "$(INTO)"/share/man/man1/bifold-*.1
	rm -f "$(INTO)"/share/man/man5/bifold{.toml,-wishes}.5 "$(INTO)"/share/man/man8/bifold-*.8 "$(INTO)/lib/systemd/system/bifoldd.service"
	rm -f "$(INTO)/share/bash-completion/completions/bifold" "$(INTO)/share/zsh/site-functions/_bifold" "$(INTO)/share/fish/vendor_completions.d/bifold.fish"
	rm -rf "$(INTO)/lib/bifold" "$(INTO)/share/bifold"

deb: setup ## build Debian packages, checked by lintian: target/deb
	@tools/deb

release: setup ## make a release's files of HEAD: source archive with all crates, packages, bill of materials, sums (RELEASE=--draft|--twice)
	@tools/release $(RELEASE)

deny: setup ## check crates by cargo-deny: licences, second versions, sources, advisories
	@tools/deny

test-packages: setup ## try the packages of make deb in clean Debian 12 and 13: evidence/pages/packages.md, 20 minutes, root (UBUNTU=URI)
	@tools/test-packages -o evidence/pages/packages.md

container: setup ## build a container image of the packages of make deb, rootless by buildah: localhost/bifold
	@tools/container

# The dev profile: with link-time optimisation, building the tests takes longer than running them. Tests of guests wait for half
# of their time, so two more run than there are CPUs.
test: setup ## run all tests
	@tools/libvirt-schema --fetch || true
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$(($$(nproc) + 2))} $(CARGO) test --workspace --locked --no-fail-fast
	@tools/python-package test || [ $$? = 77 ]

test-python: ## test the Python package and its notebook; pip installs what they use into target/python
	@tools/python-package test

hwloc-trees: setup ## compare the reader of /sys with hwloc on 47 machines' trees, which are fetched if they are missing
	BIFOLD_HWLOC_TREES=must $(CARGO) test --locked -p bifold-host --test it hwloc

kernel: setup ## build KVM modules with a paging mode per VM: target/kernel/RELEASE/kvm*.ko
	@kernel/build

vmtest-long: workspace kernel bochs qemu kvm-tests ## run 10,000 switches under load on each kernel, the long cases and others' tests: hours
	@mkdir -p $(KERNEL_LOGS)
	@status=0; for k in $(KERNELS); do (set -x; \
	$(LAB) storm --kernel $$k --switches $(SWITCHES) --cpus 6 --stay 20 --seconds 7000 -o $(KERNEL_LOGS)/storm-$$k.md && \
	$(LAB) switch --kernel $$k --memory 7000 --seconds 3600 hidden-faults once-a-second cost && \
	$(LAB) unswitched --kernel $$k && \
	$(LAB) switch --vendor intel --kernel $$k && \
	$(LAB) storm --vendor intel --kernel $$k --switches $(INTEL_SWITCHES) --vcpus 2 --cpus 2 -o $(KERNEL_LOGS)/storm-$$k-intel.md) \
	|| status=$$?; done; exit $$status

kvm-tests: workspace kernel bochs qemu ## run the kernel's KVM selftests and kvm-unit-tests in every mode: evidence/pages, hours (UNIT_TESTS=CHECKOUT VENDORS=amd)
	@kernel/selftests $(KERNELS)
	@$(if $(UNIT_TESTS),,echo "make kvm-tests: without kvm-unit-tests, as UNIT_TESTS names no checkout" >&2)
	@mkdir -p $(KERNEL_LOGS)
	@status=0; for v in $(VENDORS); do for k in $(KERNELS); do (set -x; \
	$(LAB) kvm-tests --vendor $$v --kernel $$k $(if $(UNIT_TESTS),--unit-tests $(UNIT_TESTS)) \
	-o $(KERNEL_LOGS)/kvm-tests-$$k-$$v.md) || status=$$?; done; done; exit $$status

vmtest-debug: workspace kernel ## run cases, storms and the fuzzer on kernels with KASAN, lockdep, KCSAN and wide windows: hours
	@tools/kernel-debug --switches $(DEBUG_SWITCHES) --fuzz $(DEBUG_FUZZ) $(KERNELS)

vmtest-host: ## load and test the modules on this machine (first read docs/guide/try-on-hardware.md)
	@kernel/vmtest-host

bochs: ## build Bochs, the emulator of Intel's virtualization: target/bochs
	@lab/bochs/build

qemu: ## build a QEMU whose emulation of AMD's virtualization is patched, for the laboratory: target/qemu
	@lab/qemu/build

vmtest: workspace bochs ## run quick tests under the real KVM, in emulated machines of both vendors: minutes (KERNEL=6.1 VENDORS=amd)
	@status=0; for v in $(VENDORS); do (set -x; \
	$(LAB) test --vendor $$v $(if $(KERNEL),--kernel $(KERNEL))) || status=$$?; done; exit $$status

lab-live: workspace ## run guests with phases under the daemon, on the real KVM: evidence/pages, 6 minutes for each kernel
	@mkdir -p evidence/pages
	@status=0; for k in $(KERNELS); do (set -x; $(LAB) live --kernel $$k -o evidence/pages/live-$$k.md) || status=$$?; done; exit $$status

lab-place: workspace qemu ## run parallel programs in guests placed well and badly on a host of two nodes: evidence/pages, an hour for each kernel; installs Open MPI and HPCC
	@lab/nas/build && mkdir -p evidence/pages
	@status=0; for k in $(KERNELS); do (set -x; $(LAB) nodes --kernel $$k -o evidence/pages/nodes-$$k.md; $(LAB) place --kernel $$k -o evidence/pages/place-$$k.md; evidence/tools/stamps --made nodes-$$k.md place-$$k.md) || status=$$?; done; exit $$status

validate-exits: workspace bochs ## compare predicted exits with the real KVM's, of both vendors: evidence/pages, hours
	@mkdir -p evidence/pages
	@status=0; for k in $(KERNELS); do (set -x; $(LAB) validate --kernel $$k -o evidence/pages/exits-$$k.md) || status=$$?; \
	(set -x; $(LAB) validate --vendor intel --kernel $$k -n 1 -o evidence/pages/exits-$$k-intel.md) || status=$$?; done; exit $$status

validate-inside: workspace ## compare predicted exits of guests within guests, to both hypervisors, with the real KVM's: evidence/pages, an hour for each kernel
	@mkdir -p evidence/pages
	@status=0; for k in $(KERNELS); do (set -x; $(LAB) validate --inside --kernel $$k --kpti off -n 1 -o evidence/pages/exits-inside-$$k.md) || status=$$?; done; exit $$status

# The QEMU that is installed may deliver an interrupt twice, which a guest of several vCPUs does not survive.
validate-exits-vcpus: workspace qemu ## compare predicted exits with the real KVM's in guests of 2 and 4 vCPUs: evidence/pages, an hour for each kernel
	@mkdir -p evidence/pages
	@status=0; for k in $(KERNELS); do \
	(set -x; $(LAB) validate --kernel $$k --vcpus 2 --kpti off -n 1 $(addprefix --program ,$(VCPU_PROGRAMS) $(VCPU_PROGRAMS_2)) -o evidence/pages/exits-vcpus-$$k.md) || status=$$?; \
	(set -x; $(LAB) validate --kernel $$k --vcpus 4 --kpti off -n 1 $(addprefix --program ,$(VCPU_PROGRAMS)) -o evidence/pages/exits-4-vcpus-$$k.md) || status=$$?; \
	done; exit $$status

# KVM offers LA57 to guests where the processor has that. A guest with PAE needs the patched QEMU under nested paging, else it resets.
validate-formats: workspace qemu ## compare predicted exits with the real KVM's in guests with 5 levels, PAE and 2 levels: evidence/pages, half an hour
	@mkdir -p evidence/pages
	@status=0; for f in 5-level pae 32-bit; do \
	(set -x; $(LAB) validate --model=+la57 --guest-tables $$f --kpti off -n 1 --config nested-4k --config shadow-4k -o evidence/pages/exits-6.1-$$f.md) || status=$$?; \
	done; exit $$status

# Under Linux 6.12, guests that read a file do not end in time in `lab superfluous`, which therefore runs the first kernel alone.
validate-reclaim: workspace ## compare predicted refaults, exits and superfluous swaps of guests whose host holds a part of them with the real KVM's: evidence/pages, 25 minutes for each kernel
	@mkdir -p evidence/pages
	@status=0; for k in $(KERNELS); do (set -x; $(LAB) reclaim --kernel $$k -o evidence/pages/reclaim-$$k.md; evidence/tools/stamps --made reclaim-$$k.md) || status=$$?; done; \
	(set -x; $(LAB) superfluous $(foreach k,$(KERNELS),--kernel $(k)) -o evidence/pages/reclaim-superfluous.md; evidence/tools/stamps --made reclaim-superfluous.md) || status=$$?; exit $$status

validate-time: workspace ## run programs here on 4 KB and 2 MB pages, and predict it: evidence/pages, an hour (PROFILE=FILE TIME=options)
	$(TIMING) validate --profile $(PROFILE) -o evidence/pages/validate-time-$(notdir $(basename $(PROFILE))).md $(TIME)
	@evidence/tools/stamps --made validate-time-$(notdir $(basename $(PROFILE))).md

lab-policies: build ## compare policies over the suite: evidence/pages/policies.md; captures missing timelines
	@evidence/tools/suite setup
	@evidence/tools/suite capture
	@evidence/tools/policies

lab-modes: build ## run the suite's programs in every paging mode: evidence/pages/modes.md, two and a half hours once, for lab-policies too; then seconds
	@evidence/tools/suite setup
	@evidence/tools/suite capture
	@evidence/tools/modes -o evidence/pages/modes.md >/dev/null

lab-share: build ## run 8 guests under the real KSM: evidence/pages, 40 minutes, root (SCALE=1/8)
	@mkdir -p evidence/pages
	$(BIFOLD) share run --scale $(SCALE) --report bifold-share.html --markdown evidence/pages/share-synthetic.md experiments/share/synthetic.toml

lab-reclaim: build ## run guests under memory pressure, and a balloon beside small guests: evidence/pages/reclaim-run.md, half an hour
	@evidence/tools/lab-reclaim -o evidence/pages/reclaim-run.md --report bifold-reclaim.html

lab-reclaim-paging: workspace ## run a guest on a host that pages, beside balloons, in the laboratory: evidence/pages/reclaim-paging.md, half an hour
	$(LAB) pressure experiments/reclaim/build.toml --swap-iops 1000 -o evidence/pages/reclaim-paging.md

noise: build ## record a guest's noise, and simulate published and recorded noise: evidence/pages/noise.md, minutes
	@evidence/tools/noise > evidence/pages/noise.md

lab-sweep: build ## run 500 tasks over 4 workers and kill one every 10 s: evidence/pages/sweep.md, ten minutes (HQ=HyperQueue's command)
	@evidence/tools/lab-sweep $(if $(HQ),--hq $(HQ)) -o evidence/pages/sweep.md
	@evidence/tools/stamps --made sweep.md

lab-builds: workspace ## predict the two loads of the multi-core thesis: evidence/pages, an hour (BUILDS=options)
	@evidence/tools/lab-builds -o evidence/pages/lab-builds.md $(BUILDS)
	@evidence/tools/stamps --made lab-builds.md

published-times: workspace ## predict GUPS of vMitosis and LMbench of PVM: evidence/pages, half an hour (PUBLISHED=options)
	$(TIMING) published -o evidence/pages/published-times.md $(PUBLISHED)
	@evidence/tools/stamps --made published-times.md

lab: validate-exits validate-exits-vcpus validate-formats validate-inside validate-reclaim validate-time lab-live lab-place lab-policies lab-modes lab-share lab-reclaim lab-reclaim-paging lab-builds published-times vmtest-long vmtest-debug ## run every long experiment: a day

docs: ## build the documentation and the results as books: target/book/docs/index.html
	@tools/docs

lint: ## check words, formatting, shell scripts, clippy and rustdoc of the minimum Rust version
	@tools/lint

fuzz: setup ## run the bodies of the fuzz targets on random inputs (make test runs them too)
	$(CARGO) test --locked -p bifold-fuzz

bench: setup ## measure speed (BASE=REVISION: ratios to another revision, interleaved)
	@$(if $(BASE),tools/bench-beside $(BASE),tools/bench)

clean: ## remove everything that was built and fetched
	rm -rf target .cache $(REPORT) $(CHART) bifold-policies.html bifold-share.html
