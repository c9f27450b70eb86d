//! Compares a recipe on a module in memory with the same recipe on its file.

use briquette_core::Role;
use briquette_formats::Checkpoint;
use briquette_methods::quant::Scheme;
use briquette_nn::{CompressionReport, Export, NameMap, Prune, Score, load_into, sparsity};
use briquette_pipeline::in_memory::{AboutModule, compress, compress_as};
use briquette_pipeline::recipe::{self, PruneStage, QuantizeStage};
use briquette_pipeline::{Recipe, RunOptions, run};
use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::path::Path;

/// A network in which `tokens` is an embedding, although its name does not show it.
#[derive(Module, Debug)]
struct Net {
    tokens: Embedding,
    conv: Conv2d,
    norm: LayerNorm,
    hidden: Linear,
    head: Linear,
}

impl Net {
    fn new() -> Self {
        let device = Device::flex();
        Self {
            tokens: EmbeddingConfig::new(20, 12).init(&device),
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(&device),
            norm: LayerNormConfig::new(10).init(&device),
            hidden: LinearConfig::new(40, 32).init(&device),
            head: LinearConfig::new(32, 12).init(&device),
        }
    }

    /// Maps `[batch, 3]` ids to `[batch, 12]`.
    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<2> {
        let [n, _] = ids.dims();
        let x = self.conv.forward(self.tokens.forward(ids).unsqueeze_dim::<4>(1));
        self.head.forward(self.hidden.forward(self.norm.forward(x).reshape([n, 40])))
    }
}

fn ids() -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new((0..12).map(|i| i * 7 % 20).collect::<Vec<i32>>(), [4, 3]), &Device::flex())
}

fn outputs(net: &Net) -> Vec<f32> {
    net.forward(ids()).into_data().try_into_vec().unwrap()
}

fn weights(directory: &Path) -> Vec<u8> {
    std::fs::read(directory.join("model.briquette.safetensors")).unwrap()
}

/// Returns a recipe for a model on disk, in TOML.
fn of_file(stages: &str, model: &Path, output: &Path) -> Recipe {
    let roles = "[[model.roles]]\ninclude = [\"tokens.weight\"]\nrole = \"embedding\"\n";
    let text = format!("[model]\npath = {model:?}\n{roles}[output]\npath = {output:?}\n{stages}");
    Recipe::from_raw(recipe::parse(&text, "recipe.toml").unwrap(), Path::new("")).unwrap()
}

const PRUNE_AND_INT8: &str = "[[stage]]\nkind = \"prune\"\nscope = \"global\"\nsparsity = 0.4\n\
                              [[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n";

/// Returns stages in TOML, and the same stages in code.
fn cases() -> Vec<(&'static str, Recipe)> {
    let g = |scheme: &str| QuantizeStage::named(scheme).unwrap();
    let int4 = g("int4-g4").with(["head.*"], "int6-asym".parse().unwrap()).unwrap().exclude(["conv.**"]).unwrap();
    vec![
        (PRUNE_AND_INT8, Recipe::in_memory().prune(PruneStage::global(0.4).unwrap()).quantize(Scheme::INT8)),
        (
            "[[stage]]\nkind = \"prune\"\nsparsity = 0.7\nmethod = \"random\"\nseed = 3\nroles = [\"linear\", \"embedding\"]\n\
             overrides = [{ include = [\"head.*\"], sparsity = 0.2 }]\n",
            Recipe::in_memory().prune(
                PruneStage::layer(0.7)
                    .unwrap()
                    .score(Score::Random(3))
                    .roles(&[Role::Linear, Role::Embedding])
                    .with(["head.*"], 0.2)
                    .unwrap(),
            ),
        ),
        (
            "[[stage]]\nkind = \"quantize\"\nscheme = \"int4-g4\"\nexclude = [\"conv.**\"]\n\
             overrides = [{ include = [\"head.*\"], scheme = \"int6-asym\" }]\n",
            Recipe::in_memory().quantize(int4),
        ),
        (
            "[[stage]]\nkind = \"prune\"\npattern = \"2:4\"\nroles = [\"linear\"]\n\
             [[stage]]\nkind = \"quantize\"\nscheme = \"int8-dynamic\"\nroles = [\"linear\"]\n",
            Recipe::in_memory()
                .prune(PruneStage::n_of_m(2, 4).unwrap().roles(&[Role::Linear]))
                .quantize(g("int8-dynamic").roles(&[Role::Linear])),
        ),
    ]
}

