//! Runs of any network block by block agree with runs of the whole network.

use briquette_core::{DType, InputStats};
use briquette_eval::evaluate::{RunOutputs, run};
use briquette_eval::layerwise::{Room, run_offloaded};
use briquette_eval::{Gathering, Samples, calibrate, curvatures};
use briquette_formats::{Checkpoint, safetensors};
use briquette_models::batches::Batching;
use briquette_models::data::{Data, DataSpec};
use briquette_models::graph_net::RunInputs;
use briquette_models::{Arch, BlockState, GraphNet, LoadedModel};
use briquette_nn::{Observing, Probe, load_into, observe};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Image networks of the fixtures, with the height and width of their images.
const IMAGE_NETWORKS: [(&str, [usize; 2]); 6] = [
    ("vit", [16, 16]),
    ("mobilenet_v2", [32, 40]),
    ("convnext", [32, 32]),
    ("densenet", [32, 40]),
    ("efficientnet_lite", [32, 40]),
    ("vgg", [32, 40]),
];

const N_IMAGES: usize = 11;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families").join(name)
}

/// Returns images that look like noise, `[n, 3, height, width]`.
fn pixels([height, width]: [usize; 2]) -> Vec<f32> {
    let n = (N_IMAGES * 3 * height * width) as u64;
    (0..n).map(|at| briquette_core::random::uniform(7, at) * 2.0 - 1.0).collect()
}

/// Writes images to a file, and returns the data.
fn data(directory: &Path, extents: [usize; 2]) -> (Data, DataSpec) {
    let bytes = pixels(extents).iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = vec![N_IMAGES, 3, extents[0], extents[1]];
    let tensors = BTreeMap::from([("x".to_string(), (DType::F32, shape, bytes))]);
    let path = directory.join("images.safetensors");
    std::fs::write(&path, safetensors::to_file(&tensors).unwrap()).unwrap();
    let spec = DataSpec { path, ..DataSpec::default() };
    (spec.open(briquette_models::ModelTask::Classifier).unwrap(), spec)
}

/// Runs batches of 8 through the whole network, and returns the statistics.
fn of_whole(checkpoint: &Checkpoint, extents: [usize; 2]) -> BTreeMap<String, InputStats> {
    let device = Device::flex();
    let (network, names) = GraphNet::unfilled(checkpoint, &device).unwrap();
    let network = load_into(network, checkpoint, &names).unwrap();
    let probe = Probe::with_gram();
    let Observing { module, .. } = observe(network, &probe, &names).unwrap();
    let one = 3 * extents[0] * extents[1];
    for batch in pixels(extents).chunks(8 * one) {
        let shape = [batch.len() / one, 3, extents[0], extents[1]];
        let images = Tensor::<4>::from_data(TensorData::new(batch.to_vec(), shape), &device);
        drop(module.forward(&RunInputs::images(images)));
    }
    assert!(probe.take_error().is_none());
    probe.take_stats()
}

/// Checks that values differ by at most 1e-5 of the largest.
#[track_caller]
fn assert_near<T: Copy + Into<f64>>(found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f64, |most, value| most.max((*value).into().abs()));
    let pairs = found.iter().zip(expected).map(|(a, b)| ((*a).into() - (*b).into()).abs());
    let worst = pairs.fold(0.0, f64::max);
    assert!(worst <= 1e-5 * largest, "{worst:e} of {largest:e}");
}

#[test]
fn calibration_of_images_by_block_equals_calibration_of_the_whole_network() {
    let directory = tempfile::tempdir().unwrap();
    for (name, extents) in IMAGE_NETWORKS {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let (data, spec) = data(directory.path(), extents);
        let arch = Arch::detect(&checkpoint).unwrap();
        // A small bound moves values between blocks to a file.
        let room = Room { max_bytes: Some(20_000), ..Room::new(directory.path()) };
        let gathering = Gathering { samples: Samples::ALL, has_gram: true, has_gradients: false, room };
        let over = (&data, &spec);
        let found = calibrate(&checkpoint, arch, &Device::flex(), over, gathering, &mut |_, _| Ok(())).unwrap();
        let expected = of_whole(&checkpoint, extents);
        assert_eq!(found.n_items, N_IMAGES);
        assert_eq!(found.layers.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}");
        assert!(found.layers.len() > 2, "{name}");
        for (layer, stats) in &expected {
            let found = &found.layers[layer];
            assert_eq!((found.count, found.n_inputs()), (stats.count, stats.n_inputs()), "{name}: {layer}");
            // A norm after a sum is fused inside a block and not at its border, which changes the last bit.
            assert_near(&found.sum_squares, &stats.sum_squares);
            assert_near(&found.sum, &stats.sum);
            assert_near(found.gram.as_ref().unwrap(), stats.gram.as_ref().unwrap());
        }
    }
}

#[test]
fn logits_by_block_equal_logits_of_the_whole_network() {
    let directory = tempfile::tempdir().unwrap();
    for (name, extents) in IMAGE_NETWORKS {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let (data, spec) = data(directory.path(), extents);
        let model = LoadedModel::load(&checkpoint, None, &Device::flex()).unwrap();
        let batching = Batching { batch_size: 8, ..Batching::default() };
        let whole = run(&model, &data, &spec, batching, &mut |_, _| Ok(())).unwrap();
        let room = Room { max_bytes: Some(20_000), ..Room::new(directory.path()) };
        let parts =
            run_offloaded(&checkpoint, model.arch, &Device::flex(), (&data, &spec), room, None, &mut |_, _| Ok(()));
        let (RunOutputs::Rows(whole), RunOutputs::Rows(parts)) = (whole, parts.unwrap()) else { panic!("rows") };
        assert_eq!((&parts.places, parts.width), (&whole.places, whole.width), "{name}");
        let largest = whole.values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let pairs = whole.values.iter().zip(&parts.values);
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() <= 1e-5 * largest), "{name}");
    }
}

