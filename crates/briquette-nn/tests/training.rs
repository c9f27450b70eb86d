//! Tests attached decisions in training: optimizers, schedules, records.

use crate::fixture::values;
use briquette_core::{Affine, ErrorKind, Grid, Grouping, Mask, QuantParams};
use briquette_nn::{Compression, Prune, Quantize, Schedule, Score, sparsity};
use burn::module::{Lora, Module, ParamGroup};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{
    AdamConfig, AdamWConfig, GradientsParams, LionConfig, ModuleOptimizer, RmsPropConfig, SgdConfig,
    decay::WeightDecayConfig, momentum::MomentumConfig,
};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, FloatDType, Tensor};

#[derive(Module, Debug)]
struct Net {
    blocks: Vec<Linear>,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let blocks = (0..2).map(|_| LinearConfig::new(24, 24).init(device)).collect();
        Self { blocks, head: LinearConfig::new(24, 5).init(device) }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.head.forward(self.blocks.iter().fold(x, |x, block| relu(block.forward(x))))
    }
}

fn step(model: Net, optimizer: &mut ModuleOptimizer, device: &Device) -> Net {
    let x = Tensor::<2>::random([16, 24], Distribution::Normal(0.0, 1.0), device);
    let loss = (model.forward(x) - 1.0).powf_scalar(2.0).mean();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    optimizer.step(3e-3, model, grads)
}

fn optimizers() -> Vec<(&'static str, ModuleOptimizer)> {
    let decay = || Some(WeightDecayConfig::new(0.1));
    vec![
        ("sgd", SgdConfig::new().with_momentum(Some(MomentumConfig::new())).with_weight_decay(decay()).init()),
        ("adam", AdamConfig::new().with_weight_decay(decay()).init()),
        ("adamw", AdamWConfig::new().with_weight_decay(0.1).init()),
        ("rmsprop", RmsPropConfig::new().with_weight_decay(decay()).init()),
        ("lion", LionConfig::new().with_weight_decay(0.1).init()),
    ]
}

#[test]
fn masked_weights_stay_zero_with_any_optimizer() {
    let device = Device::flex().autodiff();
    for (name, mut optimizer) in optimizers() {
        let mut model = Net::new(&device);
        // A few steps first give momentum to weights that are dropped later.
        for _ in 0..3 {
            model = step(model, &mut optimizer, &device);
        }
        let rules = Compression::new().prune(Prune::new("**.weight", 0.8).unwrap().globally());
        let mut model = rules.attach(model).unwrap();
        let zeros = |model: &Net| values(model.blocks[0].weight.val()).iter().map(|w| *w == 0.0).collect::<Vec<_>>();
        let (before, first) = (zeros(&model), values(model.blocks[0].weight.val()));
        for _ in 0..20 {
            model = step(model, &mut optimizer, &device);
        }
        assert_eq!(zeros(&model), before, "{name}");
        assert_ne!(values(model.blocks[0].weight.val()), first, "{name}: kept weights train");
        let found: briquette_nn::Sparsity =
            sparsity(&model).unwrap().into_iter().filter(|(path, _)| path.ends_with("weight")).map(|(_, s)| s).sum();
        assert_eq!(found.n_zeros, (0.8 * found.n_weights as f64).round() as usize, "{name}");
    }
}

#[test]
fn gradients_pass_through_rounding_and_stop_at_the_mask() {
    let device = Device::flex().autodiff();
    let rules = Compression::new()
        .prune(Prune::new("head.weight", 0.5).unwrap())
        .quantize(Quantize::new("head.weight", "int4").unwrap());
    let model = rules.attach(Net::new(&device)).unwrap();
    let factors = Tensor::<2>::random([24, 5], Distribution::Normal(0.0, 1.0), &device);
    let grads = (model.head.weight.val() * factors.clone()).sum().backward();
    let found = values(model.head.weight.base().grad(&grads).unwrap());
    let (kept, factors) = (values(model.head.weight.val()), values(factors));
    let dropped = briquette_nn::decisions(&model).unwrap()["head.weight"].mask.clone().unwrap();
    for (i, (grad, factor)) in found.iter().zip(&factors).enumerate() {
        let keeps = dropped.keeps(i % 5, i / 5);
        assert_eq!(*grad, if keeps { *factor } else { 0.0 });
        assert!(keeps || kept[i] == 0.0);
    }
}

