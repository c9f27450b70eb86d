//! Compares losses and their gradients with torch's; see fixtures/make_distill_goldens.py.

use briquette_distill::loss::{attention, embedding, hidden, labels, logits};
use briquette_formats::{Checkpoint, TensorSource};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::path::Path;

struct Golden(Checkpoint);

impl Golden {
    fn open() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/distill.safetensors");
        Self(Checkpoint::open(&path).unwrap())
    }

    fn bytes(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let index = self.0.tensors().iter().position(|info| info.name == name).unwrap();
        let info = &self.0.tensors()[index];
        let mut bytes = vec![0; info.n_bytes()];
        self.0.read(index, 0, &mut bytes).unwrap();
        (info.shape.0.clone(), bytes)
    }

    fn floats(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let (shape, bytes) = self.bytes(name);
        (shape, bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// Returns a constant on the plain device.
    fn input<const D: usize>(&self, name: &str) -> Tensor<D> {
        let (shape, values) = self.floats(&format!("in.{name}"));
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    fn labels(&self) -> Tensor<1, Int> {
        let (shape, bytes) = self.bytes("in.labels");
        let labels: Vec<i32> = bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
        Tensor::from_data(TensorData::new(labels, shape), &Device::flex())
    }

    fn padding(&self) -> Tensor<2, Bool> {
        let (shape, bytes) = self.bytes("in.padding");
        let padding: Vec<bool> = bytes.iter().map(|&byte| byte != 0).collect();
        Tensor::from_data(TensorData::new(padding, shape), &Device::flex())
    }

    /// Compares the loss of an input and its gradient with torch's.
    fn check<const D: usize>(&self, name: &str, of: &str, loss: impl Fn(Tensor<D>) -> Tensor<1>) {
        let input = Tensor::<D>::from_data(self.input::<D>(of).into_data(), &Device::flex().autodiff()).require_grad();
        let found = loss(input.clone());
        let value: f32 = found.clone().into_scalar();
        let expected = self.floats(&format!("{name}.loss")).1[0];
        assert!((value - expected).abs() <= 1e-5, "{name}: found {value}, expected {expected}");
        let grad: Vec<f32> = input.grad(&found.backward()).unwrap().into_data().try_into_vec_as().unwrap();
        for (at, (found, expected)) in grad.iter().zip(self.floats(&format!("{name}.grad")).1).enumerate() {
            assert!((found - expected).abs() <= 1e-5, "{name}: gradient {at} is {found}, expected {expected}");
        }
    }
}

#[test]
fn losses_on_logits_agree_with_torch() {
    let golden = Golden::open();
    let (teacher, truth) = (|| golden.input::<2>("teacher_scores"), golden.labels());
    golden.check("kl", "scores", |x| logits::kl(x, teacher(), 4.0));
    golden.check("jensen_shannon", "scores", |x| logits::jensen_shannon(x, teacher(), 4.0, 0.5));
    golden.check("jensen_shannon_skewed", "scores", |x| logits::jensen_shannon(x, teacher(), 4.0, 0.1));
    golden.check("kl", "scores", |x| logits::jensen_shannon(x, teacher(), 4.0, 0.0));
    golden.check("reverse_kl", "scores", |x| logits::jensen_shannon(x, teacher(), 4.0, 1.0));
    golden.check("hard", "scores", |x| labels::cross_entropy(x, truth.clone(), 0.0));
    golden.check("smoothed", "scores", |x| labels::cross_entropy(x, truth.clone(), 0.1));
}

#[test]
fn losses_on_hidden_states_agree_with_torch() {
    let golden = Golden::open();
    let (teacher, padding) = (|| golden.input::<3>("teacher_states"), || Some(golden.padding()));
    golden.check("hidden_mse", "states", |x| hidden::mse(x, teacher(), None));
    golden.check("hidden_mse_padded", "states", |x| hidden::mse(x, teacher(), padding()));
    golden.check("hidden_cosine", "states", |x| hidden::cosine(x, teacher(), padding()));
    golden.check::<2>("projected", "projection", |x| {
        let projected = golden.input::<3>("states").matmul(x.unsqueeze::<3>());
        hidden::mse(projected, golden.input("wide_states"), None)
    });
}

#[test]
fn losses_on_attention_agree_with_torch() {
    let golden = Golden::open();
    let padding = || Some(golden.padding());
    golden.check("maps", "map", |x| attention::maps(x, golden.input("teacher_map"), padding()));
    golden.check("values", "states", |x| attention::values(x, golden.input("wide_states"), 2, padding()));
}

#[test]
fn losses_on_embeddings_agree_with_torch() {
    let golden = Golden::open();
    let teacher = || golden.input::<2>("teacher_embedding");
    golden.check("embedding_cosine", "embedding", |x| embedding::cosine(x, teacher()));
    golden.check("embedding_similarity", "embedding", |x| embedding::similarity(x, teacher()));
}
