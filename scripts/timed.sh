#!/bin/sh
# Runs a test program for cargo, and has it print how long each test took. Examples in documentation are no such programs.
case $1 in
*rustdoctest*|*rust_out*) exec "$@" ;;
*) RUSTC_BOOTSTRAP=1 exec "$@" -Zunstable-options --report-time ;;
esac
