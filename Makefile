# make help lists the targets; the work is in cargo and in scripts/.

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
# Below a folder of its own nothing of the system's is written over.
SYSCONFDIR ?= $(if $(filter /usr,$(PREFIX)),/etc,$(PREFIX)/etc)
SBINDIR ?= $(PREFIX)/sbin
BINDIR ?= $(PREFIX)/bin
MANDIR ?= $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
UDEVDIR ?= $(PREFIX)/lib/udev/rules.d
DESTDIR ?=

CARGO ?= cargo
# rdma-core's build inside of the crate ibverbs-sys, of which only headers are used, does not link
# with clang.
RUN_CARGO := $(if $(findstring clang,$(CC)),env CC=cc )$(CARGO)
CARGO_TARGET_DIR ?= target
VERSION := $(shell scripts/version)

# Profile of cargo: release, or quick for the tests (Cargo.toml).
BUILD := release
BUILT := $(CARGO_TARGET_DIR)/$(if $(CARGO_BUILD_TARGET),$(CARGO_BUILD_TARGET)/)$(BUILD)

DIST ?= $(CARGO_TARGET_DIR)/dist
# What make quick builds and tests use.
CHECK_DIST ?= $(CARGO_TARGET_DIR)/check-dist
LIBRARY := $(DIST)/lib/librdmacm.so.1.5.$(VERSION)
ARCHIVE := $(BUILT)/librdmacm.a
PRELOAD := $(DIST)/lib/rsocket/librspreload.so
PRELOAD_ARCHIVE := $(BUILT)/librspreload.a
IWPMD := $(DIST)/sbin/iwpmd
IWPMD_BUILT := $(BUILT)/iwpmd
DOCTOR := $(DIST)/bin/rdmacm-doctor
DOCTOR_BUILT := $(BUILT)/rdmacm-doctor
RSSTAT := $(DIST)/bin/rsstat
RSSTAT_BUILT := $(BUILT)/rsstat

# Neither make nor the build of rdma-core's headers can quote them: one sentence instead of one for each target.
one_word = $(if $(filter-out 0 1,$(words $($1))),$(error $1 has a space, which the build cannot handle: '$($1)'. Use another folder))
$(call one_word,CARGO_TARGET_DIR)
$(call one_word,DIST)
$(call one_word,CHECK_DIST)

export CARGO_TARGET_DIR PREFIX LIBDIR INCLUDEDIR SYSCONFDIR SBINDIR BINDIR MANDIR UNITDIR UDEVDIR DESTDIR VERSION DIST CHECK_DIST

.PHONY: all quick test lint check check-all demo bench lab headers abi-check install-test install install-strip uninstall dist release deb opt kit binaries clean help preconditions build
.DELETE_ON_ERROR:

all: $(LIBRARY) $(PRELOAD) $(IWPMD) $(DOCTOR) $(RSSTAT) ## build everything into $(DIST), target/dist unless given (the default)

quick: ## build the same without link-time optimization, with assertions, into $(CHECK_DIST), target/check-dist unless given
	$(MAKE) all BUILD=quick DIST=$(CHECK_DIST)

test: preconditions ## run the Rust tests that need no lab
	$(RUN_CARGO) test --workspace --locked --profile quick

lint: preconditions ## formatting, clippy, shellcheck, layers, references of the documents
	$(RUN_CARGO) fmt --all --check
	$(RUN_CARGO) fmt --manifest-path tests/models/Cargo.toml --check
	$(RUN_CARGO) clippy --workspace --all-targets --locked --profile quick -- -D warnings
	shellcheck -x -P SCRIPTDIR $$(git ls-files | xargs grep -lE '^#!.*\b(bash|sh)$$') programs/rsrun.bash-completion
	scripts/layers
	tests/bench/charts --check
	scripts/docs-check

check: preconditions ## run the suites of tests that show each part, in minutes; scripts/check --list names all
	scripts/check $(CHECK)

