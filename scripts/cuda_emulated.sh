#!/usr/bin/env bash
# Run cuda_check with small shapes on an emulated CUDA device. Needs models/minilm.
#
#     scripts/cuda_emulated.sh [FLAG ...]
#
# FLAGs go to cuda_check. Runs for compute capabilities 8.0 and 7.5, then checks the error for too little memory.
set -euo pipefail
cd "$(dirname "$0")/.."

export CUDARC_CUDA_VERSION=${CUDARC_CUDA_VERSION:-13000} CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=none
target=$(realpath -m "${CARGO_TARGET_DIR:-target}/cuda")
cargo build --quiet --target-dir "$target" -p briquette-emulator
cargo build --quiet --target-dir "$target" -p briquette -p briquette-cli --features cuda --example cuda_check --bin briquette

minilm=$PWD/bench-out/minilm-int8 lines=$PWD/bench/peers/sentences.txt
"$target/debug/briquette" compress models/minilm -o "$minilm" --quantize int8-dynamic --quiet --force

mkdir -p "$target/emulated"
cd "$target/emulated"
for name in libcuda libnvrtc; do ln -sf ../debug/libbriquette_emulator.so $name.so; done
# Each tensor gets its own allocation, so that the emulator finds accesses beyond its end.
printf '[memory]\npersistent_memory = "enforced"\n' > cubecl.toml
export LD_LIBRARY_PATH=$PWD CUDA_PATH=$PWD BRIQUETTE_EMULATED_CACHE=$PWD/kernels CUBECL_AUTOTUNE_LEVEL=minimal
for capability in 80 75; do
  echo "== compute capability $capability"
  BRIQUETTE_EMULATED_CAPABILITY=$capability "$target/debug/examples/cuda_check" "$minilm" --quick "$@"
done

echo "== too little memory"
said=$(BRIQUETTE_EMULATED_MEMORY=15000000 "$target/debug/briquette" eval "$minilm" --data "$lines" --device cuda:0 2>&1) && code=0 || code=$?
echo "$said"
[ "$code" = 5 ] && [[ $said == "briquette: error: cuda:0 is out of memory;"* ]]