#[test]
fn a_module_in_memory_equals_its_compressed_file() {
    let (dir, net) = (tempfile::tempdir().unwrap(), Net::new());
    let plain = dir.path().join("plain");
    let before = Export::to(&plain).write(&net).unwrap();
    for (i, (stages, in_code)) in cases().into_iter().enumerate() {
        let [by_file, by_module] = ["file", "module"].map(|name| dir.path().join(format!("{name}{i}")));
        let of_file = of_file(stages, &plain, &by_file);
        run(&of_file, &RunOptions::default()).unwrap();
        let (small, report) = compress(net.clone(), &in_code).unwrap();
        let after = Export::to(&by_module).write(&small).unwrap();
        assert!(weights(&by_file) == weights(&by_module), "the same bytes: {stages}");
        assert_eq!((report.before_bytes, report.after_bytes), (before.n_bytes, after.n_bytes), "{stages}");
        let again = load_into(Net::new(), &Checkpoint::open(&by_file).unwrap(), &NameMap::torch()).unwrap();
        assert_eq!(outputs(&small), outputs(&again), "{stages}");
        assert_ne!(outputs(&small), outputs(&net), "{stages}");
        assert_eq!(outputs(&small), outputs(&small.clone().materialize()), "{stages}");
        // A recipe from a file works unchanged.
        let (same, report_of_toml) = compress(net.clone(), &of_file).unwrap();
        assert_eq!((outputs(&same), report_of_toml), (outputs(&small), report), "{stages}");
    }
}

#[test]
fn the_report_counts_each_tensor_by_its_layer() {
    let (_, in_code) = cases().swap_remove(0);
    let (small, report) = compress(Net::new(), &in_code).unwrap();
    let of =
        |report: &CompressionReport, name: &str| report.parameters.iter().find(|one| one.name == name).unwrap().clone();
    let tokens = of(&report, "tokens.weight");
    assert_eq!((tokens.role, tokens.n_dropped, tokens.scheme), (Role::Embedding, 0, Some(Scheme::INT8)));
    assert_eq!((tokens.before_bytes, tokens.after_bytes), (20 * 12 * 4, 20 * 12 + 20 * 4));
    let norm = of(&report, "norm.weight");
    assert_eq!((norm.role, norm.path.as_str(), norm.after_bytes), (Role::Norm, "norm.gamma", norm.before_bytes));
    assert_eq!(norm.skipped.as_deref(), Some("norm not selected by any stage"));
    let found = sparsity(&small).unwrap();
    let n_zeros: usize = ["conv", "hidden", "head"].iter().map(|name| found[&format!("{name}.weight")].n_zeros).sum();
    assert_eq!(report.parameters.iter().map(|one| one.n_dropped).sum::<usize>(), (0.4_f64 * 1700.0) as usize);
    assert!(n_zeros >= 680, "rounding only adds zeros");
    let data: u64 = report.parameters.iter().map(|one| one.after_bytes).sum();
    assert!(data < report.after_bytes && report.after_bytes < report.before_bytes);
}

#[test]
fn a_single_layer_has_a_scale_per_output() {
    let layer = LinearConfig::new(40, 12).init(&Device::flex());
    let (_, report) = compress(layer, &Recipe::in_memory().quantize(Scheme::INT8)).unwrap();
    let weight = report.parameters.iter().find(|one| one.name == "weight").unwrap();
    assert_eq!((weight.role, weight.before_bytes, weight.after_bytes), (Role::Linear, 480 * 4, 480 + 12 * 4));
}

#[test]
fn input_statistics_are_passed_with_the_module() {
    let recipe =
        Recipe::in_memory().prune(PruneStage::layer(0.5).unwrap().score(Score::Wanda).include(["head.*"]).unwrap());
    let error = compress(Net::new(), &recipe).unwrap_err().to_string();
    assert!(error.contains("head") && error.contains("input statistics"), "{error}");
    let probe = briquette_nn::Probe::new();
    let mut inputs = Tensor::<2>::ones([3, 32], &Device::flex());
    inputs = inputs.slice_fill([0..3, 0..16], 0.0);
    probe.observe("head", &inputs).unwrap();
    let about = AboutModule { inputs: probe.stats(), ..AboutModule::default() };
    let (small, _) = compress_as(Net::new(), &recipe, &about).unwrap();
    let unseen = small.head.weight.val().slice([0..16, 0..12]).abs().sum().into_scalar::<f32>();
    assert_eq!(unseen, 0.0, "weights of inputs that are always 0 are pruned first");
}

