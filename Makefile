# What a user of this tree types. Needs a Rust toolchain, make and a C compiler.

CARGO ?= cargo

.PHONY: build demo test

build:
	$(CARGO) build --release --workspace

# GNU sort in a quarter of the memory it takes, compared with the plain run.
demo: build
	scripts/demo.sh

test: build
	$(CARGO) test --workspace
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
		$(CARGO) test --release -p overspill-area -p overspill-engine --test loom
