//! The losses of a distill stage, as the recipe gives them.

use crate::parse::raw::{RawLayers, RawLoss};
use crate::parse::words::{one_of, refuse};
use briquette_core::{Error, Result};

/// A loss and its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedLoss {
    /// The quantities that the loss compares.
    pub kind: LossKind,
    /// The weight of the loss.
    pub weight: f64,
}

/// The quantities that a loss compares.
#[derive(Debug, Clone, PartialEq)]
pub enum LossKind {
    /// Logits of student and teacher, at a temperature unless the comparison has none.
    Logits(LogitsBy, f32),
    /// Labels, with the share of label smoothing.
    Labels(f32),
    /// Hidden states of paired layers.
    Hidden(HiddenBy, LayerChoice),
    /// Attention of paired layers.
    Attention(AttentionBy, LayerChoice),
    /// Embeddings.
    Embedding(EmbeddingBy),
}

/// How logits are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogitsBy {
    /// Kullback–Leibler divergence.
    Kl,
    /// Generalized Jensen–Shannon divergence with this β.
    JensenShannon(f32),
    /// Mean squared error.
    Mse,
}

/// How hidden states are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenBy {
    /// Mean squared error.
    Mse,
    /// Cosine similarity.
    Cosine,
}

/// The part of attention that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionBy {
    /// Attention probabilities.
    Maps,
    /// Relations between value vectors, with the width split into this many heads.
    Values(usize),
}

/// How embeddings are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingBy {
    /// Cosine similarity of each embedding with the teacher's.
    Cosine,
    /// Similarities between the embeddings of a batch.
    Similarity,
}

/// A choice of layers: those that a student keeps, or the teacher layers that a loss uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerChoice {
    /// Evenly spaced layers that end with the last one.
    Every,
    /// The first layers.
    First,
    /// The last layers.
    Last,
    /// The listed layers; they count from 0.
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
    /// Returns whether the loss compares hidden states or attention, which are too large to cache for every
    /// item.
    pub fn looks_inside(&self) -> bool {
        matches!(self, Self::Hidden(..) | Self::Attention(..))
    }

    fn from_raw(raw: &RawLoss) -> Result<Self> {
        let by = raw.by.as_deref();
        let kinds = ["logits", "labels", "hidden", "attention", "embedding"].map(|kind| (kind, kind));
        Ok(match one_of("kind", &raw.kind, &kinds)? {
            "logits" => {
                only(raw, &["temperature", "by", "beta"])?;
                let js = LogitsBy::JensenShannon(raw.beta.unwrap_or(0.5));
                let known = [("kl", LogitsBy::Kl), ("js", js), ("mse", LogitsBy::Mse)];
                let by = one_of("by", by.unwrap_or("kl"), &known)?;
                match by {
                    LogitsBy::Kl => refuse("beta", &raw.beta, "loss by \"kl\"")?,
                    LogitsBy::JensenShannon(_) => {}
                    LogitsBy::Mse => {
                        refuse("beta", &raw.beta, "loss by \"mse\"")?;
                        refuse("temperature", &raw.temperature, "loss by \"mse\"")?;
                    }
                }
                Self::Logits(by, raw.temperature.unwrap_or(4.0))
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
        ("beta", raw.beta.is_some()),
        ("smoothing", raw.smoothing.is_some()),
        ("layers", raw.layers.is_some()),
        ("heads", raw.heads.is_some()),
    ];
    match found.iter().find(|(key, is_there)| *is_there && !keys.contains(key)) {
        Some((key, _)) => Err(Error::config(format!("{key}: a {} loss has no such key; remove it", raw.kind))),
        None => Ok(()),
    }
}

/// Validates the losses of a stage; at least one weight must be positive.
///
/// # Errors
/// Config: there is no loss, a key is invalid, or all weights are 0.
pub(crate) fn losses_of(raw: &[RawLoss]) -> Result<Vec<AskedLoss>> {
    if raw.is_empty() {
        return Err(Error::config("loss: missing; list the losses, such as loss = [{ kind = \"logits\" }]"));
    }
    let asked = |raw: &RawLoss| match LossKind::from_raw(raw) {
        Ok(kind) => Ok(AskedLoss { kind, weight: raw.weight.unwrap_or(1.0) }),
        Err(error) if raw.kind.is_empty() => Err(error),
        Err(error) => Err(error.at(format_args!("loss {:?}", raw.kind))),
    };
    let losses: Vec<AskedLoss> = raw.iter().map(asked).collect::<Result<_>>()?;
    if losses.iter().map(|loss| loss.weight).sum::<f64>() <= 0.0 {
        return Err(Error::config("loss: the weights sum to 0, so training has no effect; raise one"));
    }
    Ok(losses)
}
