//! Flags that say which of the things in a file is the model.

use briquette::formats::Choice;
use briquette::pipeline::recipe::raw::RawModel;
use clap::Args;

/// Which of the things in a file is the model.
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
    /// Puts what was given in the place of what a recipe says.
    pub(super) fn over(&self, model: &mut RawModel) {
        model.key = self.key.clone().or(model.key.take());
        model.strip_prefix = self.strip_prefix.clone().or(model.strip_prefix.take());
    }

    /// What was given.
    pub(super) fn choice(&self) -> Choice {
        Choice { key: self.key.clone(), strip_prefix: self.strip_prefix.clone(), ..Choice::default() }
    }
}
