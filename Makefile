# What a user of this tree types. Needs a Rust toolchain, make and a C compiler.

CARGO ?= cargo

.PHONY: build install package wheel book demo test packages style aarch64 aarch64-program msrv unit programs programs-alone programs-network programs-most python loom faults fuzz mutants explore graph gauntlet gauntlet-quick soak kills

build:
	$(CARGO) build --release --workspace --exclude overspill-python

# The program, its man pages, and the library for C: `make install PREFIX=/usr/local`.
install:
	scripts/install.sh $(or $(PREFIX),/usr/local)

# A Debian package, an archive, an SBOM and checksums, in target/package. Takes cargo-deb and cargo-cyclonedx.
package:
	scripts/package.sh

# The Python package, in target/wheels. Takes maturin, or python3 with venv to get it.
wheel: build
	scripts/wheel.sh

# The documentation as a site, in target/book. Takes mdbook.
book:
	scripts/book.sh

# GNU sort of a log and of random lines in less memory than it takes, compared with the plain runs.
demo: build
	scripts/demo.sh

# Everything. The parts can be run one by one.
test:
	$(MAKE) packages
	$(MAKE) build
	$(MAKE) style
	$(MAKE) unit
	$(MAKE) programs-alone
	$(MAKE) -j2 --output-sync programs-most programs-network python loom
	$(MAKE) gauntlet-quick SUITES="$(TESTED_SUITES)"
	@echo
	@echo "make test: everything passed."

# Debian packages with the programs that are tested. Goes on without, and says so.
packages:
	scripts/install-test-packages.sh

# Formatting and lints, where the toolchain has the components.
style:
	@if $(CARGO) fmt --version >/dev/null 2>&1; then \
		$(CARGO) fmt --all --check; \
	else \
		echo "skipped: formatting: rustfmt is not installed (rustup component add rustfmt)"; \
	fi
	@if $(CARGO) clippy --version >/dev/null 2>&1; then \
		$(CARGO) clippy --workspace --all-targets -- -D warnings && \
		$(CARGO) clippy --workspace --test programs -- -D warnings; \
	else \
		echo "skipped: lints: clippy is not installed (rustup component add clippy)"; \
	fi

# Everything compiles for AArch64. Needs rustup's target and Debian's gcc-aarch64-linux-gnu.
aarch64:
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		$(CARGO) clippy --workspace --all-targets --target aarch64-unknown-linux-gnu -- -D warnings

# A real program on an emulated AArch64 machine. Needs Debian's qemu-system-arm and cpio too.
aarch64-program:
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		$(CARGO) build --release -p overspill-cli -p overspill-preload --target aarch64-unknown-linux-gnu
	scripts/aarch64-program.sh

# Everything compiles with the oldest Rust that is promised: rust-version of Cargo.toml. Takes rustup.
msrv:
	rust=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); rustup toolchain install --profile minimal "$$rust" && \
		CARGO_TARGET_DIR=target/msrv rustup run "$$rust" cargo check --workspace --all-targets

# With debug assertions and overflow checks: unit, property and structure tests, and documentation.
unit:
	$(CARGO) test --workspace
	@if command -v python3 >/dev/null; then cd tests/gauntlet && python3 -m unittest; \
	else echo "skipped: tests of the gauntlet: there is no python3"; fi

# Real programs under `overspill run`, against the release build, one at a time: they measure memory.
programs: build
	$(MAKE) programs-alone
	$(MAKE) programs-most
	$(MAKE) programs-network

# Those that look at the whole machine; those over networks, which mostly wait; the others. All with --workspace: without,
# crates would be built again with other features.
programs-alone: build
	$(CARGO) test --workspace --test programs -- --test-threads=1 kills:: compare::
programs-network: build
	$(CARGO) test --workspace --test programs -- --test-threads=1 cluster:: network::
programs-most: build
	$(CARGO) test --workspace --test programs -- --test-threads=1 --skip kills:: --skip compare:: --skip cluster:: --skip network::

# The Python package as its users have it, and its tutorial.
python: build
	scripts/test-wheel.sh

# Model-checked concurrency.
loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_LTO=off \
		$(CARGO) test --release -p overspill-base -p overspill-area -p overspill-engine -p overspill-space --lib --test loom

# Ten thousand episodes each over devices that fail and with a kernel that says what is not so; `make unit` plays
# a part of them.
faults:
	OVERSPILL_SEEDS=10000 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_TARGET_DIR=target/faults \
		$(CARGO) test --release -p overspill-engine --test faults
	OVERSPILL_SEEDS=10000 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_TARGET_DIR=target/faults \
		$(CARGO) test --release -p overspill --test kernel

# Schedules of small machines on virtual CPUs, until one fails or you stop it; the first 2000 are in
# `unit`.
explore:
	CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_TARGET_DIR=target/faults \
		$(CARGO) run --release -p overspill-lab -- sim explore --runs 0

# The fuzz targets for so many minutes each, with whatever bytes; guided by coverage if cargo-bolero
# is installed.
FUZZ_MINUTES ?= 5
fuzz:
	@if $(CARGO) bolero --version >/dev/null 2>&1; then \
		$(CARGO) bolero test -p overspill-area --test fuzz -T $(FUZZ_MINUTES)m slots_are_never_shared_lost_or_reserved_ones && \
		$(CARGO) bolero test -p overspill-engine --test fuzz -T $(FUZZ_MINUTES)m no_operations_break_a_promise; \
	else \
		BOLERO_RANDOM_TEST_TIME_MS=$$(($(FUZZ_MINUTES) * 60000)) \
		CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_TARGET_DIR=target/faults \
		$(CARGO) test --release -p overspill-area -p overspill-engine --test fuzz; \
	fi

# Known bugs, put in one by one: each must be found by the test it names.
mutants:
	tests/mutants/run.sh

# Which file uses which inside area, engine and space, and in which circles.
graph:
	@$(CARGO) test -q -p overspill-cli --test graph -- --nocapture

# Other people's programs and test suites, plain and under `overspill run`, compared: hours. Writes
# docs/compatibility.md. A run that was stopped goes on where it was; SUITES="bash perl" runs some.
SUITES ?=
gauntlet: build
	tests/gauntlet/gauntlet.py $(SUITES)

# Those of which a small part is in `make test`: their programs are small, or there anyway.
TESTED_SUITES = bash cpython git perl redis sqlite stress_ng

# A small part of it, in some minutes.
gauntlet-quick: build
	tests/gauntlet/gauntlet.py --quick $(SUITES)

# Programs that check every byte, on all devices in turn, until one is wrong or SOAK_MINUTES are over (60).
soak: build
	tests/gauntlet/soak.py

# Programs killed at random moments, KILLS times (10000): nothing may be left behind.
kills: build
	tests/gauntlet/kills.py
