#!/usr/bin/env bash
# Check licences, sources and duplicate versions of dependencies, and advisories if their database can be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v cargo-deny >/dev/null || cargo install --quiet --locked cargo-deny
cargo fetch --quiet --locked
cargo deny --log-level error --offline check bans licenses sources
if cargo deny --log-level error fetch db 2>/dev/null; then
  cargo deny --log-level error check advisories
else
  echo "advisories: not checked, their database cannot be reached"
fi
