//! Tests `decode(encode(w)) == fake_quantize(w) == attached.val()`, bit for bit on the CPU.

use crate::fixture::values;
use briquette_core::encoded::ScaleType;
use briquette_core::{Decision, Grid, GridKind, OutputAxis, Rows, Shape, decode, encode, fake_quantize};
use briquette_methods::quant::{ScaleSearch, Scheme};
use briquette_nn::{Compression, Prune, Quantize, decisions};
use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use proptest::prelude::*;

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    linear: Linear,
}

/// Returns a weight as rows of outputs.
pub(crate) fn to_rows(own: &[f32], rows: &Rows) -> Vec<f32> {
    let at = |row: usize, col: usize| match rows.axis {
        OutputAxis::First | OutputAxis::Stacked => own[row * rows.n_cols + col],
        OutputAxis::Last | OutputAxis::Second => own[(col / rows.run * rows.n_rows + row) * rows.run + col % rows.run],
    };
    (0..rows.n_rows).flat_map(|row| (0..rows.n_cols).map(move |col| at(row, col))).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn check(base: &[f32], attached: &[f32], rows: &Rows, decision: &Decision) -> Result<(), TestCaseError> {
    let (base, attached) = (to_rows(base, rows), to_rows(attached, rows));
    let fake_quantized = fake_quantize(&base, rows.n_rows, rows.n_cols, decision);
    prop_assert_eq!(bits(&fake_quantized), bits(&attached));
    prop_assert_eq!(bits(&decode(&encode(&base, rows.n_rows, rows.n_cols, decision))), bits(&attached));
    let again = fake_quantize(&fake_quantized, rows.n_rows, rows.n_cols, decision);
    prop_assert_eq!(bits(&again), bits(&fake_quantized));
    Ok(())
}

fn any_weight() -> impl Strategy<Value = f32> {
    prop_oneof![-1.0_f32..1.0, Just(0.0), Just(-0.0), Just(0.25), -1e-3_f32..1e-3, -50.0_f32..50.0]
}

const RANGES: [ScaleSearch; 5] =
    [ScaleSearch::AbsMax, ScaleSearch::MinMax, ScaleSearch::Percentile(0.95), ScaleSearch::Mse, ScaleSearch::Hqq];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn file_and_module_agree_for_every_scheme(
        conv in prop::collection::vec(any_weight(), 6 * 4 * 3 * 3),
        linear in prop::collection::vec(any_weight(), 36 * 7),
        n_bits in 2_u8..=8,
        suffix in prop::sample::select(vec!["", "-asym", "-g4", "-g12-asym"]),
        range in prop::sample::select(RANGES.to_vec()),
        per_tensor: bool,
        is_full: bool,
        has_half_scales: bool,
        prune in prop_oneof![Just(None), (0.0_f64..=1.0).prop_map(|share| Some(Ok(share))), Just(Some(Err([2, 4])))],
        autodiff: bool,
    ) {
        let device = if autodiff { Device::flex().autodiff() } else { Device::flex() };
        let mut scheme: Scheme = format!("int{n_bits}{suffix}").parse().unwrap();
        scheme.weights.range = range;
        if is_full && !scheme.weights.grid.is_asymmetric() {
            scheme.weights.grid = Grid::new(n_bits, GridKind::SymmetricFull).unwrap();
        }
        if has_half_scales {
            scheme.weights.scale = ScaleType::F16;
        }
        if per_tensor {
            scheme.weights.grouping = briquette_core::Grouping::Tensor;
        }
        let mut net = Net {
            conv: Conv2dConfig::new([4, 6], [3, 3]).init(&device),
            linear: LinearConfig::new(36, 7).init(&device),
        };
        net.conv.weight = Param::from_tensor(Tensor::from_data(TensorData::new(conv.clone(), [6, 4, 3, 3]), &device));
        net.linear.weight = Param::from_tensor(Tensor::from_data(TensorData::new(linear.clone(), [36, 7]), &device));
        let mut rules = Compression::new().quantize(Quantize::with_scheme("*.weight", scheme).unwrap());
        match prune {
            Some(Ok(share)) => rules = rules.prune(Prune::new("*.weight", share).unwrap()),
            Some(Err([n, m])) => rules = rules.prune(Prune::n_of_m("*.weight", n, m).unwrap()),
            None => {}
        }
        let net = rules.attach(net).unwrap();
        let decisions = decisions(&net).unwrap();
        let conv_rows = Rows::of(&Shape(vec![6, 4, 3, 3]), OutputAxis::First);
        check(&conv, &values(net.conv.weight.val()), &conv_rows, &decisions["conv.weight"])?;
        let linear_rows = Rows::of(&Shape(vec![36, 7]), OutputAxis::Last);
        check(&linear, &values(net.linear.weight.val()), &linear_rows, &decisions["linear.weight"])?;
        let plain = net.clone().materialize();
        prop_assert_eq!(bits(&values(plain.linear.weight.val())), bits(&values(net.linear.weight.val())));
    }
}