check-all: preconditions ## run every suite, for hours; CHECK=--resume leaves out what has passed on the same tree
	scripts/check --tier all $(CHECK)

demo: ## install what is missing, build, run rping and ucmatose in the lab
	scripts/demo

bench: all ## compare the speed of rsockets with the reference's, TCP's and raw verbs'
	tests/bench/run
	tests/bench/emulated || [ $$? = 77 ]
	tests/bench/emulated --device siw --only vectored || [ $$? = 77 ]

lab: ## build the kernel of the lab, unless the machine has it already
	tests/lab/kernel path

headers: preconditions ## write the generated headers in include/rdma anew
	$(RUN_CARGO) run -q --profile quick -p headers -- include/rdma

abi-check: all ## compare symbols, headers and layout with the reference's
	scripts/abi-check
	scripts/abi-check headers
	scripts/abi-check release

install-test: all ## install below a temporary folder, use it from there, uninstall
	scripts/install-test

install: ## install what make built: DESTDIR PREFIX LIBDIR INCLUDEDIR SYSCONFDIR SBINDIR BINDIR MANDIR UNITDIR UDEVDIR
	scripts/install-files install

install-strip: ## the same, without symbols and debug information
	STRIP=$${STRIP:-strip} scripts/install-files install

uninstall: ## remove what make install installed, given the same variables
	scripts/install-files uninstall

dist: preconditions ## write the source tarball with the crates in it, into target/package
	scripts/dist

release: preconditions ## make tarballs, checksums and notes of the tagged version; KEY=gpg-key signs them
	scripts/release $(KEY)

deb: preconditions ## build the source package and the Debian packages in target/package
	scripts/deb

opt: all ## write the tarball for /opt of any distribution, into target/package
	packaging/opt/build

kit: all ## build rdmacm-verify, which tests on machines with RDMA adapters (programs/kit/README.md), in target/package
	programs/kit/build

binaries: preconditions ## build both tarballs for glibc 2.28 and newer, x86-64 and aarch64 (scripts/binaries)
	scripts/binaries

clean: preconditions ## remove what was built
	$(RUN_CARGO) clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

preconditions:
	@scripts/preconditions

# For size: what is not marked #[inline] becomes part of its callers only if it is short, also within loops, and few loops
# are unrolled. The paths of messages are marked.
release_flags := $(addprefix -C llvm-args=-,inline-threshold=40 locally-hot-callsite-threshold=60 unroll-threshold=30)

# One call builds all: crates are compiled side by side, and cargo knows whether there is something
# to do. make looks at the files afterwards.
build: preconditions
	$(if $(filter release,$(BUILD)),RUSTFLAGS="$(RUSTFLAGS) $(release_flags)" )$(RUN_CARGO) build --profile $(BUILD) --locked -p rdmacm -p rspreload -p iwpmd -p rdmacm-doctor -p rsstat

$(ARCHIVE) $(PRELOAD_ARCHIVE) $(IWPMD_BUILT) $(DOCTOR_BUILT) $(RSSTAT_BUILT): build ;

$(LIBRARY): $(ARCHIVE) symbols.map scripts/link-rdmacm scripts/startup.ld
	scripts/link-rdmacm $(VERSION) $(ARCHIVE) $(DIST)/lib

$(PRELOAD): $(PRELOAD_ARCHIVE) $(LIBRARY) abi/rspreload/preload.map abi/rspreload/preload-full.map abi/rspreload/src/full/printf.c abi/rspreload/src/full/vfork.c \
		scripts/link-rspreload
	scripts/link-rspreload $(PRELOAD_ARCHIVE) $(DIST)/lib

$(IWPMD): $(IWPMD_BUILT)
	install -D -m 755 $< $@

$(DOCTOR): $(DOCTOR_BUILT)
	install -D -m 755 $< $@

$(RSSTAT): $(RSSTAT_BUILT)
	install -D -m 755 $< $@
