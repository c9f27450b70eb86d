//! Units of burn modules: masked in training, and removed afterwards.

use briquette_graph::builder::GraphBuilder;
use briquette_graph::coupling::{GroupKind, UnitId, couplings};
use briquette_graph::op::{ConvSettings, ElementFunction, Primitive};
use briquette_graph::{Graph, Headers};
use briquette_nn::{Compression, NameMap, shrink, tensor_infos, unit_masks, unused_units};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor, activation::relu};
use std::collections::BTreeSet;

#[derive(Module, Debug)]
struct Net {
    first: Conv2d,
    norm: BatchNorm,
    second: Conv2d,
    hidden: Linear,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let conv = |channels| Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Same);
        Self {
            first: conv([1, 6]).init(device),
            norm: BatchNormConfig::new(6).init(device),
            second: conv([6, 4]).init(device),
            hidden: LinearConfig::new(4 * 5 * 5, 12).init(device),
            head: LinearConfig::new(12, 3).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = relu(self.norm.forward(self.first.forward(x)));
        let x = relu(self.second.forward(x));
        let [batch, ..] = x.dims();
        let x = x.reshape([batch as i64, -1]);
        self.head.forward(relu(self.hidden.forward(x)))
    }
}

fn graph(net: &Net, names: &NameMap) -> Graph {
    let infos = tensor_infos(net, names).unwrap();
    let headers = Headers::new(&infos, None);
    let mut to = GraphBuilder::new("", &headers);
    let x = to.input("x", &[1, 1, 5, 5]);
    let settings = || ConvSettings::square(1, 1);
    let x = to.conv("first", x, settings()).unwrap();
    let x = to.batch_norm("norm", x, 1e-5).unwrap();
    let x = to.function("relu", ElementFunction::Relu, x);
    let x = to.conv("second", x, settings()).unwrap();
    let x = to.function("relu2", ElementFunction::Relu, x);
    let x = to.node("flat", Primitive::Reshape(vec![1, 100]), &[x.into()]);
    let x = to.linear("hidden", x).unwrap();
    let x = to.function("relu3", ElementFunction::Relu, x);
    let x = to.linear("head", x).unwrap();
    to.finish(&[x])
}

/// The first two units of each group.
fn first_two(graph: &Graph) -> BTreeSet<UnitId> {
    let found = couplings(graph, &graph.lower().unwrap()).unwrap();
    assert_eq!(found.kinds, [GroupKind::Channels, GroupKind::Channels, GroupKind::FeedForward]);
    (0..found.groups.len()).flat_map(|group| (0..2).map(move |unit| UnitId { group, unit })).collect()
}

#[test]
fn masks_of_units_hold_in_training_and_become_smaller_shapes() {
    let device = Device::flex().autodiff();
    let names = NameMap::torch();
    let net = Net::new(&device);
    let graph = graph(&net, &names);
    assert!(unused_units(&net, &graph, &names).unwrap().is_empty());
    let units = first_two(&graph);
    let rules = Compression::of(&unit_masks(&net, &graph, &names, &units).unwrap()).unwrap();
    let mut net = rules.attach(net).unwrap();
    let mut optimizer = AdamConfig::new().init();
    for _ in 0..5 {
        let x = Tensor::random([4, 1, 5, 5], Distribution::Normal(0.0, 1.0), &device);
        let loss = (net.forward(x) - 1.0).powf_scalar(2.0).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-2, net, grads);
    }
    assert_eq!(unused_units(&net, &graph, &names).unwrap(), units);
    let error = shrink(net.clone(), &graph, &names, &units).unwrap_err();
    assert!(error.to_string().contains("call materialize() first"), "{error}");

    let plain = net.materialize();
    let x = Tensor::random([2, 1, 5, 5], Distribution::Normal(0.0, 1.0), &Device::flex());
    let before = plain.valid().forward(x.clone());
    let small = shrink(plain, &graph, &names, &units).unwrap();
    assert_eq!(small.first.weight.dims(), [4, 1, 3, 3]);
    assert_eq!(small.norm.gamma.dims(), [4]);
    assert_eq!((small.second.weight.dims(), small.hidden.weight.dims()), ([2, 4, 3, 3], [50, 10]));
    assert_eq!(small.head.weight.dims(), [10, 3]);
    assert!((before - small.valid().forward(x)).abs().max().into_scalar::<f32>() < 1e-5);
    // The smaller module trains on.
    let x = Tensor::random([4, 1, 5, 5], Distribution::Normal(0.0, 1.0), &device);
    let grads = GradientsParams::from_grads(small.forward(x).powf_scalar(2.0).mean().backward(), &small);
    let trained = AdamConfig::new().init().step(1e-2, small.clone(), grads);
    assert_ne!(trained.head.weight.val().into_data(), small.head.weight.val().into_data());
}

#[test]
fn units_and_graphs_that_do_not_fit_are_refused() {
    let device = Device::flex();
    let names = NameMap::torch();
    let net = Net::new(&device);
    let graph = graph(&net, &names);
    let unknown = BTreeSet::from([UnitId { group: 0, unit: 99 }]);
    let error = unit_masks(&net, &graph, &names, &unknown).unwrap_err();
    assert!(error.to_string().contains("found unit 99 of group 0"), "{error}");
    let all = (0..6).map(|unit| UnitId { group: 0, unit }).collect();
    let error = shrink(net.clone(), &graph, &names, &all).unwrap_err();
    assert!(error.to_string().contains("nothing is left of"), "{error}");
    let other = Net { head: LinearConfig::new(12, 5).init(&device), ..net };
    let error = shrink(other, &graph, &names, &BTreeSet::new()).unwrap_err();
    assert!(error.to_string().contains("head.weight: has shape [5, 12], and the graph has [3, 12]"), "{error}");
}
