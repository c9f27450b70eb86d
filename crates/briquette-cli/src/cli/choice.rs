//! Flags that select the model within a file, and set its layout.

use briquette::formats::Choice;
use briquette::pipeline::recipe::raw::{RawLayout, RawModel};
use clap::{Args, ValueEnum};

/// The entry of a file that is the model.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct ChoiceArgs {
    /// Key of the model in a PyTorch file with several, such as model_ema; "" for the whole file
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Prefix to remove from tensor names, such as model.; "" keeps names. By default, module. and _orig_mod.
    /// are removed if all names have them
    #[arg(long, value_name = "PREFIX")]
    pub(crate) strip_prefix: Option<String>,
}

impl ChoiceArgs {
    /// Overrides the keys of a recipe with the flags.
    pub(super) fn over(&self, model: &mut RawModel) {
        model.key = self.key.clone().or(model.key.take());
        model.strip_prefix = self.strip_prefix.clone().or(model.strip_prefix.take());
    }

    /// Returns the choice of the flags.
    pub(super) fn choice(&self) -> Choice {
        Choice { key: self.key.clone(), strip_prefix: self.strip_prefix.clone(), ..Choice::default() }
    }
}

/// The entry of a file that is the model, and its layout.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct ReadArgs {
    /// Which entry of the file is the model
    #[command(flatten)]
    pub(crate) choice: ChoiceArgs,
    /// Layout of Linear weights: torch is [out, in], burn is [in, out]; not needed for files that contain it
    #[arg(long, value_enum)]
    pub(crate) layout: Option<LayoutArg>,
}

impl ReadArgs {
    /// Overrides the keys of a recipe with the flags.
    pub(super) fn over(&self, model: &mut RawModel) {
        self.choice.over(model);
        model.layout = self.layout.map(LayoutArg::raw).or(model.layout);
    }

    /// Returns the choice of the flags.
    pub(super) fn choice(&self) -> Choice {
        let layout = self.layout.map(|layout| layout.raw().said());
        Choice { layout, ..self.choice.choice() }
    }
}

/// How to read a model to run.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct ModelArgs {
    /// How to read the file
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// Architecture, if the files do not show it: bert, llama, resnet50, digits-cnn, ...
    #[arg(long, value_name = "ARCH")]
    pub(crate) arch: Option<String>,
}

impl ModelArgs {
    /// Overrides the keys of a recipe with the flags.
    pub(super) fn over(&self, model: &mut RawModel) {
        self.read.over(model);
        model.arch = self.arch.clone().or(model.arch.take());
    }

    /// Returns the choice of the flags.
    pub(super) fn choice(&self) -> Choice {
        self.read.choice()
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
    /// Returns the layout as recipes spell it.
    pub(super) fn raw(self) -> RawLayout {
        match self {
            Self::Torch => RawLayout::Torch,
            Self::Burn => RawLayout::Burn,
        }
    }
}
