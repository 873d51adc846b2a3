# What a user of this tree types. Needs a Rust toolchain, make and a C compiler.

CARGO ?= cargo
# The program and what it loads into others; with what serves places apart, and the library for C, the product. Always
# built in these two selections: in others crates have other features, and are built again.
PROGRAM = -p overspill-cli -p overspill-forks
PRODUCT = $(PROGRAM) -p overspill-remote -p overspill-c

.PHONY: program build lab install package package-tested wheel book demo test test-all packages style deny format lints aarch64 aarch64-program msrv \
	unit unit-product documents programs programs-first programs-alone programs-network programs-most python loom miri \
	kernel-rules kernels kernel-programs campaign faults fuzz mutants explore graph gauntlet gauntlet-quick gauntlet-tested soak storm kills armings

# Without the optimisations that take half of the time: target/quick/overspill.
program:
	$(CARGO) build --profile quick $(PROGRAM)

build:
	$(CARGO) build --release $(PRODUCT)

# The laboratory, target/release/overspill-lab: comparisons with kernel swap, mechanisms off and on, the simulator.
lab:
	$(CARGO) build --release $(PRODUCT) -p overspill-lab

# The program, its man pages, and the library for C: `make install PREFIX=/usr/local`.
install: build
	scripts/install.sh $(or $(PREFIX),/usr/local)

# What a release consists of, in target/package: packages, an archive, wheels, SBOMs and checksums. Takes rustup, python3 with venv, a
# network once, and cargo-cyclonedx.
package:
	scripts/package.sh

# The same without SBOMs, and a try of the archive where there is nothing but busybox.
package-tested:
	SBOM=no scripts/package.sh
	scripts/test-packages.sh busybox

# The Python package, in target/wheels. Takes maturin, or python3 with venv to get it.
wheel: build
	scripts/wheel.sh

# The documentation as a site, in target/book. Takes mdbook.
book:
	scripts/book.sh

# A program in a third of the memory that it takes: without Overspill, with it, and with room enough.
demo: program
	scripts/demo.sh

# What finds most, before every commit: ten minutes in a fresh clone.
test:
	scripts/test.sh packages format program unit-product programs-first

# Everything but campaigns: what CI runs.
test-all:
	scripts/test.sh packages style deny lab unit documents programs-alone programs-most+programs-ways,programs-network,python,loom gauntlet-tested package-tested

# Long tests in turns, until one fails or CAMPAIGN_MINUTES are over: soak, storm, kills, armings, faults, kernel, guests, explore, fuzz, mutants,
# gauntlet, kernels, or those of PARTS. What was done stands in target/campaign/ledger.jsonl; the next campaign goes on from there.
PARTS ?=
campaign: lab
	tests/campaign.py $(PARTS)

# Debian packages with the programs that are tested. Goes on without, and says so.
packages:
	scripts/install-test-packages.sh

# Formatting and lints, where the toolchain has the components.
style: format lints
format:
	@if $(CARGO) fmt --version >/dev/null 2>&1; then \
		$(CARGO) fmt --all --check; \
	else \
		echo "skipped: formatting: rustfmt is not installed (rustup component add rustfmt)"; \
	fi
lints:
	@if $(CARGO) clippy --version >/dev/null 2>&1; then \
		$(CARGO) clippy --workspace --all-targets -- -D warnings; \
	else \
		echo "skipped: lints: clippy is not installed (rustup component add clippy)"; \
	fi

# Licences, sources and duplicates of what is depended on, by deny.toml. With CHECKS= its advisories too, of which the list is fetched
# from GitHub.
CHECKS = bans licenses sources
deny:
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) deny --log-level error check $(CHECKS); \
	else \
		echo "skipped: licences and sources: there is no cargo-deny (cargo install --locked cargo-deny)"; \
	fi

# Everything compiles for AArch64. Needs rustup's target and Debian's gcc-aarch64-linux-gnu.
aarch64:
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		$(CARGO) clippy --workspace --all-targets --target aarch64-unknown-linux-gnu -- -D warnings

