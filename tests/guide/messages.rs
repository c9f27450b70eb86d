//! Checks the messages that the troubleshooting page quotes against the messages that commands print.

use super::{GUIDE, bash, clone_of_inputs, read};
use crate::weights::{Tensor, safetensors_of};

/// Commands that fail or warn; each prints at least one message of the page.
const COMMANDS: &[&str] = &[
    "briquette inspect fixtures/roles",
    "briquette generate fixtures/models/bert-tiny --prompt hello",
    "briquette compress fixtures/digits out/x --quantize int8",
    "briquette inspect missing",
    "briquette inspect pointer.safetensors",
    "briquette inspect page.safetensors",
    "briquette inspect model.gguf",
    "briquette inspect cut.safetensors",
    "briquette inspect fixtures/pt/evil.pt",
    "briquette compress fixtures/pt/ema.pt -o out/x --key emma --quantize int8",
    "briquette export damaged --to dense -o out/x",
    "briquette verify fixtures/digits",
    "briquette compress nan.safetensors -o out/x --quantize int8",
    "briquette compress large.safetensors -o out/x --cast f16",
    "briquette compress out/digits -o out/x --quantize int8",
    "briquette plan fixtures/digits --quantize int8 --include 'encoder.**'",
    "briquette plan unknown.safetensors --quantize int8",
    "briquette eval turned --data fixtures/models/sentences.txt --layout burn",
    "briquette plan fixtures/digits --quantize int4-g100",
    "briquette eval xlnet --data fixtures/models/sentences.txt",
    "briquette eval fixtures/families/vit-base --data fixtures/models/images",
    "briquette eval fixtures/families/convnext --data fixtures/models/images --size 8",
    "briquette eval alone/model.safetensors --data fixtures/models/sentences.txt",
    "CUDA_VISIBLE_DEVICES= briquette eval fixtures/digits --data fixtures/digits-data.safetensors --device cuda:0",
    "briquette eval fixtures/digits --data fixtures/models/sentences.txt",
    "briquette eval fixtures/models/bert-tiny --data fixtures/models/bert-tiny/config.json",
    "briquette plan fixtures/digits --quantize int4 --round gptq",
    "briquette plan fixtures/digits --quantize int4 --reconstruct signround",
    "briquette compress fixtures/digits -o out/x --prune 0.4 --prune-method wanda --statistics bert.stats.safetensors",
    "briquette eval fixtures/digits --data fixtures/digits-data.safetensors --memory-limit 10kB",
    "briquette eval fixtures/digits --data fixtures/digits-data.safetensors --memory-limit 190kB",
    "briquette eval fixtures/digits --data fixtures/digits-data.safetensors --memory-limit 900kB",
    "briquette eval fixtures/digits --data fixtures/digits-data.safetensors --memory-limit 2MB",
    "briquette eval wordy --data fixtures/models/sentences.txt --memory-limit 1MB",
    "briquette eval fixtures/families/vit --data fixtures/models/images --memory-limit 1MB",
    "briquette compress fixtures/digits -o out/x --quantize int8 --memory-limit 1MB",
    "briquette compress fixtures/digits -o out/x",
    "briquette compress fixtures/digits -o out/x --quantize int9",
    "briquette run misspelled.toml",
    "briquette compress fixtures/digits -o out/x --bytes 20kB --quantize int8",
    "briquette compress fixtures/digits -o out/digits --quantize int8",
    "briquette compress fixtures/digits -o mine --quantize int8 --force",
    "briquette compress fixtures/digits -o fixtures/digits/out --quantize int8",
    "briquette run jobs.toml --quiet; briquette run jobs.toml",
    "briquette compress fixtures/digits -o out/x --bytes 1kB",
    "briquette compress fixtures/models/bert-tiny -o out/x --min cosine=0.9999999 --eval fixtures/models/sentences.txt",
    "briquette run gate.toml",
    "briquette compress fixtures/digits -o out/x --quantize int8 --format compressed-tensors",
    "(ulimit -f 20; briquette compress fixtures/digits -o out/x --prune 0.1)",
    "briquette export out/digits --to dense -o out/dense",
];

