#!/usr/bin/env bash
# Run every check of the sources, as before each change: `just check`.
set -euo pipefail
cd "$(dirname "$0")/.."
set -x

cargo fmt --all --check
# With CUDA, which needs no toolkit here. The checks of the library below lint what replaces it.
export CUDARC_CUDA_VERSION=${CUDARC_CUDA_VERSION:-13000}
cargo clippy --workspace --all-targets --features briquette/cuda,briquette-cli/cuda -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --features briquette/cuda,briquette-cli/cuda --no-deps --quiet

# The library and the command without their optional features.
cargo clippy --quiet -p briquette --all-targets -- -D warnings
cargo clippy --quiet -p briquette --no-default-features -- -D warnings
cargo clippy --quiet -p briquette-cli --no-default-features --all-targets -- -D warnings
# In the profile of the README's first command and of the Python package's tests, so that they share what is compiled.
cargo test --quiet --profile quick -p briquette-formats --no-default-features --test without_pytorch
cargo test --quiet --profile quick -p briquette-cli --no-default-features --test e2e light::

just dev size
just dev language
just dev deny
