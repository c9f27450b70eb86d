//! Tests that compressing a model file and compressing the same module in burn write the same bytes.
//!
//! Both decode to `fake_quantize`. Layers that run on codes hold the same values.

use briquette_core::encoded::ScaleType;
use briquette_core::{DType, Decision, Grid, GridKind, Grouping, InputStats, OutputAxis, Rows, fake_quantize};
use briquette_formats::input_stats::{self, StatisticsFile};
use briquette_formats::{Checkpoint, Draft, TensorSource};
use briquette_methods::quant::{ScaleSearch, Scheme};
use briquette_nn::{Compression, Export, NameMap, Prune, Quantize, Score, ToDType, decisions, layers, load_compressed};
use briquette_recipe::Recipe;
use briquette_writer::survey::survey;
use briquette_writer::{RunOptions, Workers, WriteJob, decide};
use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    linear: Linear,
    square: Linear,
}

/// The same network with layers that run on codes.
#[derive(Module, Debug)]
struct Coded {
    conv: layers::Conv2d,
    linear: layers::Linear,
    square: layers::Linear,
}

fn net(weights: &[Vec<f32>; 3], dtype: FloatDType) -> Net {
    let device = Device::flex();
    let mut net = Net {
        conv: Conv2dConfig::new([4, 6], [3, 3]).init(&device),
        linear: LinearConfig::new(36, 7).init(&device),
        square: LinearConfig::new(12, 12).init(&device),
    };
    let data = |values: &Vec<f32>, shape: &[usize]| TensorData::new(values.clone(), shape.to_vec());
    net.conv.weight = Param::from_tensor(Tensor::from_data(data(&weights[0], &[6, 4, 3, 3]), &device));
    net.linear.weight = Param::from_tensor(Tensor::from_data(data(&weights[1], &[36, 7]), &device));
    net.square.weight = Param::from_tensor(Tensor::from_data(data(&weights[2], &[12, 12]), &device));
    net.to_dtype(dtype)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns every weight file of a directory.
fn weight_files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    files
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect()
}

/// Returns a tensor of a checkpoint as f32 rows, one per output.
fn rows_of(checkpoint: &Checkpoint, index: usize, axis: OutputAxis) -> (Vec<f32>, Rows) {
    let info = &checkpoint.tensors()[index];
    let mut bytes = vec![0; info.n_bytes()];
    checkpoint.read(index, 0, &mut bytes).unwrap();
    let mut own = vec![0.0; info.n_elements()];
    briquette_core::rows::to_f32(&bytes, info.dtype, &mut own);
    let rows = Rows::of(&info.shape, axis);
    let at = |row: usize, col: usize| match rows.axis {
        OutputAxis::First | OutputAxis::Stacked => own[row * rows.n_cols + col],
        OutputAxis::Last | OutputAxis::Second => own[(col / rows.run * rows.n_rows + row) * rows.run + col % rows.run],
    };
    (
        (0..rows.n_rows).flat_map(|row| (0..rows.n_cols).map(move |col| (row, col))).map(|(r, c)| at(r, c)).collect(),
        rows,
    )
}

/// The compression that both flows apply.
#[derive(Debug, Clone)]
struct Case {
    scheme: Option<Scheme>,
    prune: Option<Amount>,
    /// Whether the scores are Wanda's, which need layer inputs.
    is_wanda: bool,
    names: NameMap,
    dtype: FloatDType,
}

/// The amount of pruning.
#[derive(Debug, Clone, Copy)]
enum Amount {
    Layer(f64),
    Global(f64),
    NOfM(usize, usize),
}

/// Returns input statistics of the three layers.
fn statistics() -> BTreeMap<String, InputStats> {
    let of = |n: usize| InputStats {
        count: 5,
        sum_squares: (0..n).map(|i| ((i * 7 + 3) % 11) as f64).collect(),
        ..InputStats::empty(n, false)
    };
    [("conv", 36), ("linear", 36), ("square", 12)].map(|(layer, n)| (layer.to_string(), of(n))).into()
}