#[test]
fn every_weight_of_an_image_network_has_a_curvature() {
    let directory = tempfile::tempdir().unwrap();
    for (name, extents) in IMAGE_NETWORKS {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let (data, spec) = data(directory.path(), extents);
        let arch = Arch::detect(&checkpoint).unwrap();
        let how = (Samples::ALL, Room { max_bytes: Some(20_000), ..Room::new(directory.path()) });
        let found = curvatures(&checkpoint, arch, &Device::flex(), (&data, &spec), how, &mut |_, _| Ok(())).unwrap();
        assert_eq!(found.n_items, N_IMAGES, "{name}");
        let (network, names) = GraphNet::blank(arch, &checkpoint, &Device::flex()).unwrap();
        let parameters = names.parameters(&network).unwrap();
        for parameter in parameters.iter().filter(|parameter| parameter.shape.0.len() >= 2) {
            let trace = found.traces[&names.file_name(parameter)];
            assert!(trace.is_finite() && trace >= 0.0, "{name}: {}", parameter.path);
        }
        assert!(found.traces.values().any(|trace| *trace > 0.0), "{name}");
    }
}

#[test]
fn gradients_by_block_equal_gradients_of_the_whole_network() {
    for (name, extents) in IMAGE_NETWORKS {
        let (device, checkpoint) = (Device::flex().autodiff(), Checkpoint::open(&fixture(name)).unwrap());
        let (network, names) = GraphNet::blank(Arch::detect(&checkpoint).unwrap(), &checkpoint, &device).unwrap();
        let network = briquette_models::still(load_into(network, &checkpoint, &names).unwrap());
        let images = TensorData::new(pixels(extents), [N_IMAGES, 3, extents[0], extents[1]]);
        let images = || Tensor::<4>::from_data(images.clone(), &device).require_grad();
        let whole = images();
        let logits = network.forward(&RunInputs::images(whole.clone())).two();
        let expected = whole.grad(&logits.powi_scalar(2).sum().backward()).unwrap();

        let (blocks, inputs) = (&network, RunInputs::read());
        let parts = images();
        let entered = blocks.enter(&RunInputs::images(parts.clone()));
        let off = |state: &BlockState| BlockState::from_host(state.to_host().unwrap(), &Device::flex());
        let mut states = vec![off(&entered)];
        for index in 0..blocks.n_blocks() {
            states.push(off(&blocks.block(index, states[index].clone().leaves(), &inputs)));
        }
        let last = states.pop().unwrap().leaves();
        let loss = blocks.leave(last.clone()).two().powi_scalar(2).sum();
        let mut toward = last.gradients(&loss.backward());
        for index in (0..blocks.n_blocks()).rev() {
            let before = states.pop().unwrap().leaves();
            let after = blocks.block(index, before.clone(), &inputs);
            toward = before.gradients(&after.dot(toward).unwrap().backward());
        }
        let found = parts.grad(&entered.dot(toward).unwrap().backward()).unwrap();
        let [found, expected] = [found, expected].map(|x| x.into_data().try_into_vec_as::<f32>().unwrap());
        let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let worst = found.iter().zip(&expected).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(largest > 0.0 && worst <= 1e-4 * largest, "{name}: {worst:e} of {largest:e}");
    }
}

/// Returns the outputs by block, and of the whole network, for token ids.
fn outputs_by_block(name: &str) -> (Vec<f32>, Vec<f32>) {
    let device = Device::flex();
    let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    let (network, names) = GraphNet::blank(Arch::detect(&checkpoint).unwrap(), &checkpoint, &device).unwrap();
    let network = load_into(network, &checkpoint, &names).unwrap();
    let ids = TensorData::new((0..24).map(|at| 3 + at * 7 % 30).collect::<Vec<i64>>(), [2, 12]);
    let ids = Tensor::from_data(ids, &device);
    let is_padding = (0..24).map(|at| at > 20).collect::<Vec<bool>>();
    let padding = Tensor::from_data(TensorData::new(is_padding, [2, 12]), &device);
    let (blocks, inputs) = (&network, RunInputs::padded(ids, padding));
    let state = (0..blocks.n_blocks()).fold(blocks.enter(&inputs), |state, index| blocks.block(index, state, &inputs));
    let left = blocks.leave(state).three();
    let is_decoder = Arch::detect(&checkpoint).unwrap().task() == briquette_models::ModelTask::Decoder;
    let found = if is_decoder { network.as_decoder().scores(left) } else { left };
    let values = |x: Tensor<3>| x.into_data().try_into_vec_as::<f32>().unwrap();
    (values(found), values(network.forward(&inputs).three()))
}

#[test]
fn texts_by_block_equal_the_whole_network_where_several_values_cross_a_border() {
    for name in ["mpnet", "gemma2", "gemma3", "albert", "modernbert", "mixtral", "qwen3_moe", "gpt_neox"] {
        let (found, expected) = outputs_by_block(name);
        assert!(found.iter().all(|value| value.is_finite()), "{name}");
        assert_near(&found, &expected);
    }
}
