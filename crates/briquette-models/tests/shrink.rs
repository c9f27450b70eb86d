//! A network without units computes what the network computes whose removed units are 0 everywhere.

use crate::golden::{Golden, folders};
use briquette_core::{DType, rows};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, safetensors};
use briquette_graph::coupling::{Couplings, GroupKind, UnitId, couplings};
use briquette_graph::families::shrunk_config::without_units;
use briquette_graph::shrink::{KeptIndices, Shrunk};
use briquette_graph::{Config, Extents, Graph, graph_of};
use briquette_models::graph_net::{GraphNet, RunInputs};
use burn::tensor::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Largest difference, as a share of the largest output.
const TOLERANCE: f32 = 1e-5;

fn bytes_of(checkpoint: &Checkpoint, index: usize) -> Vec<u8> {
    let mut bytes = vec![0; checkpoint.tensors()[index].n_bytes()];
    checkpoint.read(index, 0, &mut bytes).unwrap();
    bytes
}

/// A third of the units of every group of a kind, spread over the group.
fn removed(couplings: &Couplings, kind: GroupKind) -> BTreeSet<UnitId> {
    let groups = couplings.kinds.iter().enumerate().filter(|(_, own)| **own == kind);
    let units = groups.flat_map(|(group, _)| {
        let n = couplings.groups[group].units.len();
        (0..n).filter(move |unit| unit % 3 == group % 2).take(n - 1).map(move |unit| UnitId { group, unit })
    });
    units.collect()
}

/// Calls `each` with the place of every element and its index along each axis.
fn for_each_element(shape: &[usize], mut each: impl FnMut(usize, &[usize])) {
    let n: usize = shape.iter().product();
    let mut index = vec![0; shape.len()];
    for place in 0..n {
        each(place, &index);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// Returns the bytes with zeros where an axis lacks an index, and the bytes of the other elements.
fn masked_and_cut(bytes: &[u8], info: &TensorInfo, kept: &[KeptIndices]) -> [Vec<u8>; 2] {
    let width = info.dtype.n_bits() / 8;
    let (mut masked, mut cut) = (bytes.to_vec(), Vec::new());
    for_each_element(&info.shape.0, |place, index| {
        let is_kept = index.iter().zip(kept).all(|(at, kept)| kept.as_ref().is_none_or(|kept| kept.contains(at)));
        let range = place * width..(place + 1) * width;
        if is_kept {
            cut.extend_from_slice(&bytes[range]);
        } else {
            masked[range].fill(0);
        }
    });
    [masked, cut]
}

type Tensors = BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>;

/// Writes a model with these tensors and the configuration of `folder`.
fn write(folder: &Path, to: &Path, tensors: &Tensors) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::write(to.join("model.safetensors"), safetensors::to_file(tensors).unwrap()).unwrap();
    if let Ok(config) = std::fs::read(folder.join("config.json")) {
        std::fs::write(to.join("config.json"), config).unwrap();
    }
}

fn output(model: &Path, inputs: &RunInputs) -> Vec<f32> {
    let net = GraphNet::from_checkpoint(model, &Device::flex()).unwrap();
    net.forward(inputs).to_f32("an output").unwrap()
}

/// Changes the norms of a model whose removed channels are 0, so that they divide by the root mean square of the others.
///
/// `x / sqrt(Σx²/n + e)` with a weight `w·sqrt(k/n)` and `e·k/n` is `w·x / sqrt(Σx²/k + e)`.
fn norms_over_the_kept(masked: &mut Tensors, config: &mut serde_json::Value, [n, k]: [usize; 2]) {
    let share = k as f64 / n as f64;
    for (_, (dtype, _, bytes)) in
        masked.iter_mut().filter(|(name, (_, shape, _))| name.contains("norm") && *shape == [n])
    {
        let mut values = vec![0.0; bytes.len() * 8 / dtype.n_bits()];
        rows::to_f32(bytes, *dtype, &mut values);
        values.iter_mut().for_each(|value| *value *= share.sqrt() as f32);
        *bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        *dtype = DType::F32;
    }
    config["rms_norm_eps"] = (config["rms_norm_eps"].as_f64().unwrap() * share).into();
}

/// Returns the largest difference of the output between a model with zeros and norms over the kept channels, and the narrow model.
fn difference_of_width(folder: &Path) -> f32 {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let graph = graph_of(&checkpoint, Extents { batch: 2, tokens: 12, ..Extents::default() }).unwrap().unwrap();
    let couplings = couplings(&graph, &graph.lower().unwrap()).unwrap();
    let removed = removed(&couplings, GroupKind::Width);
    let shrunk = graph.without_units(&couplings, &removed).unwrap();
    let [mut masked, mut small] = tensors_of(&checkpoint, &graph, &shrunk);
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let n = config["hidden_size"].as_u64().unwrap() as usize;
    let k = n - removed.len();
    let text = Config::parse(Some(&serde_json::to_vec(&config).unwrap())).unwrap();
    let change = without_units(&text, &shrunk.graph, &couplings, &removed).unwrap();
    let mut narrow = config.clone();
    change.values.into_iter().for_each(|(key, value)| narrow[key] = value);
    norms_over_the_kept(&mut masked, &mut config, [n, k]);
    // Both in f32.
    small.values_mut().for_each(in_f32);
    masked.values_mut().for_each(in_f32);
    let directory = tempfile::tempdir().unwrap();
    let [full, smaller] = ["full", "small"].map(|name| directory.path().join(name));
    for (path, tensors, config) in [(&full, &masked, &config), (&smaller, &small, &narrow)] {
        write(folder, path, tensors);
        std::fs::write(path.join("config.json"), serde_json::to_vec(config).unwrap()).unwrap();
    }
    apart(folder, [&full, &smaller])
}

fn in_f32((dtype, _, bytes): &mut (DType, Vec<usize>, Vec<u8>)) {
    let mut values = vec![0.0; bytes.len() * 8 / dtype.n_bits()];
    rows::to_f32(bytes, *dtype, &mut values);
    *bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    *dtype = DType::F32;
}

#[test]
fn a_narrow_network_equals_the_network_with_zeros_and_norms_over_the_kept_channels() {
    let names = ["llama", "llama-base", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "mixtral", "qwen3_moe"];
    for name in names {
        let folder = folders().into_iter().find(|folder| folder.ends_with(name)).unwrap();
        let found = difference_of_width(&folder);
        println!("{name:12} {found:.2e}");
        assert!(found <= TOLERANCE, "{name}: {found}");
    }
}

/// Returns the tensors with zeros in removed places, and the remaining ones.
fn tensors_of(checkpoint: &Checkpoint, graph: &Graph, shrunk: &Shrunk) -> [Tensors; 2] {
    let [mut masked, mut small] = [Tensors::new(), Tensors::new()];
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        let bytes = bytes_of(checkpoint, index);
        let all = vec![None; info.shape.rank()];
        let weight = graph.weight(&info.name);
        let kept = weight.map_or(&all, |weight| &shrunk.kept[weight.0]);
        let shape = weight.map_or(&info.shape.0, |weight| &shrunk.graph.weights[weight.0].shape.0);
        let [zeroed, cut] = masked_and_cut(&bytes, info, kept);
        masked.insert(info.name.to_string(), (info.dtype, info.shape.0.clone(), zeroed));
        small.insert(info.name.to_string(), (info.dtype, shape.clone(), cut));
    }
    [masked, small]
}