impl Case {
    fn recipe(&self, model: &Path, output: &Path) -> Recipe {
        let mut text = format!("[model]\npath = '{}'\n[output]\npath = '{}'\n", model.display(), output.display());
        if let Some(amount) = self.prune {
            let file = model.with_extension("stats");
            text += "[[stage]]\nkind = 'prune'\n";
            text += &match amount {
                Amount::Layer(share) => format!("sparsity = {share:.6}\n"),
                Amount::Global(share) => format!("sparsity = {share:.6}\nscope = 'global'\n"),
                Amount::NOfM(n, m) => format!("pattern = '{n}:{m}'\n"),
            };
            if self.is_wanda {
                let known = Checkpoint::open(model).unwrap();
                let fingerprint = Some(input_stats::fingerprint(&known).unwrap());
                StatisticsFile { model: fingerprint, layers: statistics(), ..Default::default() }.write(&file).unwrap();
                text += &format!("method = 'wanda'\nstatistics = '{}'\n", file.display());
            }
        }
        if self.scheme.is_some() {
            text += "[[stage]]\nkind = 'quantize'\nscheme = 'int8'\nroles = ['linear', 'conv']\n";
        }
        let path = model.with_extension("toml");
        std::fs::write(&path, text).unwrap();
        Recipe::from_file(&path).unwrap()
    }

    fn rules(&self) -> Compression {
        let mut rules = Compression::new();
        let as_in_recipe = |share: f64| format!("{share:.6}").parse::<f64>().unwrap();
        if let Some(amount) = self.prune {
            let rule = match amount {
                Amount::Layer(share) => Prune::new("*.weight", as_in_recipe(share)),
                Amount::Global(share) => Prune::new("*.weight", as_in_recipe(share)).map(Prune::globally),
                Amount::NOfM(n, m) => Prune::n_of_m("*.weight", n, m),
            };
            let rule = rule.unwrap();
            rules = rules.prune(if self.is_wanda { rule.score(Score::Wanda).inputs(&statistics()) } else { rule });
        }
        match self.scheme {
            Some(scheme) => rules.quantize(Quantize::with_scheme("*.weight", scheme).unwrap()),
            None => rules,
        }
    }
}

/// Compresses a model file and returns the decisions. The scheme is put into the plan, since a recipe cannot
/// name every scheme.
fn compress(case: &Case, model: &Path, output: &Path) -> BTreeMap<String, Decision> {
    let recipe = case.recipe(model, output);
    let checkpoint = Checkpoint::open(model).unwrap();
    let options = RunOptions { threads: 2, ..RunOptions::default() };
    let mut plan = briquette_recipe::plan::plan(&recipe, &checkpoint, &options.stop).unwrap();
    for tensor in &mut plan.tensors {
        if let (Some(quant), Some(scheme)) = (tensor.quant, case.scheme) {
            let (spec, activations) = (scheme.weights, scheme.activations);
            tensor.quant = Some(briquette_writer::Quant { spec, activations, ..quant });
        }
    }
    let workers = Workers::new(&options).unwrap();
    let surveys = survey(&mut plan.clone(), &checkpoint, &workers).unwrap();
    let draft = Draft::create(output, &[], false).unwrap();
    let written = briquette_writer::write(WriteJob {
        plan: &mut plan,
        source: &checkpoint,
        draft: &draft,
        recipe: recipe.to_manifest().unwrap(),
        producer: "law",
        workers: &workers,
        small_files: &|_, _| Ok(()),
        kept: &|_, _| Vec::new(),
        is_over: &mut |_| {},
    });
    drop(written.unwrap());
    draft.publish().unwrap();
    // The writer may have chosen a wider scale type.
    let changed = (0..plan.tensors.len()).filter(|&index| plan.tensors[index].is_recoded());
    let decision = |index: usize| {
        let decision = decide(&plan, index, &surveys[index], &checkpoint, workers.stop()).unwrap();
        (plan.tensors[index].info.name.to_string(), decision)
    };
    changed.map(decision).collect()
}