#[test]
fn a_schedule_prunes_step_by_step_and_never_restores_weights() {
    let device = Device::flex().autodiff();
    let mut optimizer = AdamWConfig::new().init();
    let rules = [Score::Magnitude, Score::Random(3)].map(|score| {
        let schedule = Schedule::cubic(2..10).every(2);
        Compression::new().prune(Prune::new("blocks.*.weight", 0.75).unwrap().globally().score(score).on(schedule))
    });
    for rules in rules {
        let mut model = rules.attach(Net::new(&device)).unwrap();
        let (mut dropped, mut course) = (Vec::new(), Vec::new());
        for t in 1..=14 {
            model = rules.refresh(step(model, &mut optimizer, &device), t).unwrap();
            let now: Vec<bool> = values(model.blocks[1].weight.val()).iter().map(|w| *w == 0.0).collect();
            assert!(dropped.iter().zip(&now).all(|(was, is): (&bool, &bool)| !*was || *is), "step {t}");
            let found = sparsity(&model).unwrap();
            course.push(found["blocks.0.weight"].n_zeros + found["blocks.1.weight"].n_zeros);
            dropped = now;
        }
        assert_eq!(course[0], 0);
        assert_eq!(course[13], 864, "75 % of 1152");
        assert!(course.is_sorted() && course[4] > 432, "fast at first: {course:?}");
    }
}

#[test]
fn scales_follow_the_weights_and_start_on_schedule() {
    let device = Device::flex().autodiff();
    let mut optimizer = AdamWConfig::new().init();
    let rules = Compression::new()
        .quantize(Quantize::new("head.weight", "int4").unwrap().on(Schedule::constant(3..8).every(1)));
    let mut model = rules.attach(Net::new(&device)).unwrap();
    assert_eq!(values(model.head.weight.val()), values(model.head.weight.base()), "nothing is quantized yet");
    let mut scales = Vec::new();
    for t in 1..=10 {
        model = rules.refresh(step(model, &mut optimizer, &device), t).unwrap();
        scales.push(briquette_nn::decisions(&model).unwrap().remove("head.weight").map(|d| d.quant.unwrap().affines));
    }
    assert!(scales[1].is_none() && scales[2].is_some());
    assert_ne!(scales[2], scales[3]);
    assert_eq!(scales[7], scales[9], "the schedule has ended");
}

#[test]
fn a_record_stores_masks_and_scales() {
    let device = Device::flex().autodiff();
    let dir = tempfile::tempdir().unwrap();
    let rules = Compression::new()
        .prune(Prune::new("**.weight", 0.6).unwrap().on(Schedule::linear(0..4)))
        .quantize(Quantize::new("blocks.*.weight", "int4-g8-asym").unwrap());
    let mut model = rules.attach(Net::new(&device)).unwrap();
    let mut optimizer = AdamWConfig::new().init();
    for t in 1..=4 {
        model = rules.refresh(step(model, &mut optimizer, &device), t).unwrap();
    }
    let path = dir.path().join("model.bpk");
    model.clone().into_record().save(&path).unwrap();
    let fresh = rules.attach_at(Net::new(&device), 4).unwrap();
    let loaded = fresh.load_file(&path);
    assert_eq!(values(loaded.blocks[1].weight.val()), values(model.blocks[1].weight.val()));
    assert_eq!(values(loaded.head.weight.val()), values(model.head.weight.val()));
    assert_eq!(values(loaded.head.weight.base()), values(model.head.weight.base()));
    assert_eq!(briquette_nn::decisions(&loaded).unwrap(), briquette_nn::decisions(&model).unwrap());
    let next = rules.refresh(loaded, 4).unwrap();
    assert_eq!(sparsity(&next).unwrap(), sparsity(&model).unwrap());
    // Loading refuses a record of another grid.
    for scheme in ["int4-g8", "int3-g8-asym", "int8-g8-asym", "int4-g6-asym"] {
        let other = Compression::new()
            .prune(Prune::new("**.weight", 0.6).unwrap())
            .quantize(Quantize::new("blocks.*.weight", scheme).unwrap());
        let refused = other.attach(Net::new(&device)).unwrap().try_load_file(&path);
        assert!(refused.unwrap_err().to_string().contains("briquette."), "{scheme}");
    }
}

