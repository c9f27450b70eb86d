//! What goes down in a training, word for word: what it means for tensors is for whoever trains to say.

use crate::parse::raw::{RawLayers, RawLoss};
use crate::parse::words::one_of;
use briquette_core::{Error, Result};

/// A loss and how much it counts.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedLoss {
    /// What is compared.
    pub kind: LossKind,
    /// Its factor.
    pub weight: f64,
}

/// What a loss compares.
#[derive(Debug, Clone, PartialEq)]
pub enum LossKind {
    /// The teacher's class scores at a temperature.
    Logits(LogitsBy, f32),
    /// Labels, with the share that is spread over all classes.
    Labels(f32),
    /// Hidden states of paired layers.
    Hidden(HiddenBy, LayerChoice),
    /// Attention of paired layers.
    Attention(AttentionBy, LayerChoice),
    /// Embeddings.
    Embedding(EmbeddingBy),
}

/// How class scores are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsBy {
    /// By the Kullback-Leibler divergence.
    Kl,
    /// By the Jensen-Shannon divergence.
    JensenShannon,
}

/// How hidden states are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenBy {
    /// By the mean squared error.
    Mse,
    /// By the cosine.
    Cosine,
}

/// What of attention is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionBy {
    /// What each token looks at.
    Maps,
    /// How values relate to each other, their width cut into so many heads.
    Values(usize),
}

/// How embeddings are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingBy {
    /// Each with its own, by the cosine.
    Cosine,
    /// By how similar those of a batch are to each other.
    Similarity,
}

/// Which layers: of a student those it keeps, of a loss those of the teacher that it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerChoice {
    /// Evenly spread, ending at the last.
    Every,
    /// The first ones.
    First,
    /// The last ones.
    Last,
    /// These, from 0.
    Listed(Vec<usize>),
}

impl LayerChoice {
    pub(crate) fn from_raw(raw: Option<&RawLayers>) -> Result<Self> {
        match raw {
            None => Ok(Self::Every),
            Some(RawLayers::List(layers)) => Ok(Self::Listed(layers.clone())),
            Some(RawLayers::Name(name)) => {
                one_of("layers", name, &[("every", 0), ("first", 1), ("last", 2)]).map(|place| match place {
                    0 => Self::Every,
                    1 => Self::First,
                    _ => Self::Last,
                })
            }
        }
    }
}

impl LossKind {
    /// Whether it compares states within the network, which are too large to keep for every item.
    pub fn looks_inside(&self) -> bool {
        matches!(self, Self::Hidden(..) | Self::Attention(..))
    }

    fn from_raw(raw: &RawLoss) -> Result<Self> {
        let by = raw.by.as_deref();
        let kinds = ["logits", "labels", "hidden", "attention", "embedding"].map(|kind| (kind, kind));
        Ok(match one_of("kind", &raw.kind, &kinds)? {
            "logits" => {
                only(raw, &["temperature", "by"])?;
                let known = [("kl", LogitsBy::Kl), ("js", LogitsBy::JensenShannon)];
                Self::Logits(one_of("by", by.unwrap_or("kl"), &known)?, raw.temperature.unwrap_or(4.0))
            }
            "labels" => {
                only(raw, &["smoothing"])?;
                Self::Labels(raw.smoothing.unwrap_or(0.0))
            }
            "hidden" => {
                only(raw, &["by", "layers"])?;
                let known = [("mse", HiddenBy::Mse), ("cosine", HiddenBy::Cosine)];
                Self::Hidden(one_of("by", by.unwrap_or("mse"), &known)?, LayerChoice::from_raw(raw.layers.as_ref())?)
            }
            "attention" => {
                only(raw, &["by", "layers", "heads"])?;
                let known = [("maps", AttentionBy::Maps), ("values", AttentionBy::Values(raw.heads.unwrap_or(12)))];
                let by = one_of("by", by.unwrap_or("maps"), &known)?;
                Self::Attention(by, LayerChoice::from_raw(raw.layers.as_ref())?)
            }
            _ => {
                only(raw, &["by"])?;
                let known = [("cosine", EmbeddingBy::Cosine), ("similarity", EmbeddingBy::Similarity)];
                Self::Embedding(one_of("by", by.unwrap_or("cosine"), &known)?)
            }
        })
    }
}

/// Refuses keys that this kind of loss does not have.
fn only(raw: &RawLoss, keys: &[&str]) -> Result<()> {
    let found = [
        ("by", raw.by.is_some()),
        ("temperature", raw.temperature.is_some()),
        ("smoothing", raw.smoothing.is_some()),
        ("layers", raw.layers.is_some()),
        ("heads", raw.heads.is_some()),
    ];
    match found.iter().find(|(key, is_there)| *is_there && !keys.contains(key)) {
        Some((key, _)) => Err(Error::config(format!("{key}: a {} loss has no such key; remove it", raw.kind))),
        None => Ok(()),
    }
}

/// The losses of a stage, of which there must be one that counts.
///
/// # Errors
/// Config, naming the loss and its key.
pub(crate) fn losses_of(raw: &[RawLoss]) -> Result<Vec<AskedLoss>> {
    if raw.is_empty() {
        return Err(Error::config("loss: missing; say what goes down, such as loss = [{ kind = \"logits\" }]"));
    }
    let asked = |raw: &RawLoss| match LossKind::from_raw(raw) {
        Ok(kind) => Ok(AskedLoss { kind, weight: raw.weight.unwrap_or(1.0) }),
        Err(error) if raw.kind.is_empty() => Err(error),
        Err(error) => Err(error.at(format_args!("loss {:?}", raw.kind))),
    };
    let losses: Vec<AskedLoss> = raw.iter().map(asked).collect::<Result<_>>()?;
    if losses.iter().map(|loss| loss.weight).sum::<f64>() <= 0.0 {
        return Err(Error::config("loss: the weights sum to 0, so nothing would be learned; raise one"));
    }
    Ok(losses)
}