/// Normalizes decisions: drops masks that keep everything, and decisions that change nothing.
fn normalized(decisions: &BTreeMap<String, Decision>) -> BTreeMap<String, Decision> {
    let drops = |mask: &briquette_core::Mask| mask.n_kept() < mask.dim().0 * mask.dim().1;
    let meant = |decision: &Decision| Decision { mask: decision.mask.clone().filter(drops), ..decision.clone() };
    let each = decisions.iter().map(|(path, decision)| (path.clone(), meant(decision)));
    each.filter(|(_, decision)| *decision != Decision::default()).collect()
}

fn check(weights: &[Vec<f32>; 3], case: &Case) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let net = net(weights, case.dtype);
    Export::to(at("model")).names(case.names.clone()).write(&net).unwrap();
    let decided = compress(case, &at("model"), &at("from-file"));
    let attached = case.rules().attach(net).unwrap();
    Export::to(at("from-burn")).names(case.names.clone()).write(&attached).unwrap();
    prop_assert_eq!(weight_files(&at("from-file")), weight_files(&at("from-burn")));
    prop_assert_eq!(normalized(&decided), normalized(&decisions(&attached).unwrap()));

    let (original, output) = (Checkpoint::open(&at("model")).unwrap(), Checkpoint::open(&at("from-file")).unwrap());
    let is_burn = case.names.layout() == briquette_nn::Layout::Burn;
    let mut fake_quantized = BTreeMap::new();
    for (index, info) in original.tensors().iter().enumerate() {
        let Some(decision) = decided.get(info.name.as_str()) else { continue };
        let axis = if is_burn && info.shape.rank() == 2 { OutputAxis::Last } else { OutputAxis::First };
        let (values, rows) = rows_of(&original, index, axis);
        let expected = fake_quantize(&values, rows.n_rows, rows.n_cols, decision);
        let place = output.tensors().iter().position(|other| other.name == info.name).unwrap();
        let (found, _) = rows_of(&output, place, axis);
        if info.dtype == DType::F32 {
            prop_assert_eq!(bits(&found), bits(&expected), "{}", info.name);
        }
        fake_quantized.insert(info.name.to_string(), (expected, rows));
    }
    check_layers(case, &output, &fake_quantized)
}

/// Checks that layers on codes have the decided values, bit for bit.
fn check_layers(
    case: &Case,
    output: &Checkpoint,
    fake_quantized: &BTreeMap<String, (Vec<f32>, Rows)>,
) -> Result<(), TestCaseError> {
    let is_held = case.scheme.is_some_and(|scheme| matches!(scheme.weights.grid.n_bits(), 4 | 8));
    if !is_held || case.dtype != FloatDType::F32 {
        return Ok(());
    }
    let device = Device::flex();
    let coded = Coded {
        conv: layers::Conv2dConfig::new([4, 6], [3, 3]).init(&device),
        linear: layers::LinearConfig::new(36, 7).init(&device),
        square: layers::LinearConfig::new(12, 12).init(&device),
    };
    let coded = load_compressed(coded, output, &case.names).unwrap();
    for (name, weight) in [("linear.weight", coded.linear.weight.val()), ("square.weight", coded.square.weight.val())] {
        let (expected, rows) = &fake_quantized[name];
        let own: Vec<f32> = weight.into_data().try_into_vec().unwrap();
        let by_row = (0..rows.n_rows).flat_map(|row| (0..rows.n_cols).map(move |col| col * rows.n_rows + row));
        prop_assert_eq!(bits(&by_row.map(|place| own[place]).collect::<Vec<_>>()), bits(expected), "{}", name);
    }
    let conv: Vec<f32> = coded.conv.weight.val().into_data().try_into_vec().unwrap();
    prop_assert_eq!(bits(&conv), bits(&fake_quantized["conv.weight"].0));
    Ok(())
}

fn any_weights(n: usize) -> impl Strategy<Value = Vec<f32>> {
    let weight = prop_oneof![-1.0_f32..1.0, Just(0.0), Just(-0.0), Just(0.25), -1e-3_f32..1e-3, -50.0_f32..50.0];
    // f16 cannot hold the scales of tiny weights.
    let sizes = prop::sample::select(vec![1.0_f32, 1.0, 1.0, 1e-9]);
    (prop::collection::vec(weight, n), sizes).prop_map(|(weights, size)| weights.iter().map(|w| w * size).collect())
}