#[test]
fn given_decisions_attach_unchanged() {
    let device = Device::flex().autodiff();
    let mut optimizer = AdamWConfig::new().init();
    let rules = Compression::new()
        .prune(Prune::new("**.weight", 0.6).unwrap().globally().score(Score::Random(7)))
        .quantize(Quantize::new("blocks.0.weight", "int4-g8-asym").unwrap());
    let net = Net::new(&device);
    let model = rules.attach(net.clone()).unwrap();
    let decided = briquette_nn::decisions(&model).unwrap();
    let given = Compression::of(&decided).unwrap();
    let mut again = given.attach(net).unwrap();
    assert_eq!(briquette_nn::decisions(&again).unwrap(), decided);
    assert_eq!(values(again.blocks[0].weight.val()), values(model.blocks[0].weight.val()));
    for t in 1..=3 {
        again = given.refresh(step(again, &mut optimizer, &device), t).unwrap();
    }
    assert_eq!(briquette_nn::decisions(&again).unwrap(), decided, "masks and scales are unchanged");

    let zeros = Compression::new().prune(Prune::zeros("**.weight").unwrap());
    let held = zeros.attach(model.clone().materialize()).unwrap();
    let count = |model: &Net| sparsity(model).unwrap()["blocks.1.weight"];
    assert_eq!(count(&held), count(&model));
    assert_eq!(count(&step(held, &mut optimizer, &device)), count(&model), "zeros stay zero");
    let dense = zeros.attach(Net::new(&device)).unwrap();
    assert!(briquette_nn::decisions(&dense).unwrap().is_empty());

    let small = Compression::new().prune(Prune::outside("head.weight", Mask::from_fn(24, 5, |_, _| true)).unwrap());
    let error = small.attach(Net::new(&device)).unwrap_err();
    assert_eq!(error.to_string(), "head.weight: found a mask of 24 x 5, expected 5 outputs x 24 inputs");
    let affines = vec![Affine { scale: 1.0, zero: 0 }; 4];
    let few = Quantize::on_grid("head.weight", QuantParams::new(Grid::INT8, Grouping::Row, 24, affines)).unwrap();
    let error = Compression::new().quantize(few).attach(Net::new(&device)).unwrap_err();
    assert_eq!(error.to_string(), "head.weight: found 4 scales, expected 5 for 5 x 24 weights");
}

