//! Finds the layer of burn's that a parameter belongs to: by where its struct is defined, its fields and their shapes.

use briquette_core::{OutputAxis, Role, Shape};

/// A layer of burn's, or of `crate::layers`.
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
    /// A normalisation.
    Norm,
}

/// A layer as burn's derive shows it: fields in their order, those that may be missing too, and axes of its weight.
struct KnownLayer {
    name: &'static str,
    fields: &'static [&'static str],
    rank: usize,
    layer: Layer,
    /// Whether it is one of `crate::layers`.
    is_ours: bool,
}

/// The field of our `Linear` that reduces inputs to a low rank.
pub(crate) const DOWN: &str = "down";

/// The layers whose weight is called `weight`, and what follows it.
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

/// The normalisations, whose weight is called gamma and whose bias beta. Vectors of other structs with these names count too.
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

/// A struct of a module: its name, its fields, and the shapes of those that are parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct StructSeen {
    /// As burn names it: `Struct:Linear`.
    pub(crate) container: String,
    /// Whether burn defines the struct: see [`is_of_burn`](crate::module::is_of_burn).
    pub(crate) is_of_burn: bool,
    pub(crate) fields: Vec<String>,
    pub(crate) shapes: Vec<(String, Shape)>,
}

/// What a parameter is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) layer: Option<Layer>,
    pub(crate) is_ours: bool,
    pub(crate) role: Role,
    pub(crate) axis: OutputAxis,
    pub(crate) why: &'static str,
}

impl Taken {
    const fn new(layer: Option<Layer>, role: Role, axis: OutputAxis, why: &'static str) -> Self {
        Self { layer, is_ours: false, role, axis, why }
    }

    /// What nothing shows.
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

    /// What one of its fields is.
    pub(crate) fn taken(&self, field: &str) -> Taken {
        let rank = self.shape(field).map_or(0, <[usize]>::len);
        if NORMS.contains(&self.name()) && (self.is_of_burn || rank < 2) {
            return Taken::new(Some(Layer::Norm), Role::Norm, OutputAxis::First, "a field of a normalisation");
        }
        if rank < 2 {
            return Taken::new(None, Role::Bias, OutputAxis::First, "a vector");
        }
        let of_name = || WITH_WEIGHT.iter().filter(|known| known.name == self.name());
        match of_name().find(|known| self.is(known) && known.rank == rank) {
            Some(known) => self.of_layer(known),
            None if of_name().next().is_some() => {
                Taken::unknown("its struct shares the name of one of burn's layers, and is another")
            }
            None => Taken::unknown("it is a field of no layer that is known"),
        }
    }

    /// Whether it is this layer: burn's by where it is defined, those of `briquette_nn` by fields that burn's do not have.
    fn is(&self, known: &KnownLayer) -> bool {
        known.name == self.name() && known.fields == self.fields && (known.is_ours || self.is_of_burn)
    }

    /// Whether it is `crate::layers::Linear`, whose field `down` runs on codes as its own weight does.
    pub(crate) fn has_down(&self) -> bool {
        WITH_WEIGHT.iter().any(|known| self.is(known) && known.fields.contains(&DOWN))
    }

    /// The weight of a layer, unless its bias shows that its axes are others.
    fn of_layer(&self, known: &KnownLayer) -> Taken {
        let (weight, bias) = (self.shape("weight").unwrap_or_default(), self.shape("bias"));
        let outputs = match known.layer {
            Layer::Linear | Layer::ConvTranspose => 1,
            _ => 0,
        };
        let fits = |n: &[usize]| match known.layer {
            // Of several groups, the second axis counts the outputs of one.
            Layer::ConvTranspose => n[0].is_multiple_of(weight[outputs].max(1)),
            _ => n[0] == weight[outputs],
        };
        if !bias.is_none_or(fits) {
            return Taken::unknown("its bias is not as long as the axis that counts outputs in such a layer");
        }
        let (role, axis, why) = match known.layer {
            Layer::Linear => (Role::Linear, OutputAxis::Last, "the weight of a Linear"),
            Layer::Conv => (Role::Conv, OutputAxis::First, "the filters of a convolution"),
            Layer::ConvTranspose => (Role::Conv, OutputAxis::Second, "the filters of a transposed convolution"),
            _ => (Role::Embedding, OutputAxis::First, "the table of an Embedding"),
        };
        Taken { is_ours: known.is_ours, ..Taken::new(Some(known.layer), role, axis, why) }
    }
}