/// Returns the largest difference of the outputs of two models, as a share of the largest output.
fn apart(folder: &Path, models: [&Path; 2]) -> f32 {
    let inputs = Golden::of(folder).inputs();
    let [expected, found] = models.map(|model| output(model, &inputs));
    assert_eq!(expected.len(), found.len());
    let most = expected.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
    let differences = expected.iter().zip(found).map(|(a, b)| (a - b).abs() / most);
    differences.fold(0.0, |largest: f32, one| if one.is_nan() { f32::INFINITY } else { largest.max(one) })
}

/// Returns the largest difference of the output between the masked and the shrunk model.
fn difference(folder: &Path, checkpoint: &Checkpoint, graph: &Graph, couplings: &Couplings, kind: GroupKind) -> f32 {
    let removed = removed(couplings, kind);
    let shrunk = graph.without_units(couplings, &removed).unwrap();
    let [masked, small] = tensors_of(checkpoint, graph, &shrunk);
    let directory = tempfile::tempdir().unwrap();
    let [full, smaller] = ["full", "small"].map(|name| directory.path().join(name));
    write(folder, &full, &masked);
    write(folder, &smaller, &small);
    apart(folder, [&full, &smaller])
}

#[test]
fn a_shrunk_network_equals_the_network_with_zeros() {
    let (mut wrong, mut n_compared) = (Vec::new(), 0);
    for folder in folders() {
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let graph = graph_of(&checkpoint, Extents { batch: 2, tokens: 12, ..Extents::default() }).unwrap().unwrap();
        let couplings = couplings(&graph, &graph.lower().unwrap()).unwrap();
        for kind in [GroupKind::FeedForward, GroupKind::Heads, GroupKind::Channels] {
            if !couplings.kinds.contains(&kind) {
                continue;
            }
            n_compared += 1;
            let name = format!("{} {kind}", folder.file_name().unwrap().to_string_lossy());
            let compare = || difference(&folder, &checkpoint, &graph, &couplings, kind);
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(compare)).unwrap_or(f32::INFINITY);
            println!("{name:32} {found:.2e}");
            if found > TOLERANCE {
                wrong.push((name, found));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {n_compared}: {wrong:?}", wrong.len());
    assert!(n_compared > 90, "{n_compared}");
}