#[test]
fn other_reparameterizations_are_refused() {
    let lora = Lora::new(2, 4.0).set_param_group(ParamGroup::from_path("head.weight"));
    let model = Net::new(&Device::flex()).apply_lora(lora);
    let dir = tempfile::tempdir().unwrap();
    let errors = [
        briquette_nn::Export::to(dir.path().join("out")).write(&model).unwrap_err(),
        sparsity(&model).unwrap_err(),
        briquette_nn::decisions(&model).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind, ErrorKind::Refused);
        assert!(error.to_string().starts_with("head.weight: is reparameterized by \"lora\""), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    briquette_nn::Export::to(dir.path().join("out")).write(&model.materialize()).unwrap();
}

#[test]
fn groups_that_do_not_divide_the_columns_become_one_scale_per_row() {
    let device = Device::flex();
    let net = Net::new(&device);
    let attached = |scheme: &str| {
        let rules = Compression::new().quantize(Quantize::new("**.weight", scheme).unwrap());
        let attached = rules.attach(net.clone()).unwrap();
        rules.refresh(attached, 10).unwrap()
    };
    let (groups, rows) = (attached("int4-g7"), attached("int4"));
    let decided = briquette_nn::decisions(&groups).unwrap();
    assert!(decided.values().all(|decision| decision.quant.as_ref().unwrap().grouping == Grouping::Row));
    assert_eq!(decided, briquette_nn::decisions(&rows).unwrap());
    assert_eq!(values(groups.head.weight.val()), values(rows.head.weight.val()));
}

#[test]
fn impossible_rules_are_refused_in_one_line() {
    let device = Device::flex().autodiff();
    let attach = |rules: Compression| rules.attach(Net::new(&device)).unwrap_err();
    let error = attach(Compression::new().prune(Prune::new("block.*.weight", 0.5).unwrap()));
    assert_eq!(error.kind, ErrorKind::Config);
    assert!(error.to_string().contains("the nearest name is \"blocks.0.weight\""), "{error}");
    let given = QuantParams::new(Grid::INT8, Grouping::Group(7), 14, vec![Affine::symmetric(0.1); 2]);
    let error = attach(Compression::new().quantize(Quantize::on_grid("head.weight", given).unwrap()));
    let message = "head.weight: found scales for groups of 7, which do not divide 24 columns; choose another grouping";
    assert_eq!(error.to_string(), message);
    let error = attach(Compression::new().prune(Prune::new("**.bias", 0.5).unwrap())).to_string();
    assert!(error.starts_with("pattern \"**.bias\" matches only vectors"), "{error}");
    for schedule in [Schedule::linear(0..4), Schedule::cubic(0..4)] {
        let error = attach(Compression::new().prune(Prune::n_of_m("head.weight", 2, 4).unwrap().on(schedule)));
        assert!(error.to_string().starts_with("head.weight: a schedule with steps, starting_at()"), "{error}");
    }
    let error = attach(Compression::new().prune(Prune::n_of_m("head.weight", 2, 4).unwrap().globally()));
    assert_eq!(error.kind, ErrorKind::Config);
    assert_eq!(Prune::new("**", 1.5).unwrap_err().kind, ErrorKind::Config);
    assert_eq!(Prune::n_of_m("**", 3, 2).unwrap_err().kind, ErrorKind::Config);
    assert_eq!(Quantize::new("**", "int9").unwrap_err().kind, ErrorKind::Config);

    let rules = Compression::new().prune(Prune::new("**.weight", 0.5).unwrap());
    let lora = Lora::new(2, 4.0).set_param_group(ParamGroup::from_path("head.weight"));
    let error = rules.attach(Net::new(&device).apply_lora(lora)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused);
    assert!(error.to_string().starts_with("head.weight: is already reparameterized"), "{error}");
    let twice = rules.attach(rules.attach(Net::new(&device)).unwrap()).unwrap_err();
    assert_eq!(twice.kind, ErrorKind::Refused);
    assert_eq!(rules.refresh(Net::new(&device), 0).unwrap_err().kind, ErrorKind::Config);
}

#[test]
fn f32_weights_train_with_half_precision_arithmetic() {
    let device = Device::flex().autodiff();
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let rules = Compression::new().prune(Prune::new("**.weight", 0.5).unwrap()).compute_in(dtype);
        let mut model = rules.attach(Net::new(&device)).unwrap();
        let mut optimizer = AdamWConfig::new().init();
        let mut losses = Vec::new();
        for _ in 0..30 {
            let x = Tensor::<2>::ones([16, 24], &device).cast(dtype);
            let loss = (model.forward(x).cast(FloatDType::F32) - 1.0).powf_scalar(2.0).mean();
            losses.push(values(loss.clone())[0]);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, grads);
        }
        assert!(losses[29] < 0.5 * losses[0], "{dtype:?}: {losses:?}");
        assert_eq!(model.head.weight.base().dtype(), burn::tensor::DType::F32);
        assert_eq!(sparsity(&model).unwrap()["head.weight"].n_zeros, 60);
    }
}

