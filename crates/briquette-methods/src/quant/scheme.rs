//! Named schemes: short names of a grid, a grouping and a range.

use crate::quant::ScaleSearch;
use briquette_core::encoded::{Codes, ScaleType};
use briquette_core::{Grid, GridKind, Grouping};
use std::ops::RangeInclusive;

/// How weights are quantized, before scales are computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantSpec {
    /// The integer codes.
    pub grid: Grid,
    /// Which weights share a scale.
    pub grouping: Grouping,
    /// How the range of a group is chosen.
    pub range: ScaleSearch,
    /// The type of the scales.
    pub scale: ScaleType,
    /// Whether each column has a scale too.
    pub has_columns: bool,
    /// Whether codes are chosen on a [trellis](briquette_core::entropy::trellis), where they take fewer bits.
    pub has_trellis: bool,
}

impl QuantSpec {
    /// Returns the layout of the resulting codes.
    pub fn codes(&self) -> Codes {
        Codes {
            bits: self.grid.n_bits(),
            grid: self.grid.kind(),
            grouping: self.grouping,
            scale: self.scale,
            has_columns: self.has_columns,
        }
    }

    /// Returns the scheme for rows of `n_cols` weights. It has one scale per row if the groups do not divide
    /// the row.
    pub fn for_columns(self, n_cols: usize) -> Self {
        match self.grouping.per_row(n_cols) {
            Some(_) => self,
            None => Self { grouping: Grouping::Row, ..self },
        }
    }

    /// Returns the scheme with plain codes of about as many bits: a step of twice the size.
    pub fn without_trellis(self) -> Self {
        let range = match self.range {
            ScaleSearch::Step(Some(size)) if self.has_trellis => ScaleSearch::Step(Some(2.0 * size)),
            ScaleSearch::StepByFrequency(size) if self.has_trellis => ScaleSearch::StepByFrequency(2.0 * size),
            range => range,
        };
        Self { range, has_trellis: false, ..self }
    }

    /// Returns whether the scale of any group requires all weights of the tensor.
    pub fn needs_whole(&self) -> bool {
        self.grouping == Grouping::Tensor && !matches!(self.range, ScaleSearch::Step(_))
    }
}

/// How the runtime quantizes activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// Not at all: weight-only quantization.
    #[default]
    Float,
    /// int8 with a dynamic scale per token.
    DynamicSymmetric,
    /// int8 with a dynamic scale and zero point per token.
    DynamicAsymmetric,
    /// int8 on a fixed grid for each activation, from calibration data.
    Static,
}

/// A quantization scheme for weights and activations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scheme {
    /// The weights.
    pub weights: QuantSpec,
    /// The activations at runtime.
    pub activations: Activations,
}

/// The error for a name that is not a scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownScheme(pub String);

impl std::fmt::Display for UnknownScheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "unknown scheme {:?}: expected int8, int8-dynamic, int8-dynamic-sym, int8-static, or intB, intB-asym, intB-gN, \
             intB-gN-asym with 2 to 8 bits B and a group size N (int4-g128), or int4 and int4-gN followed by -dynamic \
             or -dynamic-sym (int4-g32-dynamic), or step, stepS, stepS-tensor, stepS-frequency with a step size S \
             from {:e} to {:e} (step0.01), optionally followed by -trellis, -dynamic or -trellis-dynamic",
            self.0,
            STEP_SIZES.start(),
            STEP_SIZES.end()
        )
    }
}

impl std::error::Error for UnknownScheme {}

/// Valid step sizes: f32 represents them, their power-of-two multiples and their products with codes.
pub const STEP_SIZES: RangeInclusive<f32> = 1e-37..=1e36;

impl Scheme {
    /// int8 weights, symmetric, one scale per output channel; float activations.
    pub const INT8: Self = Self {
        weights: QuantSpec {
            grid: Grid::INT8,
            grouping: Grouping::Row,
            range: ScaleSearch::AbsMax,
            scale: ScaleType::F32,
            has_columns: false,
            has_trellis: false,
        },
        activations: Activations::Float,
    };

    /// The smallest step size whose power-of-two multiples are exact in f16.
    const LEAST_F16: f32 = 1.0 / 4096.0;

