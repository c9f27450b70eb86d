//! Tests the settings of rules.

use crate::fixture::net::{Net, ids, loss, n_zeros, step};
use crate::fixture::{seeded, values};
use briquette_core::{ErrorKind, InputStats};
use briquette_formats::Checkpoint;
use briquette_nn::layers::LinearConfig;
use briquette_nn::{
    Compression, DynamicSpec, Export, NameMap, Prune, Quantize, Schedule, Score, decisions, load_into, quantize_dynamic,
};
use burn::module::{Module, ParamGroup};
use burn::nn::{Lstm, LstmConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use std::collections::BTreeMap;

#[test]
fn globs_exclude_parameters_from_one_rule_or_all() {
    let rules = Compression::new()
        .prune(Prune::new("**.weight", 0.25).unwrap())
        .prune(Prune::new("**.weight", 0.5).unwrap().exclude("h*.weight").unwrap())
        .quantize(Quantize::new("**.weight", "int8").unwrap().exclude("conv.*").unwrap())
        .leave("table.*")
        .unwrap();
    let model = rules.attach(Net::new(&Device::flex())).unwrap();
    let decided = decisions(&model).unwrap();
    assert_eq!(decided.keys().collect::<Vec<_>>(), ["conv.weight", "head.weight", "hidden.weight"]);
    assert_eq!((n_zeros(&model, "conv.weight"), decided["conv.weight"].quant.is_none()), (36, true));
    assert_eq!(decided["head.weight"].mask.as_ref().unwrap().n_kept(), 135, "the earlier rule applies");
    assert!(decided["head.weight"].quant.is_some());

    let attach = |rules: Compression| rules.attach(Net::new(&Device::flex())).unwrap_err().to_string();
    let error = attach(Compression::new().leave("tables.*").unwrap());
    assert!(error.starts_with("pattern \"tables.*\" matches no parameter"), "{error}");
    let error = attach(Compression::new().prune(Prune::new("**", 0.5).unwrap().exclude("nothing").unwrap()));
    assert!(error.starts_with("pattern \"nothing\" matches no parameter"), "{error}");
}

/// Counts the dropped weights of each part; `part_of` maps `(output, input)` to a part.
fn dropped_by(model: &Net, path: &str, part_of: impl Fn(usize, usize) -> usize) -> Vec<usize> {
    let mask = decisions(model).unwrap().remove(path).unwrap().mask.unwrap();
    let (n_rows, n_cols) = mask.dim();
    let mut counts = BTreeMap::new();
    for (row, col) in (0..n_rows).flat_map(|row| (0..n_cols).map(move |col| (row, col))) {
        *counts.entry(part_of(row, col)).or_insert(0) += usize::from(!mask.keeps(row, col));
    }
    counts.into_values().collect()
}

#[test]
fn sparsity_applies_per_output_or_per_block_of_inputs() {
    let device = Device::flex().autodiff();
    let schedule = Schedule::linear(0..4);
    let by_row = Compression::new().prune(Prune::new("**.weight", 0.5).unwrap().of_each_row().on(schedule));
    let by_block = Compression::new().prune(Prune::new("**.weight", 0.5).unwrap().of_each_columns(8).on(schedule));
    let mut optimizer = AdamWConfig::new().init();
    let mut models = [&by_row, &by_block].map(|rules| rules.attach(Net::new(&device)).unwrap());
    for t in 1..=4 {
        models = models.map(|model| step(model, &mut optimizer));
        let [of_rows, of_blocks] = models;
        models = [by_row.refresh(of_rows, t).unwrap(), by_block.refresh(of_blocks, t).unwrap()];
        let share = 0.125 * t as f64;
        let each = |n: usize| (share * n as f64).round_ties_even() as usize;
        assert_eq!(dropped_by(&models[0], "hidden.weight", |row, _| row), vec![each(512); 36], "step {t}");
        assert_eq!(dropped_by(&models[0], "conv.weight", |row, _| row), vec![each(9); 8], "step {t}");
        assert_eq!(dropped_by(&models[1], "hidden.weight", |_, col| col / 8), vec![each(288); 64], "step {t}");
        // 36 inputs: four blocks of 8 and one of 4; 9 inputs: one of 8 and one of 1.
        let expected = [each(40), each(40), each(40), each(40), each(40) / 2];
        assert_eq!(dropped_by(&models[1], "head.weight", |_, col| col / 8), expected, "step {t}");
        assert_eq!(dropped_by(&models[1], "conv.weight", |_, col| col / 8), [each(64), each(64) / 8], "step {t}");
    }
    let zero = Compression::new().prune(Prune::new("**.weight", 0.5).unwrap().of_each_columns(0));
    assert_eq!(zero.attach(Net::new(&device)).unwrap_err().kind, ErrorKind::Config);
    let wanda = Prune::new("hidden.weight", 0.5).unwrap().score(Score::Wanda).of_each_columns(8);
    let error = Compression::new().prune(wanda).attach(Net::new(&device)).unwrap_err().to_string();
    assert!(error.contains("compare weights within an output"), "{error}");
}

#[test]
fn own_scores_decide_like_the_same_built_in_score() {
    let device = Device::flex();
    let net = Net::new(&device);
    let squares = (0..512).map(|i| f64::from(i * 37 % 101)).collect();
    let stats = BTreeMap::from([(
        "hidden".to_string(),
        InputStats { count: 4, sum_squares: squares, ..InputStats::empty(512, false) },
    )]);
    let prune = || Prune::new("hidden.weight", 0.6).unwrap();
    let wanda = prune().score(Score::Wanda).inputs(&stats);
    let own_wanda = prune().of_each_row().inputs(&stats).score_by(|row| {
        let rms = &row.inputs.expect("statistics were given").rms;
        row.weights.iter().zip(rms).map(|(weight, rms)| weight.abs() * rms).collect()
    });
    let magnitude = |rule: Prune| rule.score_by(|row| row.weights.iter().map(|weight| weight.abs()).collect());
    let pairs = [
        (wanda, own_wanda),
        (prune(), magnitude(prune())),
        (prune().globally(), magnitude(prune().globally())),
        (prune().of_each_columns(100), magnitude(prune().of_each_columns(100))),
        (Prune::n_of_m("h*.weight", 2, 4).unwrap(), magnitude(Prune::n_of_m("h*.weight", 2, 4).unwrap())),
    ];
    for (i, (ours, own)) in pairs.into_iter().enumerate() {
        let attached = [ours, own].map(|rule| Compression::new().prune(rule).attach(net.clone()).unwrap());
        let [ours, own] = attached.map(|model| decisions(&model).unwrap());
        assert!(!ours.is_empty() && ours == own, "pair {i}");
    }
    // Dropped weights stay dropped, whatever their score.
    let rule = prune()
        .on(Schedule::linear(0..2))
        .score_by(|row| row.weights.iter().map(|weight| 9.0 - weight.abs().min(9.0)).collect());
    let rules = Compression::new().prune(rule);
    let half = rules.refresh(rules.attach(net.clone()).unwrap(), 1).unwrap();
    let first = decisions(&half).unwrap().remove("hidden.weight").unwrap().mask.unwrap();
    let all = decisions(&rules.refresh(half, 2).unwrap()).unwrap().remove("hidden.weight").unwrap().mask.unwrap();
    assert_eq!((first.n_kept(), all.n_kept()), (18_432 - 5530, 18_432 - 11_059));
    assert!((0..36).all(|row| (0..512).all(|col| first.keeps(row, col) || !all.keeps(row, col))));

    let refuse = |rule: Prune| Compression::new().prune(rule).attach(net.clone()).unwrap_err().to_string();
    let error = refuse(prune().score_by(|_| vec![1.0]));
    assert!(error.starts_with("hidden.weight: found 1 scores for row"), "{error}");
    let error = refuse(prune().score_by(|row| vec![if row.row == 3 { f32::NAN } else { 1.0 }; row.weights.len()]));
    assert_eq!(error, "hidden.weight: score 0 of row 3 is NaN, expected 0 or more");
    let few = BTreeMap::from([("hidden".to_string(), InputStats::empty(7, false))]);
    let error = refuse(magnitude(prune().inputs(&few)));
    assert!(error.contains("found statistics of 7 inputs"), "{error}");
}

#[test]
fn training_with_int8_activations_equals_inference_on_codes() {
    let device = Device::flex();
    // With other weights, one value in a dozen is halfway between two codes, and the last bit decides.
    let net = seeded(Net::new(&device), 1);
    let plain = net.forward(ids(&device));
    for (scheme, grid) in [
        ("int8-dynamic", briquette_cpu::ActivationGrid::Asymmetric),
        ("int8-dynamic-sym", briquette_cpu::ActivationGrid::Symmetric),
    ] {
        let rules = Compression::new().quantize(Quantize::new("**.weight", scheme).unwrap());
        let attached = rules.attach(net.clone()).unwrap();
        let trained = attached.forward(ids(&device));
        let spec = DynamicSpec::new().activations(grid);
        let served = quantize_dynamic(attached.clone(), &spec).unwrap().module.forward(ids(&device));
        let apart = |a: &Tensor<2>, b: &Tensor<2>| (a.clone() - b.clone()).abs().max().into_scalar::<f32>();
        let largest = plain.clone().abs().max().into_scalar::<f32>();
        assert!(apart(&trained, &served) < 1e-5 * largest, "{scheme}: {}", apart(&trained, &served) / largest);
        assert!(apart(&trained, &attached.materialize().forward(ids(&device))) > 1e-4 * largest, "{scheme} rounds");

        // In bf16 and with burn's operations, results agree within the precision of the type.
        let rules = rules.compute_in(FloatDType::BF16);
        let half = rules.attach(net.clone()).unwrap().forward(ids(&device)).cast(FloatDType::F32);
        assert!(apart(&half, &served) < 0.03 * largest, "{scheme}: {}", apart(&half, &served) / largest);
    }
    // Before the rule begins, nothing is quantized; gradients pass straight through.
    let later = Quantize::new("**.weight", "int8-dynamic").unwrap().on(Schedule::constant(5..9));
    let model = Compression::new().quantize(later).attach(net.clone()).unwrap();
    assert_eq!(values(model.forward(ids(&device))), values(plain));
    let device = Device::flex().autodiff();
    let rules = Compression::new().quantize(Quantize::new("weight", "int8-dynamic").unwrap());
    let layer = rules.attach(LinearConfig::new(6, 3).init(&device)).unwrap();
    let x = Tensor::<2>::random([4, 6], Distribution::Normal(0.0, 1.0), &device).require_grad();
    let grads = layer.forward(x.clone()).sum().backward();
    let expected = layer.weight.val().without_autodiff().sum_dim(1).reshape([1, 6]).expand([4, 6]);
    let apart = (x.grad(&grads).unwrap() - expected).abs().max().into_scalar::<f32>();
    assert!(apart < 1e-5, "{apart}");
}

#[test]
fn learned_scales_change_and_are_exported_exactly() {
    let device = Device::flex().autodiff();
    for scheme in ["int3", "int4-g4"] {
        let rules = Compression::new()
            .prune(Prune::new("h*.weight", 0.3).unwrap())
            .quantize(Quantize::new("h*.weight", scheme).unwrap().learned());
        let mut model = rules.attach(Net::new(&device)).unwrap();
        let scales = |model: &Net| decisions(model).unwrap().remove("hidden.weight").unwrap().quant.unwrap().affines;
        let first = scales(&model);
        let fitted = Compression::new()
            .prune(Prune::new("h*.weight", 0.3).unwrap())
            .quantize(Quantize::new("h*.weight", scheme).unwrap());
        assert_eq!(first, scales(&fitted.attach(stored(model.clone())).unwrap()), "{scheme}: fitted at first");
        let before = loss(&model).into_scalar::<f32>();
        let mut optimizer = AdamWConfig::new().with_weight_decay(0.0).init();
        for t in 1..=30 {
            model = rules.refresh(step(model, &mut optimizer), t).unwrap();
        }
        let after = loss(&model).into_scalar::<f32>();
        assert!(after < 0.5 * before, "{scheme}: {before} to {after}");
        let moved = scales(&model).iter().zip(&first).filter(|(now, first)| now != first).count();
        assert!(moved > first.len() / 2, "{scheme}: {moved} of {}", first.len());

        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        Export::to(&out).write(&model).unwrap();
        let again = load_into(Net::new(&Device::flex()), &Checkpoint::open(&out).unwrap(), &NameMap::torch()).unwrap();
        let bits = |net: &Net| values(net.hidden.weight.val()).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(&again), bits(&model), "{scheme}");
        // A record stores the learned scales, and training continues from them.
        let path = dir.path().join("net.bpk");
        model.clone().into_record().save(&path).unwrap();
        let loaded = rules.load(Net::new(&device), &path).unwrap();
        assert_eq!(scales(&loaded), scales(&model));
        let next = step(loaded, &mut AdamWConfig::new().init());
        assert_ne!(scales(&next), scales(&model));
    }
    let refuse = |rule: Quantize| Compression::new().quantize(rule).attach(Net::new(&device)).unwrap_err().to_string();
    let error = refuse(Quantize::new("head.weight", "int4-asym").unwrap().learned());
    assert_eq!(error, "head.weight: learned scales need a symmetric grid");
}

