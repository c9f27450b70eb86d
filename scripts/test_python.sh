#!/usr/bin/env bash
# Test the Python package against the command: test_python.sh TARGET [PYTEST FLAGS]
set -euo pipefail
target=$1
shift
cargo build --profile quick --quiet -p briquette-cli --no-default-features
[ -x "$target/python/bin/python" ] || python3 -m venv "$target/python"
"$target/python/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade numpy safetensors xxhash pytest
BRIQUETTE="$target/quick/briquette" PYTHONDONTWRITEBYTECODE=1 \
    "$target/python/bin/python" -m pytest -q -p no:cacheprovider "$@"