/// A message of the page that only other builds print.
const OF_OTHER_BUILDS: &str =
    if cfg!(feature = "cuda") { "this build cannot run models" } else { "but there are 0 CUDA devices" };

/// Makes the files that the commands read.
const PREPARE: &str = r#"
set -euo pipefail
cp -r fixtures/models/bert-tiny wordy
printf '%200000s' >> wordy/tokenizer.json
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n' > pointer.safetensors
echo '<!DOCTYPE html><html></html>' > page.safetensors
printf 'GGUF\3\0\0\0aaaaaaaaaaaaaaaaaaaaaaaa' > model.gguf
head -c 3000 fixtures/digits/model.safetensors > cut.safetensors
briquette compress fixtures/digits -o out/digits --quantize int8 --quiet
cp -r out/digits damaged
printf 'x' | dd of=damaged/model.briquette.safetensors bs=1 seek=20000 conv=notrunc status=none
cp -r fixtures/models/bert-tiny turned
cp -r fixtures/models/bert-tiny xlnet
sed -i 's/"bert"/"xlnet"/' xlnet/config.json
mkdir alone mine
cp fixtures/models/bert-tiny/model.safetensors alone/
echo 'keep this' > mine/notes.txt
briquette calibrate fixtures/models/bert-tiny --data fixtures/models/sentences.txt -o bert.stats.safetensors --quiet
sed 's/\.\.\///; s/sparsity/sparsty/' configs/digits-small.toml > misspelled.toml
sed 's/\.\.\///; s/accuracy = 0.95/accuracy = 0.9999/' configs/digits-gate.toml > gate.toml
printf '[base]\nmodel.path = "fixtures/digits"\noutput.path = "out/jobs-{stage.0.sparsity}"\n[[base.stage]]\nkind = "prune"\n[matrix]\n"stage.0.sparsity" = [0.1, 0.2]\n' > jobs.toml
"#;

/// Returns the first cell of each table row that is a code span.
fn quoted(page: &str) -> Vec<String> {
    let cell = |line: &str| Some(line.strip_prefix("| `")?.split_once("` |")?.0.to_string());
    page.lines().filter_map(cell).collect()
}

#[test]
fn commands_print_every_message_of_the_page() {
    let sandbox = clone_of_inputs();
    let with = |value: f32| safetensors_of(&[Tensor::f32("a.weight", &[2, 2], [1.0, value, 3.0, 4.0])]);
    sandbox.write("nan.safetensors", with(f32::NAN));
    sandbox.write("large.safetensors", with(1e6));
    sandbox.write("unknown.safetensors", safetensors_of(&[Tensor::random("text_projection", &[16, 16], 1)]));
    let prepared = bash(&sandbox, PREPARE).output().unwrap();
    assert!(prepared.status.success(), "{}", String::from_utf8_lossy(&prepared.stderr));

    let messages = quoted(&read(&format!("{GUIDE}/troubleshooting.md")));
    assert!(messages.len() > 30, "{messages:?}");
    let mut missing: Vec<&String> = messages.iter().filter(|message| *message != OF_OTHER_BUILDS).collect();
    for command in COMMANDS {
        let output = bash(&sandbox, command).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).replace('\n', " ");
        let is_printed = |message: &&String| text.contains(message.as_str());
        assert!(messages.iter().any(|message| is_printed(&message)), "{command} prints no message of the page: {text}");
        missing.retain(|message| !is_printed(message));
    }
    assert!(missing.is_empty(), "no command prints {missing:?}");
    assert!(messages.iter().any(|message| message == OF_OTHER_BUILDS), "the page lacks {OF_OTHER_BUILDS}");
}