#[test]
fn unsupported_recipes_in_memory_are_refused_in_one_line() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/digits-data.safetensors");
    let evaluate = format!("[data]\neval = {data:?}\n[[stage]]\nkind = \"evaluate\"\n");
    let factorize = "[[stage]]\nkind = \"factorize\"\nenergy = 0.9\n";
    let cast = "[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n";
    let toml = |stages: &str| of_file(stages, Path::new("m"), Path::new("o"));
    let int8 = || Recipe::in_memory().quantize(Scheme::INT8);
    let only = |glob: &str| QuantizeStage::from(Scheme::INT8).include([glob]);
    let cases = [
        (toml(&(PRUNE_AND_INT8.to_string() + &evaluate)), "an evaluate stage: modules in memory support"),
        (toml(&(factorize.to_string() + PRUNE_AND_INT8)), "a factorize stage: modules in memory support"),
        (toml(&(PRUNE_AND_INT8.to_string() + cast)), "a cast stage: a module keeps its float type"),
        (Recipe::in_memory().quantize(only("head.bias").unwrap()), "\"head.bias\": is a vector"),
        (Recipe::in_memory().quantize(only("haed.*").unwrap()), "pattern \"haed.*\" matches no tensor"),
        (int8().role(["haed.*"], Role::Other).unwrap(), "model.roles: pattern \"haed.*\" matches no tensor"),
        (int8().quantize(Scheme::INT8), "is also selected by an earlier quantize stage"),
        (Recipe::in_memory().quantize("int8-static".parse::<Scheme>().unwrap()), "needs a run of the model on files"),
        (Recipe::in_memory(), "stage: the recipe has no stages"),
    ];
    for (recipe, expected) in cases {
        let error = compress(Net::new(), &recipe).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{expected}: {error}");
    }
    let mut net = Net::new();
    net.head.weight = Param::from_tensor(net.head.weight.val().slice_fill([0..1, 0..1], f32::NAN));
    let error = compress(net, &int8()).unwrap_err().to_string();
    assert!(error.contains("head.weight"), "{error}");
    let rules = briquette_nn::Compression::new().prune(Prune::new("head.weight", 0.5).unwrap());
    let error = compress(rules.attach(Net::new()).unwrap(), &int8()).unwrap_err().to_string();
    assert!(error.contains("head.weight") && error.contains("materialize()"), "{error}");
    let error = run(&int8(), &RunOptions::default()).unwrap_err().to_string();
    assert!(error.contains("briquette::compress"), "{error}");
}

#[test]
fn unusual_layers_and_recipes_work_or_are_refused() {
    let device = Device::flex();
    let layer = |n_in: usize, n_out: usize, value: f32| {
        let mut layer = LinearConfig::new(4, 4).with_bias(false).init(&device);
        layer.weight = Param::from_tensor(Tensor::full([n_in, n_out], value, &device));
        layer
    };
    let schemes = ["int8", "int2", "int4-asym", "int4-g4", "step", "step0.01-tensor", "int8-dynamic"];
    let schemes = schemes.map(|name| Recipe::in_memory().quantize(name.parse::<Scheme>().unwrap()));
    let prunes = [PruneStage::layer(0.5), PruneStage::global(0.99), PruneStage::n_of_m(2, 4), PruneStage::layer(0.0)];
    let recipes = prunes.map(|stage| Recipe::in_memory().prune(stage.unwrap())).into_iter().chain(schemes);
    let (sides, values) = ([(0, 4), (4, 0), (0, 0), (1, 1), (4, 4)], [0.0, 1e-40, 1.0, f32::MAX, f32::NAN]);
    let mut n_done = 0;
    for recipe in recipes {
        for (n_in, n_out, value) in sides.iter().flat_map(|&(n_in, n_out)| values.map(|value| (n_in, n_out, value))) {
            n_done += usize::from(compress(layer(n_in, n_out, value), &recipe).is_ok());
        }
    }
    assert!(n_done > 50, "{n_done}");
}
