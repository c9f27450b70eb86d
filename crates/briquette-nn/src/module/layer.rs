//! Identifies burn's layers from the place, fields and shapes of a struct.

use briquette_core::{OutputAxis, Role, Shape};

/// A kind of layer of burn or of [`crate::layers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// `Linear`.
    Linear,
    /// `Conv1d`, `Conv2d`, `Conv3d`.
    Conv,
    /// `ConvTranspose1d`, `ConvTranspose2d`, `ConvTranspose3d`.
    ConvTranspose,
    /// `Embedding`.
    Embedding,
    /// `BatchNorm`, `LayerNorm`, `GroupNorm`, `InstanceNorm`, `RmsNorm`.
    Norm,
}

/// A layer as burn's derive reports it: fields in order, including optional ones, and the rank of its weight.
struct KnownLayer {
    name: &'static str,
    fields: &'static [&'static str],
    rank: usize,
    layer: Layer,
    /// Whether the layer is one of `crate::layers`.
    is_ours: bool,
}

/// The field of `crate::layers::Linear` with the first factor of a low-rank layer.
pub(crate) const DOWN: &str = "down";

/// Layers with a field `weight`, and the fields after it.
const WITH_WEIGHT: [KnownLayer; 12] = [
    known("Linear", &["weight", "bias"], 2, Layer::Linear, false),
    known("Linear", &["weight", "bias", DOWN], 2, Layer::Linear, true),
    known("Conv1d", &["weight", "bias"], 3, Layer::Conv, false),
    known("Conv2d", &["weight", "bias"], 4, Layer::Conv, false),
    known("Conv2d", &["weight", "bias", "codes"], 4, Layer::Conv, true),
    known("Conv3d", &["weight", "bias"], 5, Layer::Conv, false),
    known("DeformConv2d", &["weight", "bias"], 4, Layer::Conv, false),
    known("ConvTranspose1d", &["weight", "bias"], 3, Layer::ConvTranspose, false),
    known("ConvTranspose2d", &["weight", "bias"], 4, Layer::ConvTranspose, false),
    known("ConvTranspose3d", &["weight", "bias"], 5, Layer::ConvTranspose, false),
    known("Embedding", &["weight"], 2, Layer::Embedding, false),
    known("Embedding", &["weight", "codes"], 2, Layer::Embedding, true),
];

/// The container of layers under the paths of a checkpoint. Its own fields are parameters of no layer, such as class tokens.
pub const NAMED_LAYERS: &str = "Struct:NamedLayers";

/// Norms, with fields `gamma` and `beta`. Vectors in other structs with these names count as norms too.
const NORMS: [&str; 5] = ["BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RmsNorm"];

const fn known(
    name: &'static str,
    fields: &'static [&'static str],
    rank: usize,
    layer: Layer,
    is_ours: bool,
) -> KnownLayer {
    KnownLayer { name, fields, rank, layer, is_ours }
}

/// A struct of a module: name, fields, and shapes of its parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct StructSeen {
    /// Name from burn, such as `Struct:Linear`.
    pub(crate) container: String,
    /// Whether burn defines the struct: see [`is_of_burn`](crate::module::is_of_burn).
    pub(crate) is_of_burn: bool,
    pub(crate) fields: Vec<String>,
    pub(crate) shapes: Vec<(String, Shape)>,
}

/// Layer, role and output axis of a parameter, and the evidence for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identified {
    pub(crate) layer: Option<Layer>,
    pub(crate) is_ours: bool,
    pub(crate) role: Role,
    pub(crate) axis: OutputAxis,
    pub(crate) why: &'static str,
}

impl Identified {
    const fn new(layer: Option<Layer>, role: Role, axis: OutputAxis, why: &'static str) -> Self {
        Self { layer, is_ours: false, role, axis, why }
    }

    /// Returns an unknown role with this reason.
    pub(crate) const fn unknown(why: &'static str) -> Self {
        Self::new(None, Role::Unknown, OutputAxis::First, why)
    }
}

impl StructSeen {
    fn name(&self) -> &str {
        self.container.strip_prefix("Struct:").unwrap_or_default()
    }

    fn shape(&self, field: &str) -> Option<&[usize]> {
        self.shapes.iter().find(|(name, _)| name == field).map(|(_, shape)| shape.0.as_slice())
    }

    /// Identifies a field of the struct.
    pub(crate) fn identify(&self, field: &str) -> Identified {
        let rank = self.shape(field).map_or(0, <[usize]>::len);
        if NORMS.contains(&self.name()) && (self.is_of_burn || rank < 2) {
            return Identified::new(Some(Layer::Norm), Role::Norm, OutputAxis::First, "a field of a norm");
        }
        if rank < 2 {
            return Identified::new(None, Role::Bias, OutputAxis::First, "a vector");
        }
        if self.container == NAMED_LAYERS {
            return Identified::new(None, Role::Parameter, OutputAxis::First, "a parameter of no layer");
        }
        let of_name = || WITH_WEIGHT.iter().filter(|known| known.name == self.name());
        match of_name().find(|known| self.is(known) && known.rank == rank) {
            Some(known) => self.of_layer(known),
            None if of_name().next().is_some() => {
                Identified::unknown("its struct has the name of one of burn's layers but is not that layer")
            }
            None => Identified::unknown("its struct is not a known layer"),
        }
    }

    /// Returns whether the struct is this layer: burn's by its source file, those of `briquette_nn` by their
    /// additional fields.
    fn is(&self, known: &KnownLayer) -> bool {
        known.name == self.name() && known.fields == self.fields && (known.is_ours || self.is_of_burn)
    }

    /// Returns whether the struct is `crate::layers::Linear`, whose `down` can run on codes too.
    pub(crate) fn has_down(&self) -> bool {
        WITH_WEIGHT.iter().any(|known| self.is(known) && known.fields.contains(&DOWN))
    }

    /// Identifies the weight of a layer; unknown if the length of its bias contradicts its axes.
    fn of_layer(&self, known: &KnownLayer) -> Identified {
        let (weight, bias) = (self.shape("weight").unwrap_or_default(), self.shape("bias"));
        let outputs = match known.layer {
            Layer::Linear | Layer::ConvTranspose => 1,
            _ => 0,
        };
        let fits = |n: &[usize]| match known.layer {
            // With groups, the second axis counts the outputs of one group.
            Layer::ConvTranspose => n[0].is_multiple_of(weight[outputs].max(1)),
            _ => n[0] == weight[outputs],
        };
        if !bias.is_none_or(fits) {
            return Identified::unknown("the length of its bias differs from the number of outputs");
        }
        let (role, axis, why) = match known.layer {
            Layer::Linear => (Role::Linear, OutputAxis::Last, "the weight of a Linear"),
            Layer::Conv => (Role::Conv, OutputAxis::First, "the weight of a convolution"),
            Layer::ConvTranspose => (Role::Conv, OutputAxis::Second, "the weight of a transposed convolution"),
            _ => (Role::Embedding, OutputAxis::First, "the table of an Embedding"),
        };
        Identified { is_ours: known.is_ours, ..Identified::new(Some(known.layer), role, axis, why) }
    }
}
