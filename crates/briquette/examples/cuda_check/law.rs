//! Compares an attached parameter on the device with the decoded file of the same decision.

use crate::Options;
use crate::findings::Finding;
use crate::kernels::{difference, floats, worst};
use briquette::core::encoded::ScaleType;
use briquette::core::{Decision, Grid, GridKind, OutputAxis, Rows, Shape, decode, encode};
use briquette::nn::{Compression, Prune, Quantize, decisions};
use briquette::quant::{ScaleSearch, Scheme};
use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};

const CONV: [usize; 4] = [6, 4, 3, 3];
const LINEAR: [usize; 2] = [36, 7];
const RANGES: [ScaleSearch; 5] =
    [ScaleSearch::AbsMax, ScaleSearch::MinMax, ScaleSearch::Percentile(0.95), ScaleSearch::Mse, ScaleSearch::Hqq];

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    linear: Linear,
}

/// Returns one finding per range method: the worst over all bit widths, grids, groups and pruning patterns.
pub(crate) fn check(device: &Device, _: &Device, _: &Options) -> Vec<Finding> {
    let mut schemes: Vec<Scheme> = ["int8", "int8-asym", "int4-g4", "int4-g12-asym", "int2-asym", "int3"]
        .map(|name| name.parse().expect("a scheme"))
        .into();
    schemes.extend(schemes.clone().into_iter().map(with_f16_scales));
    let each = |range: ScaleSearch| {
        let differences = schemes.iter().flat_map(|scheme| {
            let mut scheme = *scheme;
            scheme.weights.range = range;
            let prune = [None, Some(Prune::new("*.weight", 0.5)), Some(Prune::n_of_m("*.weight", 2, 4))];
            prune.map(|rule| worst_of(device, &scheme, rule.map(|rule| rule.expect("a rule"))))
        });
        let name = format!("attached parameters and decoded files, {range:?}");
        Finding::at_most(name, worst(differences), "relative", 1e-6)
    };
    RANGES.map(each).into()
}

/// Returns the scheme with f16 scales and, if symmetric, the full-range grid.
fn with_f16_scales(mut scheme: Scheme) -> Scheme {
    let grid = scheme.weights.grid;
    if !grid.is_asymmetric() {
        scheme.weights.grid = Grid::new(grid.n_bits(), GridKind::SymmetricFull).expect("a grid");
    }
    scheme.weights.scale = ScaleType::F16;
    scheme
}

fn worst_of(device: &Device, scheme: &Scheme, prune: Option<Prune>) -> f64 {
    let (conv, linear) = (floats(CONV.iter().product(), 1), floats(LINEAR.iter().product(), 2));
    let mut net =
        Net { conv: Conv2dConfig::new([4, 6], [3, 3]).init(device), linear: LinearConfig::new(36, 7).init(device) };
    net.conv.weight = Param::from_tensor(Tensor::from_data(TensorData::new(conv.clone(), CONV), device));
    net.linear.weight = Param::from_tensor(Tensor::from_data(TensorData::new(linear.clone(), LINEAR), device));
    let mut rules = Compression::new().quantize(Quantize::with_scheme("*.weight", *scheme).expect("a rule"));
    if let Some(rule) = prune {
        rules = rules.prune(rule);
    }
    let net = rules.attach(net).expect("rules that fit");
    let decided = decisions(&net).expect("decisions");
    let attached = |values: TensorData| values.iter::<f32>().collect::<Vec<_>>();
    let conv_rows = Rows::of(&Shape(CONV.into()), OutputAxis::First);
    let linear_rows = Rows::of(&Shape(LINEAR.into()), OutputAxis::Last);
    let of_conv = apart(&conv, &attached(net.conv.weight.val().into_data()), &conv_rows, &decided["conv.weight"]);
    let of_linear =
        apart(&linear, &attached(net.linear.weight.val().into_data()), &linear_rows, &decided["linear.weight"]);
    worst([of_conv, of_linear])
}

/// Returns the largest difference between `attached` and `base` after encoding and decoding.
fn apart(base: &[f32], attached: &[f32], rows: &Rows, decision: &Decision) -> f64 {
    let to_rows = |own: &[f32]| -> Vec<f32> {
        let at = |row: usize, col: usize| match rows.axis {
            OutputAxis::First | OutputAxis::Stacked => own[row * rows.n_cols + col],
            OutputAxis::Last | OutputAxis::Second => {
                own[(col / rows.run * rows.n_rows + row) * rows.run + col % rows.run]
            }
        };
        (0..rows.n_rows).flat_map(|row| (0..rows.n_cols).map(move |col| at(row, col))).collect()
    };
    let decoded = decode(&encode(&to_rows(base), rows.n_rows, rows.n_cols, decision));
    difference(&to_rows(attached), &decoded)
}
