#!/usr/bin/env bash
# Make bench-out/cuda-pack.tar.xz: cuda_check, MiniLM in int8 and the scripts, at most 40 MB. Needs models/minilm.
#
#     scripts/cuda_pack.sh BRIQUETTE
set -euo pipefail
briquette=$(realpath "$1")
cd "$(dirname "$0")/.."

pack=bench-out/cuda-pack target=${CARGO_TARGET_DIR:-target}/cuda
# Without link-time optimisation, which would take longer than the rest of the build.
CARGO_PROFILE_RELEASE_LTO=off CUDARC_CUDA_VERSION=${CUDARC_CUDA_VERSION:-13000} \
  cargo build --release --quiet -p briquette --features cuda --example cuda_check --target-dir "$target"
rm -rf $pack
mkdir -p $pack
strip -o $pack/cuda_check "$target/release/examples/cuda_check"
"$briquette" compress models/minilm -o $pack/minilm-int8 --quantize int8-dynamic --quiet
cp bench/cuda_check.py bench/peers/cuda_torch.py $pack/
tar -C bench-out -cf - cuda-pack | xz --x86 --lzma2=preset=9 > bench-out/cuda-pack.tar.xz

bytes=$(stat -c %s bench-out/cuda-pack.tar.xz)
echo "bench-out/cuda-pack.tar.xz: $bytes bytes; unpack it there and run python3 cuda-pack/cuda_check.py"
if [ "$bytes" -gt 40000000 ]; then
  echo "cuda_pack.sh: expected at most 40 MB" >&2
  exit 1
fi