fn any_scheme() -> impl Strategy<Value = Scheme> {
    let ranges = vec![
        ScaleSearch::AbsMax,
        ScaleSearch::MinMax,
        ScaleSearch::Percentile(0.95),
        ScaleSearch::Mse,
        ScaleSearch::Hqq,
    ];
    let names = prop_oneof![
        (2_u8..=8, prop::sample::select(vec!["", "-asym", "-g4", "-g12-asym"]))
            .prop_map(|(n, end)| format!("int{n}{end}")),
        prop::sample::select(vec!["int8-dynamic", "int8-dynamic-sym"]).prop_map(String::from),
    ];
    (names, prop::sample::select(ranges), any::<[bool; 3]>()).prop_map(|(name, range, [single, full, half])| {
        let mut scheme: Scheme = name.parse().unwrap();
        scheme.weights.range = range;
        if full && !scheme.weights.grid.is_asymmetric() {
            scheme.weights.grid = Grid::new(scheme.weights.grid.n_bits(), GridKind::SymmetricFull).unwrap();
        }
        if half {
            scheme.weights.scale = ScaleType::F16;
        }
        if single {
            scheme.weights.grouping = Grouping::Tensor;
        }
        scheme
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_file_and_a_module_compress_to_the_same_bytes(
        conv in any_weights(6 * 4 * 3 * 3),
        linear in any_weights(36 * 7),
        square in any_weights(12 * 12),
        scheme in prop::option::weighted(0.8, any_scheme()),
        prune in prop::option::of(prop_oneof![
            2 => (0.0_f64..0.999).prop_map(Amount::Layer),
            1 => (0.0_f64..0.999).prop_map(Amount::Global),
            1 => prop::sample::select(vec![(2, 4), (1, 4), (1, 2)]).prop_map(|(n, m)| Amount::NOfM(n, m)),
        ]),
        sees_inputs: bool,
        is_burn: bool,
        dtype in prop::sample::select(vec![FloatDType::F32, FloatDType::F16, FloatDType::BF16]),
    ) {
        prop_assume!(scheme.is_some() || prune.is_some());
        let names = if is_burn { NameMap::burn() } else { NameMap::torch() };
        let is_wanda = sees_inputs && matches!(prune, Some(Amount::Layer(_) | Amount::NOfM(..)));
        check(&[conv, linear, square], &Case { scheme, prune, is_wanda, names, dtype })?;
    }
}

#[test]
fn wanda_drops_the_smallest_products_of_weight_and_input_norm_in_each_row() {
    let dir = tempfile::tempdir().unwrap();
    let values = |n: usize| (0..n).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect::<Vec<f32>>();
    let weights = [values(6 * 36), values(36 * 7), values(12 * 12)];
    Export::to(dir.path().join("model")).write(&net(&weights, FloatDType::F32)).unwrap();
    let (scheme, names, dtype) = (None, NameMap::torch(), FloatDType::F32);
    let case = Case { scheme, prune: Some(Amount::Layer(0.5)), is_wanda: true, names, dtype };
    compress(&case, &dir.path().join("model"), &dir.path().join("out"));
    let [original, output] = ["model", "out"].map(|name| Checkpoint::open(&dir.path().join(name)).unwrap());
    for (layer, stats) in statistics() {
        let place =
            |of: &Checkpoint| of.tensors().iter().position(|info| info.name == format!("{layer}.weight")).unwrap();
        let (mut expected, rows) = rows_of(&original, place(&original), OutputAxis::First);
        for row in expected.chunks_mut(rows.n_cols) {
            let size = |i: usize| (stats.sum_squares[i] / stats.count as f64).sqrt() as f32;
            let mut order: Vec<usize> = (0..rows.n_cols).collect();
            order.sort_by(|&a, &b| (row[a].abs() * size(a)).total_cmp(&(row[b].abs() * size(b))));
            order[..rows.n_cols / 2].iter().for_each(|&i| row[i] = 0.0);
        }
        let (found, _) = rows_of(&output, place(&output), OutputAxis::First);
        assert_eq!(bits(&found), bits(&expected), "{layer}");
    }
}