# A real program on an emulated AArch64 machine. Needs Debian's qemu-system-arm and cpio too.
aarch64-program:
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		$(CARGO) build --release $(PROGRAM) --target aarch64-unknown-linux-gnu
	scripts/aarch64-program.sh

# Everything compiles with the oldest Rust that is promised: rust-version of Cargo.toml. Takes rustup.
msrv:
	rust=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); rustup toolchain install --profile minimal "$$rust" && \
		CARGO_TARGET_DIR=target/msrv rustup run "$$rust" cargo check --workspace --all-targets

# With debug assertions and overflow checks: unit, property and structure tests; of all, or without the laboratory.
LAB = overspill-bench overspill-lab overspill-sim overspill-vcpu overspill-base-sim overspill-area-sim overspill-device-sim \
	overspill-engine-sim
PRODUCT_AND_TESTS = --workspace $(LAB:%=--exclude %)
unit-product:
	$(CARGO) test $(PRODUCT_AND_TESTS) --tests
unit:
	$(CARGO) test --workspace --tests
	@if command -v python3 >/dev/null; then cd tests/gauntlet && python3 -m unittest; \
	else echo "skipped: tests of the gauntlet: there is no python3"; fi

# Examples in the documentation.
documents:
	$(CARGO) test --workspace --doc

# Real programs under `overspill run`, one at a time: they measure memory. In a selection of which the features are
# those of the workspace: with others crates would be built again.
PROGRAMS = $(CARGO) test $(PRODUCT_AND_TESTS) --test programs -- --test-threads=1
programs: lab programs-alone programs-most programs-ways programs-network

# Those that found most in least time, against the quick build: every call that touches memory, every way, forks, kills.
FIRST = apart:: children:: core_dump:: faults:: keeper:: limits:: mapping_calls:: memory_calls:: one_limit:: process_calls:: python:: system_calls:: thread_ends:: ways::
programs-first: program
	OVERSPILL_TEST_PROFILE=quick $(PROGRAMS) $(FIRST) --skip flush_amid_forks --skip killed_ --skip sorts_random_lines \
		--skip shares_pipes_with_children --skip computes_on_arrays

# Those that look at the whole machine; those over networks, which mostly wait; those of each way; the others.
programs-alone: lab
	$(PROGRAMS) kills:: compare::
programs-network: lab
	$(PROGRAMS) cluster:: network::
programs-ways: lab
	$(PROGRAMS) ways:: touches::
programs-most: lab
	$(PROGRAMS) --skip kills:: --skip compare:: --skip cluster:: --skip network:: --skip ways:: --skip touches::

# The Python package as its users have it, and its tutorial.
python: build
	scripts/test-wheel.sh

# What a pager outside a program needs this machine's kernel to do, rule by rule; in `unit` too. Most as root.
kernel-rules:
	$(CARGO) test -p overspill-kernel-rules -- --show-output

# The same on Debian's kernels, emulated, as a table: `make kernels KERNELS="6.1 7.3"`. Needs Debian's qemu-system-x86,
# cpio and busybox-static, and a mirror once. `scripts/kernels.sh FILE... -- COMMAND` runs something else there.
KERNELS ?=
kernels:
	CARGO="$(CARGO)" KERNELS="$(KERNELS)" scripts/kernels.sh

# Small programs, sort, attachments, and all kinds of users on Debian's kernels, emulated.
kernel-programs: program
	KERNELS="$(KERNELS)" scripts/kernel-programs.sh

# Model-checked concurrency.
loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_LTO=off \
		$(CARGO) test --release -p overspill-base -p overspill-area -p overspill-engine -p overspill-space --lib --test loom

