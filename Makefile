# What a user of this tree types. Needs a Rust toolchain, make and a C compiler.

CARGO ?= cargo

.PHONY: build demo test packages style unit programs loom

build:
	$(CARGO) build --release --workspace

# GNU sort in a quarter of the memory it takes, compared with the plain run.
demo: build
	scripts/demo.sh

# Everything. The parts can be run one by one.
test:
	$(MAKE) packages
	$(MAKE) build
	$(MAKE) style
	$(MAKE) unit
	$(MAKE) programs
	$(MAKE) loom
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
		$(CARGO) clippy --workspace --all-targets -- -D warnings; \
	else \
		echo "skipped: lints: clippy is not installed (rustup component add clippy)"; \
	fi

# With debug assertions and overflow checks: unit, property and structure tests, and documentation.
unit:
	$(CARGO) test --workspace --exclude overspill-cli
	$(CARGO) test --workspace --bins --test cli --test structure

# Real programs under `overspill run`, against the release build, one at a time: they measure memory.
programs: build
	$(CARGO) test --workspace --release --test programs -- --test-threads=1

# Model-checked concurrency.
loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
		$(CARGO) test --release -p overspill-area -p overspill-engine --test loom
