//! Compares int4 after training with three epochs of quantization-aware training, on a digits student.
//!
//!     cargo run --release -p briquette-nn --example quantization_aware [SEEDS [FIRST]]
#![allow(clippy::print_stdout)]

mod digits;

use briquette_core::Result;
use briquette_nn::{Compression, Quantize, Schedule};
use digits::{Data, FALLING, Net, STEADY, STUDENT, accuracy, mean};

fn main() -> Result<()> {
    let (data, test) = (Data::open("train")?, Data::open("test")?);
    for scheme in ["int4", "int3"] {
        let mut found = [const { Vec::new() }; 5];
        for seed in digits::seeds() {
            let device = digits::device(seed);
            let plain = digits::train_plain(Net::new(STUDENT, &device), &data, 10, seed, STEADY)?;
            let round = Compression::new().quantize(Quantize::new("*.weight", scheme)?);
            let after = round.attach(plain.clone())?;
            let every_step = Schedule::constant(0..usize::MAX);
            let rules = Compression::new().quantize(Quantize::new("*.weight", scheme)?.on(every_step));
            let model = rules.attach(plain.clone())?;
            let aware = digits::train(model, &data, 3, seed + 100, FALLING, |model, t| rules.refresh(model, t))?;
            // Three more epochs help by themselves, so the plain model gets them too.
            let longer = digits::train_plain(plain.clone(), &data, 3, seed + 100, FALLING)?;
            let longer_after = round.attach(longer.clone())?;
            for (found, model) in found.iter_mut().zip([&plain, &after, &longer, &longer_after, &aware]) {
                found.push(accuracy(model, &test));
            }
        }
        let [plain, after, longer, longer_after, aware] = found.map(|found| mean(&found));
        println!("{scheme} per channel: f32 {plain:.2} %, quantized after training {after:.2} %");
        println!(
            "  three more epochs: f32 {longer:.2} %, quantized after {longer_after:.2} %, in training {aware:.2} %"
        );
    }
    Ok(())
}