    /// Parses the part of a `step` scheme after the word `step`: `[<size>][-tensor|-frequency][-trellis][-dynamic]`.
    ///
    /// The codes are int8, with one step size for all rows, times a power of two for rows with large weights.
    /// Without a size, a budget chooses it. `-tensor` uses the step size unchanged in all rows.
    /// `-frequency` multiplies it by a factor for each row, by the frequency of the token. `-trellis` chooses codes on a
    /// trellis, which needs a size.
    fn of_step(rest: &str) -> Option<Self> {
        let (rest, activations) = match rest.strip_suffix("-dynamic") {
            Some(rest) => (rest, Activations::DynamicAsymmetric),
            None => (rest, Activations::Float),
        };
        let (rest, has_trellis) = match rest.strip_suffix("-trellis") {
            Some("") => return None,
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let (rest, grouping) = match rest.strip_suffix("-tensor") {
            Some("") => return None,
            Some(size) => (size, Grouping::Tensor),
            None => (rest, Grouping::Row),
        };
        if let Some(size) = rest.strip_suffix("-frequency") {
            let size = size.parse().ok().filter(|size| STEP_SIZES.contains(size) && grouping == Grouping::Row)?;
            let (range, scale) = (ScaleSearch::StepByFrequency(size), ScaleType::Log8);
            return Some(Self { weights: QuantSpec { range, scale, has_trellis, ..Self::INT8.weights }, activations });
        }
        let size = rest;
        let size =
            if size.is_empty() { None } else { Some(size.parse().ok().filter(|size| STEP_SIZES.contains(size))?) };
        let scale = if size.is_none_or(|size: f32| (Self::LEAST_F16..1.0).contains(&size)) {
            ScaleType::F16
        } else {
            ScaleType::F32
        };
        let weights = QuantSpec { range: ScaleSearch::Step(size), grouping, scale, has_trellis, ..Self::INT8.weights };
        Some(Self { weights, activations })
    }

    /// Parses `int<bits>[-g<size>][-asym]`, with float activations.
    fn of_weights(name: &str) -> Option<Self> {
        let mut words = name.strip_prefix("int")?.split('-');
        let n_bits = words.next().and_then(|word| word.parse().ok())?;
        let (mut grouping, mut kind) = (Grouping::Row, GridKind::Symmetric);
        for word in words {
            match word.strip_prefix('g').map(str::parse) {
                Some(Ok(size)) if size > 0 && grouping == Grouping::Row => grouping = Grouping::Group(size),
                None if word == "asym" && kind == GridKind::Symmetric => kind = GridKind::Asymmetric,
                _ => return None,
            }
        }
        let grid = Grid::new(n_bits, kind)?;
        let range = if grid.is_asymmetric() { ScaleSearch::MinMax } else { ScaleSearch::AbsMax };
        let weights =
            QuantSpec { grid, grouping, range, scale: ScaleType::F32, has_columns: false, has_trellis: false };
        Some(Self { weights, activations: Activations::Float })
    }

    /// Returns whether kernels multiply the codes by int8 activations: int8 with one scale per row, and int4.
    fn multiplies_integers(&self) -> bool {
        match (self.weights.grid.n_bits(), self.weights.grouping) {
            _ if self.weights.grid.is_asymmetric() => false,
            (8, Grouping::Row) | (4, _) => true,
            _ => false,
        }
    }

    /// Returns whether a budget must still set the step size.
    pub fn is_open(&self) -> bool {
        self.weights.range == ScaleSearch::Step(None)
    }
}

/// Returns the name of the scheme with this step size, to four digits, followed by `suffix`.
///
/// The suffix has the words `-tensor` or `-frequency`, `-trellis` and `-dynamic`, or none. A size outside [`STEP_SIZES`] becomes the nearest one
/// inside, so that every name can be parsed.
pub fn step_name(size: f64, suffix: &str) -> String {
    let size = size.clamp(f64::from(*STEP_SIZES.start()), f64::from(*STEP_SIZES.end()));
    format!("step{size:.3e}{suffix}")
}

/// Multiplies the step size in the name of a scheme. `None` if the scheme has no step size.
pub fn scaled_step(scheme: &str, factor: f64) -> Option<String> {
    let rest = scheme.strip_prefix("step")?;
    let end = ["-tensor", "-frequency", "-trellis", "-dynamic"]
        .into_iter()
        .filter_map(|word| rest.find(word))
        .min()
        .unwrap_or(rest.len());
    let size: f64 = rest[..end].parse().ok()?;
    Some(step_name(size * factor, &rest[end..]))
}

impl std::str::FromStr for Scheme {
    type Err = UnknownScheme;

