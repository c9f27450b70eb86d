//! Prunes a CNN to 90 % sparsity while it trains on digits, with three lines more than plain training.
//!
//!     cargo run --release -p briquette-nn --example prune_while_training
#![allow(clippy::print_stdout)]

mod digits;

use briquette_core::Result;
use briquette_nn::{Compression, Export, Prune, Schedule, Sparsity, sparsity};
use burn::module::Module;
use digits::{Data, FALLING, Net, STUDENT, accuracy};

fn main() -> Result<()> {
    let (data, test) = (Data::open("train")?, Data::open("test")?);
    let device = digits::device(0);
    let plain = digits::train_plain(Net::new(STUDENT, &device), &data, 10, 0, FALLING)?;
    println!("plain             {:.1} % accuracy", accuracy(&plain, &test));

    let device = digits::device(0);
    let schedule = Schedule::cubic(23..138).every(10);
    let rules = Compression::new().prune(Prune::new("*.weight", 0.9)?.globally().on(schedule)); // 1
    let model = rules.attach(Net::new(STUDENT, &device))?; // 2
    let model = digits::train(model, &data, 10, 0, FALLING, |model, t| {
        if t % 46 == 0 {
            println!("  step {t:3}: {:4.1} % zeros", 100.0 * weights(&model)?.ratio());
        }
        rules.refresh(model, t) // 3
    })?;
    println!("pruned to 90 %    {:.1} % accuracy", accuracy(&model, &test));

    let out = std::env::temp_dir().join("briquette-pruned-digits");
    let exported = Export::to(&out).replace().write(&model)?;
    println!("written           {} of {} bytes, to {}", exported.n_bytes, 4 * model.num_params(), out.display());
    let model = model.materialize();
    println!(
        "materialized      {:.1} % accuracy, {:.1} % zeros",
        accuracy(&model, &test),
        100.0 * weights(&model)?.ratio()
    );
    Ok(())
}

fn weights(model: &Net) -> Result<Sparsity> {
    Ok(sparsity(model)?.into_iter().filter(|(path, _)| path.ends_with("weight")).map(|(_, found)| found).sum())
}
