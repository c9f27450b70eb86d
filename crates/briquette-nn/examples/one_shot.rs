//! Trains a digits teacher, prunes it in one shot, and fine-tunes it for three epochs under the mask.
//!
//!     cargo run --release -p briquette-nn --example one_shot [SEEDS [FIRST]]
#![allow(clippy::print_stdout)]

mod digits;

use briquette_core::Result;
use briquette_nn::{Compression, Prune};
use digits::{BATCH, Data, FALLING, LEARNING_RATE, Net, STEADY, TEACHER, accuracy, mean};
use std::time::Instant;

fn main() -> Result<()> {
    let (data, test) = (Data::open("train")?, Data::open("test")?);
    let (mut plain, mut pruned) = (Vec::new(), [0.8, 0.9].map(|sparsity| (sparsity, Vec::new(), Vec::new())));
    for seed in digits::seeds() {
        let device = digits::device(seed);
        let teacher = digits::train_plain(Net::new(TEACHER, &device), &data, 12, seed, STEADY)?;
        plain.push(accuracy(&teacher, &test));
        for (sparsity, at_once, tuned) in &mut pruned {
            let rules = Compression::new().prune(Prune::new("*.weight", *sparsity)?.globally());
            let model = rules.attach(teacher.clone())?;
            at_once.push(accuracy(&model, &test));
            tuned.push(accuracy(&digits::train_plain(model, &data, 3, seed + 100, FALLING)?, &test));
        }
        println!("seed {seed}: {plain:.1?} {pruned:.1?}");
        if seed == digits::seeds().start {
            time_steps(&teacher, &data)?;
        }
    }
    println!("teacher: {:.2} % accuracy", mean(&plain));
    for (sparsity, at_once, tuned) in &pruned {
        let (at_once, tuned) = (mean(at_once), mean(tuned));
        println!(
            "{:.0} % pruned globally: {at_once:.2} % accuracy in one shot, {tuned:.2} % after 3 epochs",
            100.0 * sparsity
        );
    }
    Ok(())
}

/// Measures the median time of a training step with and without masks, alternating.
fn time_steps(teacher: &Net, data: &Data) -> Result<()> {
    let rules = Compression::new().prune(Prune::new("*.weight", 0.9)?.globally());
    let mut sides = [teacher.clone(), rules.attach(teacher.clone())?].map(|model| (model, digits::adam(), Vec::new()));
    let rows: Vec<usize> = (0..BATCH).collect();
    for _ in 0..60 {
        for (model, optimizer, times) in &mut sides {
            let start = Instant::now();
            *model = digits::step(model.clone(), optimizer, data, &rows, LEARNING_RATE);
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let [plain, masked] = sides.map(|(_, _, mut times)| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!("a training step: {plain:.1} ms without masks, {masked:.1} ms with ({:.2}x)", masked / plain);
    Ok(())
}
