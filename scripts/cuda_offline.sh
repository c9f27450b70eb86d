#!/usr/bin/env bash
# Compile every GPU kernel with NVIDIA's compilers from the package index. Needs no GPU.
#
#     scripts/cuda_offline.sh [NAME [GENERATIONS]]
#
# NAME selects kernels, GENERATIONS compute capabilities: 75,90 (default: all). Exit code 77: the compilers cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

nvidia=bench-out/cuda
if [ ! -f $nvidia/complete ]; then
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --only-binary :all: --no-deps \
    --upgrade --target $nvidia nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-nvcc-cu12==12.9.86 \
    nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-cccl-cu12==12.9.27 || {
    echo "NVIDIA's compilers cannot be fetched from the package index: no kernel was compiled" >&2
    exit 77
  }
  touch $nvidia/complete
fi
# As `just cuda test` builds, so that both share what they compile.
cargo build --quiet --workspace --features briquette-cli/cuda --example cuda_offline
"${CARGO_TARGET_DIR:-target}/debug/examples/cuda_offline" $nvidia "${1:-}" "${2:-}"