#[test]
fn a_module_casts_to_half_precision_and_back() {
    use briquette_nn::ToDType;
    let device = Device::flex();
    let rules = Compression::new()
        .prune(Prune::new("**.weight", 0.5).unwrap())
        .quantize(Quantize::new("head.weight", "int8").unwrap());
    let model = rules.attach(Net::new(&device)).unwrap();
    let x = Tensor::<2>::random([4, 24], Distribution::Normal(0.0, 1.0), &device);
    let expected = values(model.forward(x.clone()));
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let other = model.clone().to_dtype(dtype);
        let found = values(other.forward(x.clone().cast(dtype)));
        let error = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error > 0.0 && error < 0.05, "{dtype:?}: {error}");
        assert_eq!(sparsity(&other).unwrap()["blocks.0.weight"], sparsity(&model).unwrap()["blocks.0.weight"]);
        assert_eq!(other.single().head.weight.base().dtype(), burn::tensor::DType::F32);
    }
    let trained = Net::new(&Device::flex().autodiff()).half();
    assert!(trained.head.weight.base().is_require_grad());
}

#[test]
fn loss_scaling_skips_overflows_and_keeps_small_gradients() {
    use briquette_nn::LossScaler;
    let device = Device::flex().autodiff();
    let model = Compression::new().compute_in(FloatDType::F16).attach(Net::new(&device)).unwrap();
    let mut scaler = LossScaler::new(65_536.0, 1);
    let grads = |model: &Net, scaler: &LossScaler, size: f32| {
        let x = Tensor::<2>::ones([4, 24], &device).cast(FloatDType::F16);
        let loss = (model.forward(x).cast(FloatDType::F32) * size).mean();
        GradientsParams::from_grads(scaler.scale(loss).backward(), model)
    };
    let bias = |grads: &GradientsParams| values(grads.get::<1>(model.head.bias.as_ref().unwrap().id).unwrap());
    let small = 1e-7;
    let found = scaler.unscale(grads(&model, &scaler, small), &model).unwrap().unwrap();
    assert!(bias(&found).iter().all(|grad| (grad / (small / 5.0) - 1.0).abs() < 0.01), "{:?}", bias(&found));
    assert_eq!(scaler.factor(), 131_072.0);
    assert!(scaler.unscale(grads(&model, &scaler, 1e3), &model).unwrap().is_none());
    assert_eq!(scaler.factor(), 65_536.0);
}

#[test]
fn two_of_four_inputs_are_kept_in_every_group() {
    let rules = Compression::new().prune(Prune::n_of_m("**.weight", 2, 4).unwrap());
    let model = rules.attach(Net::new(&Device::flex())).unwrap();
    // burn stores `[in, out]`: neighbouring inputs of one output are one row apart.
    let weight = values(model.head.weight.val());
    for (out, group) in (0..5).flat_map(|out| (0..6).map(move |group| (out, group))) {
        let kept = (0..4).filter(|i| weight[(4 * group + i) * 5 + out] != 0.0).count();
        assert_eq!(kept, 2, "output {out}, inputs from {}", 4 * group);
    }
    let error = Compression::new().prune(Prune::n_of_m("head.weight", 2, 5).unwrap()).attach(Net::new(&Device::flex()));
    assert_eq!(
        error.unwrap_err().to_string(),
        "head.weight: found pattern 2:5, but 5 does not divide 24 columns; choose another pattern"
    );
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    let device = Device::flex();
    let mut model = Net::new(&device);
    model.head.weight = burn::module::Param::from_tensor(Tensor::full([24, 5], f32::NAN, &device));
    let error = Compression::new().prune(Prune::new("**.weight", 0.5).unwrap()).attach(model).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused);
    assert!(error.to_string().starts_with("head.weight: weight 0 is NaN"), "{error}");
}