# Tables, words and lists under Miri, which sees undefined behaviour; it knows no shared mappings, nor madvise(2) or CPUs. Takes nightly
# Rust with miri and rust-src.
miri:
	MIRIFLAGS=-Zmiri-disable-isolation RUSTFLAGS="--cfg rustix_use_libc" CARGO_TARGET_DIR=target/miri; \
		export MIRIFLAGS RUSTFLAGS CARGO_TARGET_DIR; \
		$(CARGO) +nightly miri test -p overspill-base --lib -- --skip kernel:: --skip secret:: --skip accounts:: && \
		$(CARGO) +nightly miri test -p overspill-area --lib && \
		$(CARGO) +nightly miri test -p overspill-engine --lib page_table:: types:: window::

# A release build with debug assertions, for what takes long.
CHECKED = CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_TARGET_DIR=target/checked

# Ten thousand episodes each over devices that fail and with a kernel that says what is not so; `make unit` plays
# a part of them.
faults:
	OVERSPILL_SEEDS=10000 $(CHECKED) $(CARGO) test --release -p overspill-engine --test faults
	OVERSPILL_SEEDS=10000 $(CHECKED) $(CARGO) test --release -p overspill --test kernel

# Schedules of small machines on virtual CPUs, until one fails or you stop it; the first 1000 are in
# `unit`.
explore:
	$(CHECKED) $(CARGO) run --release -p overspill-lab -- sim explore --runs 0

# The fuzz targets for so many minutes each, with whatever bytes: scripts of areas and engines, and all that reads what others
# write. Those of scripts are guided by coverage if cargo-bolero is installed.
FUZZ_MINUTES ?= 5
fuzz:
	@if $(CARGO) bolero --version >/dev/null 2>&1; then \
		$(CARGO) bolero test -p overspill-area --test fuzz -T $(FUZZ_MINUTES)m slots_are_never_shared_lost_or_reserved_ones && \
		$(CARGO) bolero test -p overspill-engine --test fuzz -T $(FUZZ_MINUTES)m no_operations_break_a_promise; \
	else \
		BOLERO_RANDOM_TEST_TIME_MS=$$(($(FUZZ_MINUTES) * 60000)) \
		$(CHECKED) $(CARGO) test --release -p overspill-area -p overspill-engine --test fuzz; \
	fi
	BOLERO_RANDOM_TEST_TIME_MS=$$(($(FUZZ_MINUTES) * 60000)) $(CARGO) test --lib --bins -p overspill-cli -p overspill-device \
		-p overspill-guest -p overspill-keeper -p overspill-remote whatever

# Known bugs, put in one by one: each must be found by the test it names.
mutants:
	tests/mutants/run.sh

# Which file uses which inside area, engine and space, and in which circles.
graph:
	@$(CARGO) test -q -p overspill-tree --test graph -- --nocapture

# Other people's programs and test suites, plain and under `overspill run`, compared: hours. Writes
# docs/compatibility.md. A run that was stopped goes on where it was; SUITES="bash perl" runs some.
SUITES ?=
gauntlet: build
	tests/gauntlet/gauntlet.py $(SUITES)

# A small part of it, in some minutes.
gauntlet-quick: build
	tests/gauntlet/gauntlet.py --quick $(SUITES)

# That of suites whose programs are small, or there anyway.
gauntlet-tested:
	$(MAKE) gauntlet-quick SUITES="bash cpython git linked perl redis sqlite stress_ng"

# Programs that check every byte, on all devices in turn, until one is wrong or SOAK_MINUTES are over (60).
soak: build
	tests/gauntlet/soak.py

# Programs that make memory calls of all kinds and check every page, and a store that forks, in a quarter of their memory: minutes.
storm: build
	tests/gauntlet/storm.py --seeds 40
	tests/gauntlet/storm.py --seeds 10 --first 41 --busy
	tests/gauntlet/storm.py --store --seconds 600

# Programs killed at random moments, KILLS times (10000): nothing may be left behind.
kills: build
	tests/gauntlet/kills.py

# Programs attached to and let go at random moments, as ordinary users: gates are shut and opened whatever the threads do.
armings: build
	tests/gauntlet/armings.py
