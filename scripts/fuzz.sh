#!/usr/bin/env bash
# Fuzz each reader with libFuzzer, the riskiest readers first.
#
#     scripts/fuzz.sh [SECONDS] [FLAG ...]
#
# Each target runs for SECONDS (60). FLAGs go to libFuzzer. Installs cargo-fuzz if it is missing.
# With BRIQUETTE_FUZZ_LIGHT=1, targets that need burn are left out, and the build takes a few minutes less.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift $(( $# < 1 ? $# : 1 ))
command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz
features=(--features model)
[ -z "${BRIQUETTE_FUZZ_LIGHT:-}" ] || features=()
cargo fuzz build --sanitizer none "${features[@]}"

heavy="chat_template tokenizer arrays training_checkpoint jsonl"
first="chat_template tokenizer arrays pickle sensitivity statistics journal training_checkpoint jsonl sums"
others=$(cargo fuzz list | grep -vxF "$(tr ' ' '\n' <<< "$first")")
for target in $first $others; do
  [ -z "${BRIQUETTE_FUZZ_LIGHT:-}" ] || ! grep -qw "$target" <<< "$heavy" || continue
  case $target in
    chat_template|tokenizer) limits=(-timeout=15 -rss_limit_mb=1024) ;;
    *) limits=(-timeout=2 -rss_limit_mb=256) ;;
  esac
  echo "== $target"
  mkdir -p "fuzz/corpus/$target"
  cargo fuzz run --sanitizer none "${features[@]}" "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="$seconds" "${limits[@]}" -max_len=16384 -print_final_stats=1 "$@" 2>&1 | tail -n 12
done
