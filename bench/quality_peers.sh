#!/usr/bin/env bash
# Measure the perplexity of SmolLM2 compressed by llm-compressor: Wanda, SparseGPT, round to nearest and GPTQ.
#
#     bench/quality_peers.sh PYTHON [FLAG ...]
#
# PYTHON has bench/peers/requirements-llmcompressor.txt installed. FLAGs go to bench/peers/quality.py.
set -euo pipefail
python=$(realpath -s "$1")
shift
cd "$(dirname "$0")/.."

out=bench-out/quality
for method in dense magnitude50 wanda50 sparsegpt50 nearest4 nearest3 gptq4 gptq3; do
  "$python" bench/peers/quality.py models/smollm2 models/brown $out --method $method "$@" 2>$out.log || { tail -n 5 $out.log; exit 1; }
done
"$python" bench/peers/quality.py --table $out
