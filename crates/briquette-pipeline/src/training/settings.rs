//! Converts the keys of a stage to training settings.

use briquette_core::Result;
use briquette_distill::{
    Blend, Distance, Divergence, Goal, LayerMap, Loss, Match, Optimizer, Relation, Settings, Term,
};
use briquette_recipe::{
    AskedLoss, AttentionBy, DistillStage, Dtype, EmbeddingBy, HiddenBy, LayerChoice, LogitsBy, LossKind, is_more_better,
};

/// Returns the settings without frozen parameters, which require the student.
pub(crate) fn of(stage: &DistillStage) -> Result<Settings> {
    let (training, memory) = (&stage.training, &stage.memory);
    let decay = training.weight_decay;
    let goal = |metric: &String| Goal { metric: metric.clone(), is_more_better: is_more_better(metric) };
    let blend = Blend::new(stage.loss.iter().map(term).collect())?;
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
        on_policy: stage.on_policy,
        scale_loss: memory.dtype == Dtype::F16,
        ..Settings::new(blend, training.epochs, training.learning_rate)
    };
    settings.check()?;
    Ok(settings)
}

/// Returns whether any loss needs a teacher.
///
/// # Errors
/// Config: the stage is invalid.
pub(crate) fn needs_teacher(stage: &DistillStage) -> Result<bool> {
    of(stage).map(|settings| settings.blend.needs_teacher())
}

fn term(request: &AskedLoss) -> Term {
    let loss = match &request.kind {
        LossKind::Logits(by, temperature) => {
            let by = match by {
                LogitsBy::Kl => Divergence::Kl,
                LogitsBy::JensenShannon(beta) => Divergence::JensenShannon(*beta),
                LogitsBy::Mse => Divergence::Mse,
            };
            Loss::Logits(by, *temperature)
        }
        LossKind::Labels(smoothing) => Loss::Labels(*smoothing),
        LossKind::Hidden(by, layers) => {
            let by = match by {
                HiddenBy::Mse => Distance::Mse,
                HiddenBy::Cosine => Distance::Cosine,
            };
            Loss::Hidden(by, layer_map(layers))
        }
        LossKind::Attention(by, layers) => {
            let by = match by {
                AttentionBy::Maps => Relation::Maps,
                AttentionBy::Values(n_heads) => Relation::Values(*n_heads),
            };
            Loss::Attention(by, layer_map(layers))
        }
        LossKind::Embedding(by) => Loss::Embedding(match by {
            EmbeddingBy::Cosine => Match::Cosine,
            EmbeddingBy::Similarity => Match::Similarity,
        }),
    };
    Term { loss, weight: request.weight }
}

/// Converts a choice of layers.
pub(crate) fn layer_map(request: &LayerChoice) -> LayerMap {
    match request {
        LayerChoice::Every => LayerMap::Every,
        LayerChoice::First => LayerMap::First,
        LayerChoice::Last => LayerMap::Last,
        LayerChoice::Listed(layers) => LayerMap::Explicit(layers.clone()),
    }
}