    /// Parses `step[<size>][-tensor|-frequency][-trellis][-dynamic]` or `int<bits>[-g<size>][-asym]`.
    ///
    /// Without a group size, there is one scale per channel. `int8`, `int4` and `int4-g<size>` may end in
    /// `-dynamic` or `-dynamic-sym`, for int8 activations, and `int8` in `-static`.
    fn from_str(name: &str) -> Result<Self, UnknownScheme> {
        let unknown = || UnknownScheme(name.to_string());
        if let Some(rest) = name.strip_prefix("step") {
            return Self::of_step(rest).ok_or_else(unknown);
        }
        let dynamic = [("-dynamic", Activations::DynamicAsymmetric), ("-dynamic-sym", Activations::DynamicSymmetric)];
        for (suffix, activations) in dynamic {
            if let Some(weights) = name.strip_suffix(suffix) {
                let scheme = Self::of_weights(weights).filter(Self::multiplies_integers).ok_or_else(unknown)?;
                return Ok(Self { activations, ..scheme });
            }
        }
        if name == "int8-static" {
            return Ok(Self { activations: Activations::Static, ..Self::INT8 });
        }
        Self::of_weights(name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_set_bits_group_and_symmetry() {
        let scheme: Scheme = "int4-g32-asym".parse().unwrap();
        assert_eq!(scheme.weights.grid, Grid::new(4, GridKind::Asymmetric).unwrap());
        assert_eq!((scheme.weights.grouping, scheme.weights.range), (Grouping::Group(32), ScaleSearch::MinMax));
        assert_eq!("int8".parse(), Ok(Scheme::INT8));
        assert_eq!("int8-dynamic".parse::<Scheme>().unwrap().activations, Activations::DynamicAsymmetric);
        let fixed = Scheme { activations: Activations::Static, ..Scheme::INT8 };
        assert_eq!("int8-static".parse(), Ok(fixed));
        let step: Scheme = "step0.0125-dynamic".parse().unwrap();
        assert_eq!((step.weights.range, step.weights.scale), (ScaleSearch::Step(Some(0.0125)), ScaleType::F16));
        assert_eq!((step.activations, step.weights.grouping), (Activations::DynamicAsymmetric, Grouping::Row));
        let tensor: Scheme = "step0.0125-tensor-dynamic".parse().unwrap();
        assert_eq!(tensor.weights, QuantSpec { grouping: Grouping::Tensor, ..step.weights });
        assert!(!tensor.weights.needs_whole());
        let rows: Scheme = "step0.0125-frequency-dynamic".parse().unwrap();
        let (range, scale) = (ScaleSearch::StepByFrequency(0.0125), ScaleType::Log8);
        assert_eq!(rows, Scheme { weights: QuantSpec { range, scale, ..Scheme::INT8.weights }, ..step });
        let trellis: Scheme = "step0.0125-frequency-trellis-dynamic".parse().unwrap();
        assert_eq!(trellis, Scheme { weights: QuantSpec { has_trellis: true, ..rows.weights }, ..rows });
        assert_eq!(trellis.weights.without_trellis(), "step0.025-frequency".parse::<Scheme>().unwrap().weights);
        assert_eq!(scaled_step("step0.0125-trellis", 2.0).as_deref(), Some("step2.500e-2-trellis"));
        assert_eq!(scaled_step("step0.0125-frequency", 2.0).as_deref(), Some("step2.500e-2-frequency"));
        assert_eq!("step1e-5".parse::<Scheme>().unwrap().weights.scale, ScaleType::F32);
        assert!("step".parse::<Scheme>().unwrap().is_open() && !step.is_open());
        for bad in [
            "",
            "step0",
            "step1e-38",
            "step1e37",
            "step-1",
            "stepnan",
            "stepinf",
            "step0.1-asym",
            "step-tensor",
            "step-frequency",
            "step-trellis",
            "step0.1-trellis-tensor",
            "int8-trellis",
            "step0.1-frequency-tensor",
            "step0.1-tensor-frequency",
            "int",
            "int1",
            "int9",
            "int8-",
            "int4-g0",
            "int4-gx",
            "fp8",
            "int4-g8-g8",
            "int8-dynamic-x",
            "int4-asym-dynamic",
            "int3-g32-dynamic",
            "int8-g32-dynamic",
            "int4-dynamic-g32",
            "int4-g32-dynamic-dynamic",
            "int4-g32-sym",
            "int4-static",
            "step0.1-static",
        ] {
            assert!(bad.parse::<Scheme>().is_err(), "{bad}");
        }
    }

    #[test]
    fn int4_with_dynamic_activations_has_the_weights_of_int4() {
        for weights in ["int4", "int4-g32", "int4-g64", "int4-g128", "int8"] {
            let plain: Scheme = weights.parse().unwrap();
            let dynamic =
                [("-dynamic", Activations::DynamicAsymmetric), ("-dynamic-sym", Activations::DynamicSymmetric)];
            for (suffix, activations) in dynamic {
                assert_eq!(format!("{weights}{suffix}").parse(), Ok(Scheme { activations, ..plain }));
            }
        }
    }

    #[test]
    fn groups_that_do_not_divide_the_columns_become_rows() {
        let spec = "int4-g32-asym".parse::<Scheme>().unwrap().weights;
        assert_eq!((spec.for_columns(64), spec.for_columns(0)), (spec, spec));
        for n_cols in [1, 27, 31, 33, 48] {
            assert_eq!(spec.for_columns(n_cols), QuantSpec { grouping: Grouping::Row, ..spec }, "{n_cols}");
        }
    }

    #[test]
    fn every_step_size_has_a_name_that_is_a_scheme() {
        for exponent in -330..=308 {
            let size = 1.234_56 * f64::powi(10.0, exponent);
            for suffix in ["", "-tensor", "-dynamic", "-tensor-dynamic"] {
                let name = step_name(size, suffix);
                let scheme: Scheme = name.parse().unwrap();
                let ScaleSearch::Step(Some(found)) = scheme.weights.range else { panic!("{name}") };
                let nearest = (size as f32).clamp(*STEP_SIZES.start(), *STEP_SIZES.end());
                assert!((found / nearest - 1.0).abs() < 1e-3, "{name} of {size}");
                let scaled = scaled_step(&name, 1e200).unwrap();
                assert!(scaled.parse::<Scheme>().is_ok(), "{scaled}");
            }
        }
    }
}
