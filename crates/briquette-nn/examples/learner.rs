//! Prunes and quantizes with burn's `Learner`: only the model is wrapped; the rest of the program stays the
//! same.
//!
//!     cargo run --release -p briquette-nn --example learner
#![allow(clippy::print_stdout)]

mod digits;

use briquette_core::Result;
use briquette_nn::{Compressing, Compression, Prune, Quantize, Quiet, Schedule};
use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};
use digits::{BATCH, Data, Net, STUDENT, accuracy};
use std::sync::Arc;

type Images = (Tensor<4>, Tensor<1, Int>);

impl Net {
    fn classify(&self, (images, labels): Images) -> ClassificationOutput {
        let output = self.forward(images);
        let loss = CrossEntropyLossConfig::new().init(&output.device()).forward(output.clone(), labels.clone());
        ClassificationOutput::new(loss, output, labels)
    }
}

impl TrainStep for Net {
    type Input = Images;
    type Output = ClassificationOutput;

    fn step(&self, item: Images) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(item);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Images;
    type Output = ClassificationOutput;

    fn step(&self, item: Images) -> ClassificationOutput {
        self.classify(item)
    }
}

#[derive(Clone)]
struct Rows(Arc<Data>);

impl Batcher<usize, Images> for Rows {
    fn batch(&self, rows: Vec<usize>, device: &Device) -> Images {
        self.0.batch(&rows, device)
    }
}

fn main() -> Result<()> {
    let (data, test) = (Arc::new(Data::open("train")?), Arc::new(Data::open("test")?));
    let device = digits::device(0);
    let loader = |data: &Arc<Data>, seed| {
        let rows = InMemDataset::new((0..data.len()).collect::<Vec<usize>>());
        DataLoaderBuilder::new(Rows(Arc::clone(data)))
            .batch_size(BATCH)
            .shuffle(seed)
            .set_device(device.clone())
            .build(rows)
    };
    let rules = Compression::new()
        .prune(Prune::new("*.weight", 0.8)?.globally().on(Schedule::cubic(23..115).every(10)))
        .quantize(Quantize::new("*.weight", "int8")?.on(Schedule::constant(115..usize::MAX)));
    let model = Compressing::new(Net::new(STUDENT, &device), rules)?; // the only change
    let directory = std::env::temp_dir().join("briquette-learner");
    let training = SupervisedTraining::new(&directory, loader(&data, 0), loader(&test, 1))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .renderer(Box::new(Quiet)) // burn's own prints every step
        .num_epochs(8);
    let result = training.launch(Learner::new(model, digits::adam(), 1e-3));
    let model = result.model.model.materialize();
    println!("80 % pruned and int8: {:.1} % accuracy", accuracy(&model, &test));
    Ok(())
}
