//! Trains a digits student, rounds it to int4 after training, and with rounding in training: three epochs more.
//!
//!     cargo run --release -p briquette-nn --example quantization_aware [SEEDS]
#![allow(clippy::print_stdout)]

mod digits;

use briquette_core::Result;
use briquette_nn::{Compression, Quantize, Schedule};
use digits::{Data, Net, STUDENT, accuracy, mean};

fn main() -> Result<()> {
    let (data, test) = (Data::open("train")?, Data::open("test")?);
    for scheme in ["int4", "int3"] {
        let mut found = [Vec::new(), Vec::new(), Vec::new()];
        for seed in 0..digits::n_seeds() {
            let device = digits::device(seed);
            let plain = digits::train_plain(Net::new(STUDENT, &device), &data, 10, seed, &device)?;
            let after = Compression::new().quantize(Quantize::new("*.weight", scheme)?).attach(plain.clone())?;
            let every_step = Schedule::constant(0..usize::MAX);
            let rules = Compression::new().quantize(Quantize::new("*.weight", scheme)?.on(every_step));
            let model = rules.attach(plain.clone())?;
            let aware = digits::train(model, &data, 3, seed + 100, &device, |model, t| rules.refresh(model, t))?;
            for (found, model) in found.iter_mut().zip([&plain, &after, &aware]) {
                found.push(accuracy(model, &test));
            }
        }
        let [plain, after, aware] = found.map(|found| mean(&found));
        println!(
            "{scheme} per channel: f32 {plain:.2} %, rounded after training {after:.2} %, in training {aware:.2} %"
        );
    }
    Ok(())
}
