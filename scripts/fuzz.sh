#!/usr/bin/env bash
# Fuzz each reader with libFuzzer, the riskiest readers first.
#
#     scripts/fuzz.sh [SECONDS] [FLAG ...]
#
# Each target runs for SECONDS (60). FLAGs go to libFuzzer. Installs cargo-fuzz if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift $(( $# < 1 ? $# : 1 ))
command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz
cargo fuzz build --sanitizer none

first="chat_template tokenizer arrays pickle sensitivity statistics journal training_checkpoint jsonl sums"
others=$(cargo fuzz list | grep -vxF "$(tr ' ' '\n' <<< "$first")")
for target in $first $others; do
  case $target in
    chat_template|tokenizer) limits=(-timeout=15 -rss_limit_mb=1024) ;;
    *) limits=(-timeout=2 -rss_limit_mb=256) ;;
  esac
  echo "== $target"
  mkdir -p "fuzz/corpus/$target"
  cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="$seconds" "${limits[@]}" -max_len=16384 -print_final_stats=1 "$@" 2>&1 | tail -n 12
done
