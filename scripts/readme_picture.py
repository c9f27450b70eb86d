#!/usr/bin/env python3
"""Compress MiniLM and save the top of its report page as docs/images/report.png, the picture in README.md.

usage: readme_picture.py [BRIQUETTE] [--report FILE]

    BRIQUETTE      the full build of the command (target/release/briquette)
    --report FILE  an existing report.html: no model is compressed

Needs `just fetch-minilm` and Chromium or Chrome (Debian and Ubuntu: `apt-get install chromium`). Run it from any folder.
The output directory out/12mb is replaced. The compression takes about two minutes on two cores.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/images/report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Of the page, in CSS pixels; the file has SCALE times as many in each direction.
WIDTH, HEIGHT, SCALE = 1000, 590, 1.5
MOST_BYTES = 200_000
OUT = "out/12mb"
COMPRESS = (
    f"compress models/minilm -o {OUT} --bytes 12.4MB --cast f16"
    " --data models/sentences.txt --eval models/held-out.txt --force --quiet"
)


def browser():
    """The path of the first browser that is installed."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    sys.exit(f"no browser found; expected one of {', '.join(BROWSERS)}: install chromium")


def photograph(report, picture):
    """Renders the top of the page `report` and writes it to `picture`."""
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "report.png"
        flags = [
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
            f"--window-size={WIDTH},{HEIGHT}",
            f"--force-device-scale-factor={SCALE}",
            f"--screenshot={made}",
        ]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium refuses to run as root with its sandbox.
        done = subprocess.run([browser(), *flags, report.as_uri()], capture_output=True, text=True, timeout=120)
        if not made.is_file():
            sys.exit(f"{report}: the browser wrote no picture:\n{done.stderr}")
        n_bytes = made.stat().st_size
        if n_bytes > MOST_BYTES:
            sys.exit(f"{picture}: the picture has {n_bytes} bytes, expected at most {MOST_BYTES}; reduce SCALE or HEIGHT")
        picture.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, picture)
    print(f"{picture.relative_to(ROOT)}: {n_bytes} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("briquette", nargs="?", type=pathlib.Path, default=ROOT / "target/release/briquette")
    parser.add_argument("--report", type=pathlib.Path)
    args = parser.parse_args()
    if not args.report:
        subprocess.run([args.briquette.resolve(), *COMPRESS.split()], cwd=ROOT, check=True)
    report = (args.report or ROOT / OUT / "report.html").resolve()
    if not report.is_file():
        sys.exit(f"{report}: no such file; give the report.html of an output")
    photograph(report, PICTURE)


if __name__ == "__main__":
    main()