#[test]
fn learned_scales_of_a_frozen_layer_stay_constant() {
    let device = Device::flex().autodiff();
    let hidden = || ParamGroup::from_path("hidden.weight");
    let rules = Compression::new().quantize(Quantize::new("h*.weight", "int4").unwrap().learned());
    let frozen_before = rules.attach(Net::new(&device).freeze_group(hidden())).unwrap();
    let frozen_after = rules.attach(Net::new(&device)).unwrap().freeze_group(hidden());
    let frozen_plain = rules.attach(Net::new(&Device::flex()).freeze_group(hidden())).unwrap().train();
    for (name, mut model) in [("before", frozen_before), ("after", frozen_after), ("plain", frozen_plain)] {
        let scales = |model: &Net, path: &str| decisions(model).unwrap().remove(path).unwrap().quant.unwrap().affines;
        let before = [scales(&model, "hidden.weight"), scales(&model, "head.weight")];
        let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
        for t in 1..=5 {
            model = rules.refresh(step(model, &mut optimizer), t).unwrap();
        }
        assert_eq!(scales(&model, "hidden.weight"), before[0], "{name}");
        assert_ne!(scales(&model, "head.weight"), before[1], "{name}");
    }
}

/// Returns the stored weights without attached state.
fn stored(from: Net) -> Net {
    let mut net = Net::new(&Device::flex());
    net.hidden.weight = burn::module::Param::from_tensor(from.hidden.weight.base().without_autodiff());
    net.head.weight = burn::module::Param::from_tensor(from.head.weight.base().without_autodiff());
    net
}

#[derive(Module, Debug)]
struct Tagger {
    lstm: Lstm,
    head: burn::nn::Linear,
}

#[test]
fn recurrent_layers_are_refused_in_another_type() {
    let device = Device::flex().autodiff();
    let tagger = || Tagger {
        lstm: LstmConfig::new(6, 4, true).init(&device),
        head: burn::nn::LinearConfig::new(4, 2).init(&device),
    };
    let error = Compression::new().compute_in(FloatDType::BF16).attach(tagger()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused);
    let said = error.to_string();
    assert!(said.starts_with("lstm: burn's Lstm creates its states in F32"), "{said}");
    // The default type, and rules without `compute_in`, are accepted.
    let rules = Compression::new().prune(Prune::new("lstm.**.weight", 0.5).unwrap()).compute_in(FloatDType::F32);
    let model = rules.attach(tagger()).unwrap();
    let (out, _) = model.lstm.forward(Tensor::ones([2, 3, 6], &device), None);
    assert_eq!(model.head.forward(out).dims(), [2, 3, 2]);
}
