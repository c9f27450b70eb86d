#!/usr/bin/env bash
# Compare the statistics of `briquette calibrate` with torch hooks, on MiniLM, SmolLM2 and a ResNet-18 with random weights.
#
#     scripts/check_statistics.sh BRIQUETTE PYTHON
#
# PYTHON has bench/peers/requirements.txt installed. Writes into bench-out/hooks.
set -euo pipefail
briquette=$(realpath "$1") python=$(realpath -s "$2")
cd "$(dirname "$0")/.."
work=bench-out/hooks
mkdir -p $work

compare() { # MODEL DATA NAME [FLAG ...]
  "$briquette" calibrate "$1" --data "$2" -o "$work/$3.safetensors" --samples 1000000 --force --quiet "${@:4}"
  "$python" bench/peers/hooks.py "$1" "$work/$3.safetensors" --data "$2" --gram
}

compare models/minilm bench/peers/sentences.txt minilm --gram
head -c 9000 models/brown/calibrate.txt > $work/brown.txt
compare models/smollm2 $work/brown.txt smollm2
"$python" bench/peers/hooks.py --make-resnet18 $work/resnet18
compare $work/resnet18/model $work/resnet18/images.safetensors resnet18 --arch resnet18
