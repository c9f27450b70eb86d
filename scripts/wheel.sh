#!/usr/bin/env bash
# Build the Python wheel into TARGET/wheels, install it into a new environment and run it: wheel.sh TARGET [MATURIN FLAGS]
set -euo pipefail
target=$1
shift
work=$(realpath -m "$target/wheel-check")
rm -rf "$target/wheels" "$work"
python3 -m venv "$work"
"$work/bin/python" -m pip install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
"$work/bin/maturin" build --release --out "$target/wheels" "$@"
python3 -m venv --clear "$work"
"$work/bin/python" -m pip install --quiet --disable-pip-version-check "$target"/wheels/*.whl
"$work/bin/briquette" --version
"$work/bin/briquette" compress fixtures/digits -o "$work/digits" --quantize int8 --storage entropy --quiet
cd "$work" && bin/python -c 'import briquette; print(len(briquette.load("digits")), "tensors loaded")'
