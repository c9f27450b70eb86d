//! Stages: each kind with what it says, and the order they come in.

use crate::cast::CastStage;
use crate::distill::DistillStage;
use crate::evaluate;
use crate::factorize::FactorizeStage;
use crate::prune::PruneStage;
use crate::quantize::QuantizeStage;
use crate::raw::{RawRecipe, RawStage};
use crate::selection::Selection;
use crate::words::one_of;
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result};

/// What works on a whole model, and the stages since the one before.
#[derive(Debug, Clone)]
pub struct RecipePart {
    /// Stages that come first.
    pub stages: Vec<Stage>,
    /// What then is done.
    pub then: Whole,
}

/// What is done to a whole model.
#[derive(Debug, Clone)]
pub enum Whole {
    /// Train it.
    Distill(Box<DistillStage>),
    /// Make two factors of its linear layers.
    Factorize(FactorizeStage),
}

impl Whole {
    /// The distill stage, where it is one.
    pub fn as_distill(&self) -> Option<&DistillStage> {
        match self {
            Self::Distill(stage) => Some(stage),
            Self::Factorize(_) => None,
        }
    }
}

/// One thing to do.
#[derive(Debug, Clone)]
pub enum Stage {
    /// Drop weights.
    Prune(PruneStage),
    /// Round weights to a grid.
    Quantize(QuantizeStage),
    /// Store floats in another type.
    Cast(CastStage),
}

/// The stages of a recipe, cut after each that works on a whole model.
pub(crate) fn stages_of(raw: &RawRecipe) -> Result<(Vec<RecipePart>, Vec<Stage>)> {
    let (mut parts, mut stages) = (Vec::new(), Vec::new());
    for (i, stage) in raw.stage.iter().enumerate() {
        let name = |error: Error| error.at(format_args!("stage {} ({})", i + 1, stage.kind));
        let then = match stage.kind.as_str() {
            "distill" => Whole::Distill(Box::new(DistillStage::from_raw(raw, i).map_err(name)?)),
            "factorize" => Whole::Factorize(FactorizeStage::from_raw(stage).map_err(name)?),
            _ => {
                stages.extend(Stage::from_raw(stage).map_err(name)?);
                continue;
            }
        };
        parts.push(RecipePart { stages: std::mem::take(&mut stages), then });
    }
    check_order(raw)?;
    Ok((parts, stages))
}

/// Refuses stages in another order than theirs: each works on what those before it left. Training may take turns with
/// factorizing, then with pruning, whose zeros factors would not have.
fn check_order(raw: &RawRecipe) -> Result<()> {
    // The first and the last place of each.
    const PLACES: [(&str, usize, usize); 5] =
        [("factorize", 0, 0), ("distill", 0, 1), ("prune", 1, 1), ("quantize", 2, 2), ("cast", 3, 3)];
    let place = |stage: &RawStage| PLACES.iter().find(|(kind, ..)| *kind == stage.kind);
    let placed: Vec<_> = raw.stage.iter().filter_map(place).collect();
    for (i, (after, _, last)) in placed.iter().enumerate() {
        if let Some((before, ..)) = placed[..i].iter().find(|(_, first, _)| first > last) {
            return Err(Error::config(format!("a {after} stage comes after a {before} stage; {after} first")));
        }
    }
    Ok(())
}

impl Stage {
    /// None for the stage that changes nothing: evaluate.
    fn from_raw(raw: &RawStage) -> Result<Option<Self>> {
        type Parse = fn(&RawStage) -> Result<Option<Stage>>;
        let kinds: [(&str, Parse); 6] = [
            ("prune", |raw| Ok(Some(Self::Prune(PruneStage::from_raw(raw)?)))),
            ("quantize", |raw| Ok(Some(Self::Quantize(QuantizeStage::from_raw(raw)?)))),
            ("cast", |raw| Ok(Some(Self::Cast(CastStage::from_raw(raw)?)))),
            ("evaluate", |raw| evaluate::check_stage(raw).map(|()| None)),
            // Cut out before; the name is here for those who misspell it.
            ("distill", |_| Ok(None)),
            ("factorize", |_| Ok(None)),
        ];
        one_of("kind", &raw.kind, &kinds)?(raw)
    }

    /// Which tensors it is about.
    pub fn selection(&self) -> &Selection {
        match self {
            Self::Prune(stage) => &stage.selection,
            Self::Quantize(stage) => &stage.selection,
            Self::Cast(stage) => &stage.selection,
        }
    }

    /// Its kind, as recipes have it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Prune(_) => "prune",
            Self::Quantize(_) => "quantize",
            Self::Cast(_) => "cast",
        }
    }

    /// Patterns of the tensors that are treated in another way.
    pub fn overrides(&self) -> Vec<&Patterns> {
        match self {
            Self::Prune(stage) => stage.overrides.iter().map(|(patterns, _)| patterns).collect(),
            Self::Quantize(stage) => stage.overrides.iter().map(|(patterns, _)| patterns).collect(),
            Self::Cast(_) => Vec::new(),
        }
    }
}
