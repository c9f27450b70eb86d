//! Refits of the blocks around removed ones.

use super::{Decoder, Encoder, all};
use crate::families::models::with;

#[test]
fn blocks_before_a_removed_one_take_up_what_it_did() {
    // Sums, sums of weights `[in, out]`, norms after the sum, and norms before it.
    let models = [
        ("llama", Decoder),
        ("gpt2", Decoder),
        ("bert", Encoder),
        ("opt", Decoder),
        ("olmo2", Decoder),
        ("gemma2", Decoder),
    ];
    all(
        &models,
        |(fixture, _)| fixture.to_string(),
        |(fixture, kind)| {
            let sandbox = with(fixture);
            let metrics = |refit: bool| {
                sandbox.write(
                    "recipe.toml",
                    format!(
                        "[model]\npath = \"m\"\n[output]\npath = \"out\"\n[calibration]\ndata = \"data.txt\"\nmax_length = 16\n[data]\n\
                         eval = \"data.txt\"\nmax_length = 16\n[[stage]]\nkind = \"shrink\"\ndrop_blocks = [1]\nrefit = {refit}\n\
                         [[stage]]\nkind = \"evaluate\"\n"
                    ),
                );
                let report = sandbox.json("run recipe.toml --force");
                assert_eq!(report["shrunk"][0]["n_refitted_blocks"].as_u64(), Some(u64::from(refit)), "{fixture}");
                let metric = if *kind == Decoder { "kl" } else { "cosine" };
                report["evaluation"]["metrics"][metric].as_f64().unwrap()
            };
            let (plain, refitted) = (metrics(false), metrics(true));
            let is_better =
                if *kind == Decoder { refitted < 0.9 * plain } else { 1.0 - refitted < 0.9 * (1.0 - plain) };
            assert!(is_better, "{fixture}: {plain} without and {refitted} with the refit");
        },
    );
}
