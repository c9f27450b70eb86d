//! Which of burn's layers a parameter belongs to, told by more than the layer's name.

use briquette_core::{OutputAxis, Role, Shape};

/// A layer of burn's, or of `briquette_nn::layers`.
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
    /// Whether it is one of `briquette_nn::layers`.
    is_ours: bool,
}

/// The layers whose weight is called `weight`, and what follows it.
const WITH_WEIGHT: [KnownLayer; 12] = [
    known("Linear", &["weight", "bias"], 2, Layer::Linear, false),
    known("Linear", &["weight", "bias", "down"], 2, Layer::Linear, true),
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

/// The normalisations, whose weight is called gamma and whose bias beta.
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
        if NORMS.contains(&self.name()) {
            return Taken::new(Some(Layer::Norm), Role::Norm, OutputAxis::First, "a field of a normalisation");
        }
        if rank < 2 {
            return Taken::new(None, Role::Bias, OutputAxis::First, "a vector");
        }
        let of_name = || WITH_WEIGHT.iter().filter(|known| known.name == self.name());
        match of_name().find(|known| known.fields == self.fields && known.rank == rank) {
            Some(known) => self.of_layer(known),
            None if of_name().next().is_some() => {
                Taken::unknown("its struct has the name of one of burn's layers and other fields or axes")
            }
            None => Taken::unknown("it is a field of no layer that is known"),
        }
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
            return Taken::unknown(
                "its struct has the name of one of burn's layers, and its bias is as long as another axis",
            );
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

/// Takes back what was assumed of structs that share the name of one that is shown to be none of burn's: whether their axes are as burn has
/// them, a square weight or one without a bias does not show.
pub(crate) fn doubt(structs: &[&StructSeen], taken: &mut [Taken]) {
    let is_foreign = |(seen, taken): (&&StructSeen, &Taken)| {
        (taken.role == Role::Unknown && WITH_WEIGHT.iter().any(|known| known.name == seen.name()))
            .then(|| seen.container.clone())
    };
    let foreign: Vec<String> = structs.iter().zip(&*taken).filter_map(is_foreign).collect();
    for (seen, taken) in structs.iter().zip(taken) {
        let shows = seen.shape("bias").zip(seen.shape("weight")).is_some_and(|(_, weight)| weight[0] != weight[1]);
        if foreign.contains(&seen.container) && taken.layer == Some(Layer::Linear) && !taken.is_ours && !shows {
            *taken = Taken::unknown("another struct of its name is none of burn's, and nothing shows that this one is");
        }
    }
}
