//! From the keys of a stage to the settings of a training.

use crate::recipe::raw::{RawLayers, RawLoss};
use crate::recipe::{DistillStage, Dtype, one_of};
use briquette_core::{Error, Result};
use briquette_distill::{
    Blend, Distance, Divergence, Goal, LayerMap, Loss, Match, Optimizer, Relation, Settings, Term,
};

/// Metrics of which less is better.
const LESS_IS_BETTER: [&str; 2] = ["kl", "perplexity"];

/// The settings, but for what does not learn: that is known once the student is.
pub(super) fn of(stage: &DistillStage) -> Result<Settings> {
    let terms = stage.loss.iter().map(|raw| {
        term(raw)
            .map_err(|error| if raw.kind.is_empty() { error } else { error.at(format_args!("loss {:?}", raw.kind)) })
    });
    if stage.loss.is_empty() {
        return Err(Error::config("loss: missing; say what goes down, such as loss = [{ kind = \"logits\" }]"));
    }
    let (training, memory) = (&stage.training, &stage.memory);
    let decay = training.weight_decay;
    let goal =
        |metric: &String| Goal { metric: metric.clone(), is_more_better: !LESS_IS_BETTER.contains(&metric.as_str()) };
    let blend = Blend::new(terms.collect::<Result<_>>()?)?;
    if memory.cache_teacher && !blend.wanted().is_end_only() {
        let message = "hidden states and attention are too large to keep; remove it, or those losses";
        return Err(Error::config(message).at("memory.cache_teacher"));
    }
    let settings = Settings {
        batch_size: memory.batch_size * memory.accumulate,
        at_once: memory.batch_size,
        optimizer: match training.momentum {
            Some(momentum) => Optimizer::Sgd { momentum, decay },
            None => Optimizer::AdamW { decay },
        },
        warmup: training.warmup,
        clip: Some(training.clip),
        seed: training.seed,
        goal: training.metric.as_ref().map(goal),
        patience: training.patience,
        save_every: training.save_every,
        scale_loss: memory.dtype == Dtype::F16,
        ..Settings::new(blend, training.epochs, training.learning_rate)
    };
    settings.check()?;
    Ok(settings)
}

/// Whether any loss compares the student with a teacher.
///
/// # Errors
/// Config, where the stage cannot be.
pub(crate) fn needs_teacher(stage: &DistillStage) -> Result<bool> {
    of(stage).map(|settings| settings.blend.needs_teacher())
}

fn term(raw: &RawLoss) -> Result<Term> {
    let by = raw.by.as_deref();
    let kinds = ["logits", "labels", "hidden", "attention", "embedding"].map(|kind| (kind, kind));
    let loss = match one_of("kind", &raw.kind, &kinds)? {
        "logits" => {
            only(raw, &["temperature", "by"])?;
            let known = [("kl", Divergence::Kl), ("js", Divergence::JensenShannon)];
            Loss::Logits(one_of("by", by.unwrap_or("kl"), &known)?, raw.temperature.unwrap_or(4.0))
        }
        "labels" => {
            only(raw, &["smoothing"])?;
            Loss::Labels(raw.smoothing.unwrap_or(0.0))
        }
        "hidden" => {
            only(raw, &["by", "layers"])?;
            let known = [("mse", Distance::Mse), ("cosine", Distance::Cosine)];
            Loss::Hidden(one_of("by", by.unwrap_or("mse"), &known)?, layer_map(raw.layers.as_ref())?)
        }
        "attention" => {
            only(raw, &["by", "layers", "heads"])?;
            let known = [("maps", Relation::Maps), ("values", Relation::Values(raw.heads.unwrap_or(12)))];
            Loss::Attention(one_of("by", by.unwrap_or("maps"), &known)?, layer_map(raw.layers.as_ref())?)
        }
        _ => {
            only(raw, &["by"])?;
            let known = [("cosine", Match::Cosine), ("similarity", Match::Similarity)];
            Loss::Embedding(one_of("by", by.unwrap_or("cosine"), &known)?)
        }
    };
    Ok(Term { loss, weight: raw.weight.unwrap_or(1.0) })
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

/// Which layer of the teacher each layer of the student follows.
pub(super) fn layer_map(raw: Option<&RawLayers>) -> Result<LayerMap> {
    let known = [("every", 0), ("first", 1), ("last", 2)];
    match raw {
        None => Ok(LayerMap::Every),
        Some(RawLayers::List(layers)) => Ok(LayerMap::Explicit(layers.clone())),
        Some(RawLayers::Name(name)) => Ok(match one_of("layers", name, &known)? {
            0 => LayerMap::Every,
            1 => LayerMap::First,
            _ => LayerMap::Last,
        }),
    }
}
