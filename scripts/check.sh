#!/usr/bin/env bash
# Run every check of the sources, as before each change: `just check`.
set -euo pipefail
cd "$(dirname "$0")/.."
# Each command is printed with the time so far.
PS4='+ (after $SECONDS s) '
set -x

cargo fmt --all --check
# With CUDA, which needs no toolkit here. The checks below lint what replaces it.
export CUDARC_CUDA_VERSION=${CUDARC_CUDA_VERSION:-13000}
cargo clippy --workspace --all-targets --features briquette/cuda,briquette-cli/cuda -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --features briquette/cuda,briquette-cli/cuda --no-deps --quiet

# Without CUDA, and the library as it is by default with a command without models.
cargo clippy --quiet --workspace --lib --bins -- -D warnings
cargo clippy --quiet -p briquette -p briquette-cli --no-default-features --features briquette/default -- -D warnings
# In the profile of the README's first command and of the Python package's tests, so that they share what is compiled.
# Apart, because the command has the feature `pytorch`.
cargo test --quiet --profile quick -p briquette-formats --no-default-features --test without_pytorch
cargo test --quiet --profile quick -p briquette-cli --no-default-features --test e2e light::

just dev size
just dev language
just dev deny
