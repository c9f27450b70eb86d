#!/usr/bin/env bash
# Make a Python environment and install a requirements file into it.
#
#     scripts/venv.sh DIR REQUIREMENTS [PACKAGE ...]
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
dir=$1 requirements=$2
shift 2
[ -x "$dir/bin/python" ] || python3 -m venv "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" "$@"
