//! The result of each tensor, in few bytes, as there may be millions.

use super::solved::SolvedLayer;
use briquette_core::Role;
use briquette_core::stats::ErrorFigures;
use briquette_formats::TensorName;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The result of a tensor. It dereferences to the properties that other tensors share.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorReport {
    /// The name.
    pub name: TensorName,
    /// The properties that other tensors share.
    pub traits: Arc<TensorTraits>,
    /// Bytes of all parts after compression.
    pub after_bytes: u64,
    /// Bits per element after compression, with all parts.
    pub bits_per_weight: f64,
    /// The share of zeros after compression, in the values read back.
    pub sparsity: f64,
    /// The error against the original; none if the tensor was not changed.
    pub error: Option<ErrorReport>,
    /// Squared error of the layer's outputs over their square, if there are input statistics: most runs have none.
    pub output_error: Option<Box<f64>>,
    /// The result of the weight update, if there was one.
    pub solved: Option<Box<SolvedLayer>>,
}

/// The properties of a tensor that others share.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorTraits {
    /// The role.
    pub role: Role,
    /// The original type.
    pub dtype: String,
    /// The original shape.
    pub shape: Vec<usize>,
    /// How it is stored, as text.
    pub encoding: String,
    /// The reason, if there was a choice or the tensor was skipped.
    pub why: String,
    /// Bytes of the original's tensor of this name and shape; 0 if it has none.
    pub before_bytes: u64,
    /// Whether the original has no tensor of this name and shape.
    pub is_new: bool,
}

/// The error of a tensor against the original.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReport {
    /// Signal-to-noise ratio in dB; none if the tensors are equal.
    pub sqnr_db: Option<f64>,
    /// Cosine of the angle between the tensors; none if one is all zeros.
    pub cosine: Option<f64>,
    /// Norm of the difference over the norm of the original.
    pub relative: f64,
}

impl From<ErrorFigures> for ErrorReport {
    fn from(figures: ErrorFigures) -> Self {
        Self { sqnr_db: figures.sqnr_db, cosine: figures.cosine, relative: figures.relative }
    }
}

/// A tensor of the original without a counterpart in the output, by name and shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GoneTensor {
    /// The name.
    pub name: String,
    /// The role.
    pub role: Role,
    /// The type.
    pub dtype: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// The size in bytes.
    pub bytes: u64,
}

/// The result of a tensor.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "TensorReport")]
struct TensorJson<'a> {
    /// The name.
    #[schemars(with = "String")]
    name: Cow<'a, str>,
    /// The role.
    role: Role,
    /// The original type.
    #[schemars(with = "String")]
    dtype: Cow<'a, str>,
    /// The original shape.
    #[schemars(with = "Vec<usize>")]
    shape: Cow<'a, [usize]>,
    /// How it is stored, as text.
    #[schemars(with = "String")]
    encoding: Cow<'a, str>,
    /// The reason, if there was a choice or the tensor was skipped.
    #[schemars(with = "String")]
    why: Cow<'a, str>,
    /// Bytes of the original's tensor of this name and shape; 0 if it has none.
    before_bytes: u64,
    /// Whether the original has no tensor of this name and shape.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_new: bool,
    /// Bytes of all parts after compression.
    after_bytes: u64,
    /// Bits per element after compression, with all parts.
    bits_per_weight: f64,
    /// The share of zeros after compression, in the values read back.
    sparsity: f64,
    /// The error against the original; none if the tensor was not changed.
    error: Option<ErrorReport>,
    /// Squared error of the layer's outputs over their square, `Σ E[x²]·e² / Σ E[x²]·w²`, if there are input
    /// statistics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output_error: Option<f64>,
    /// The result of the weight update, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<SolvedLayer>")]
    solved: Option<Cow<'a, SolvedLayer>>,
}

impl Deref for TensorReport {
    type Target = TensorTraits;

    fn deref(&self) -> &TensorTraits {
        &self.traits
    }
}

impl DerefMut for TensorReport {
    /// Returns the shared properties for changes. The tensor then has its own.
    fn deref_mut(&mut self) -> &mut TensorTraits {
        Arc::make_mut(&mut self.traits)
    }
}

impl Serialize for TensorReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        TensorJson {
            name: Cow::Borrowed(&self.name),
            role: self.role,
            dtype: Cow::Borrowed(&self.dtype),
            shape: Cow::Borrowed(&self.shape),
            encoding: Cow::Borrowed(&self.encoding),
            why: Cow::Borrowed(&self.why),
            before_bytes: self.before_bytes,
            is_new: self.is_new,
            after_bytes: self.after_bytes,
            bits_per_weight: self.bits_per_weight,
            sparsity: self.sparsity,
            error: self.error,
            output_error: self.output_error.as_deref().copied(),
            solved: self.solved.as_deref().map(Cow::Borrowed),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TensorReport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = TensorJson::deserialize(deserializer)?;
        let traits = TensorTraits {
            role: found.role,
            dtype: found.dtype.into_owned(),
            shape: found.shape.into_owned(),
            encoding: found.encoding.into_owned(),
            why: found.why.into_owned(),
            before_bytes: found.before_bytes,
            is_new: found.is_new,
        };
        Ok(Self {
            name: found.name.into_owned().into(),
            traits: Arc::new(traits),
            after_bytes: found.after_bytes,
            bits_per_weight: found.bits_per_weight,
            sparsity: found.sparsity,
            error: found.error,
            output_error: found.output_error.map(Box::new),
            solved: found.solved.map(|solved| Box::new(solved.into_owned())),
        })
    }
}

impl JsonSchema for TensorReport {
    fn schema_name() -> Cow<'static, str> {
        TensorJson::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        TensorJson::json_schema(generator)
    }
}

/// Returns a row for the tables of the output, without an encoding.
impl From<&GoneTensor> for TensorReport {
    fn from(gone: &GoneTensor) -> Self {
        let traits = TensorTraits {
            role: gone.role,
            dtype: gone.dtype.clone(),
            shape: gone.shape.clone(),
            encoding: String::new(),
            why: String::new(),
            before_bytes: gone.bytes,
            is_new: false,
        };
        Self {
            name: gone.name.as_str().into(),
            traits: Arc::new(traits),
            after_bytes: 0,
            bits_per_weight: 0.0,
            sparsity: 0.0,
            error: None,
            output_error: None,
            solved: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn a_result_is_small_and_reads_back() {
        assert!(size_of::<TensorReport>() <= 112, "{}", size_of::<TensorReport>());
        let mut tensors: Vec<TensorReport> = sample::of_layers(2).tensors;
        tensors.extend(sample::of_student().tensors);
        tensors[0].output_error = Some(Box::new(0.25));
        for tensor in tensors {
            let json = serde_json::to_string(&tensor).unwrap();
            assert!(json.starts_with(&format!("{{\"name\":\"{}\",\"role\":", tensor.name)), "{json}");
            assert_eq!(serde_json::from_str::<TensorReport>(&json).unwrap(), tensor);
        }
    }
}
