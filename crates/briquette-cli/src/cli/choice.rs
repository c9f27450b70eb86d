//! Flags that choose the model in a file, and say how its weights lie.

use briquette::formats::Choice;
use briquette::pipeline::recipe::raw::{RawLayout, RawModel};
use clap::{Args, ValueEnum};

/// The entry of a file that is the model.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct ChoiceArgs {
    /// The key of a PyTorch file that the model is under, such as model_ema, where it holds several; "" for all there is
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Drop what names begin with, such as model.; module. and _orig_mod. go by themselves where all do, "" keeps them
    #[arg(long, value_name = "PREFIX")]
    pub(crate) strip_prefix: Option<String>,
}

impl ChoiceArgs {
    /// Puts the flags in the place of a recipe's keys.
    pub(super) fn over(&self, model: &mut RawModel) {
        model.key = self.key.clone().or(model.key.take());
        model.strip_prefix = self.strip_prefix.clone().or(model.strip_prefix.take());
    }

    /// The choice that the flags make.
    pub(super) fn choice(&self) -> Choice {
        Choice { key: self.key.clone(), strip_prefix: self.strip_prefix.clone(), ..Choice::default() }
    }
}

/// How to read a model that runs.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct ModelArgs {
    /// Which of the things in its file
    #[command(flatten)]
    pub(crate) choice: ChoiceArgs,
    /// Layout of Linear weights: torch is [out, in], burn is [in, out]; files that state theirs need no flag
    #[arg(long, value_enum)]
    pub(crate) layout: Option<LayoutArg>,
    /// The architecture, where files do not tell: bert, llama, resnet50, digits-cnn, ...
    #[arg(long, value_name = "ARCH")]
    pub(crate) arch: Option<String>,
}

impl ModelArgs {
    /// Puts the flags in the place of a recipe's keys.
    pub(super) fn over(&self, model: &mut RawModel) {
        self.choice.over(model);
        model.layout = self.layout.map(LayoutArg::raw).or(model.layout);
        model.arch = self.arch.clone().or(model.arch.take());
    }

    /// The choice that the flags make.
    pub(super) fn choice(&self) -> Choice {
        let layout = self.layout.map(|layout| layout.raw().said());
        Choice { layout, ..self.choice.choice() }
    }
}

/// The layout of Linear weights.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum LayoutArg {
    /// [out, in]
    Torch,
    /// [in, out]
    Burn,
}

impl LayoutArg {
    /// The same layout as a recipe has it.
    pub(super) fn raw(self) -> RawLayout {
        match self {
            Self::Torch => RawLayout::Torch,
            Self::Burn => RawLayout::Burn,
        }
    }
}
