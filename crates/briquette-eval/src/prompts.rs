//! Prompts as a model reads them: tokens in its chat template, or the source of an encoder-decoder.

use crate::samples::other_source;
use briquette_core::{Error, Result};
use briquette_models::chat::{ChatTemplate, Message};
use briquette_models::data::PairSource;
use briquette_models::graph_net::RunInputs;
use briquette_models::{Input, LoadedModel};
use burn::tensor::{Int, Tensor, TensorData};

/// A prompt as a model reads it.
#[derive(Debug, Clone)]
pub(crate) struct Prompt {
    /// The tokens that the decoder continues.
    pub(crate) tokens: Vec<u32>,
    /// The source of an encoder-decoder.
    pub(crate) source: Option<RunInputs>,
    /// The number of tokens of the source; 0 for sounds.
    n_source: usize,
}

/// Prompts as a user gives them.
#[derive(Clone, Copy)]
pub(crate) struct AskedPrompts<'a> {
    pub(crate) prompts: &'a [String],
    /// The system message before each prompt.
    pub(crate) system: Option<&'a str>,
    /// Whether prompts are used verbatim, without the model's chat template.
    pub(crate) is_raw: bool,
}

impl Prompt {
    /// Returns the number of tokens that are read.
    pub(crate) fn n_tokens(&self) -> usize {
        self.tokens.len() + self.n_source
    }
}

/// Returns a source of an encoder-decoder as a prompt.
///
/// # Errors
/// - Config: the model takes other sources.
/// - Input: a sound cannot be read, or the text is empty or has more tokens than the model's positions.
pub(crate) fn prompt_of_source(model: &LoadedModel, source: &PairSource) -> Result<Prompt> {
    let Input::Pair { start, sound, max_positions, .. } = &model.input else {
        return Err(Error::config(format!("found {}, expected an encoder-decoder", model.arch)));
    };
    let (tokenizer, device) = (model.tokenizer()?, model.network.device());
    let tokens = start.prefix(tokenizer)?;
    match (source, sound) {
        (PairSource::Text(text), None) => {
            let ids = tokenizer.encode_prompt(text, false)?.ids;
            if ids.len() > *max_positions {
                let message = format!("the prompt has {} tokens, expected at most {max_positions}", ids.len());
                return Err(Error::input(format!("{message}, the model's positions; shorten it")));
            }
            let n_source = ids.len();
            let ids: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
            let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, n_source]), &device);
            Ok(Prompt { tokens, source: Some(RunInputs::tokens(ids)), n_source })
        }
        (PairSource::Sound(path), Some(sound)) => {
            let features = TensorData::new(sound.features(path)?, [1, sound.n_mels, sound.n_frames]);
            let source = Some(RunInputs::sounds(Tensor::from_data(features, &device)));
            Ok(Prompt { tokens, source, n_source: 0 })
        }
        (found, _) => Err(other_source(model.arch, found)),
    }
}

/// Returns the prompts of an encoder-decoder: texts, or the paths of WAV files.
fn sources_of(model: &LoadedModel, asked: AskedPrompts) -> Result<Vec<Prompt>> {
    if asked.system.is_some() {
        let message = "an encoder-decoder has no chat template; remove the system message";
        return Err(Error::config(message).at("system"));
    }
    let takes_sounds = matches!(&model.input, Input::Pair { sound: Some(_), .. });
    let source = |prompt: &String| match takes_sounds {
        true => PairSource::Sound(prompt.into()),
        false => PairSource::Text(prompt.clone()),
    };
    asked.prompts.iter().map(|prompt| prompt_of_source(model, &source(prompt))).collect()
}

/// Returns the tokens of each prompt, in the model's chat template; or the sources of an encoder-decoder.
///
/// # Errors
/// - Config: there is a system message, and no template for it.
/// - Input: the model has no tokenizer, or a prompt is empty or longer than the model's positions.
pub(crate) fn prompts_of(model: &LoadedModel, asked: AskedPrompts) -> Result<Vec<Prompt>> {
    if let Input::Pair { .. } = &model.input {
        return sources_of(model, asked);
    }
    let (tokenizer, n_positions) = (model.tokenizer()?, model.network.as_decoder().max_positions());
    let template = if asked.is_raw { None } else { ChatTemplate::of(model)? };
    if let (None, Some(_)) = (&template, &asked.system) {
        return Err(
            Error::config("the model has no chat template, or prompts are raw; remove the system message").at("system")
        );
    }
    let most_bytes = tokenizer.most_bytes(n_positions);
    let tokens = |prompt: &String| {
        if prompt.len() > most_bytes {
            let message = format!("the prompt has {} bytes, expected at most {most_bytes}", prompt.len());
            return Err(Error::input(format!("{message} for the model's {n_positions} positions; shorten it")));
        }
        let text = match &template {
            Some(_) if prompt.is_empty() => String::new(),
            Some(template) => {
                let system = asked.system.map(|words| Message::new("system", words)).into_iter();
                template.render(&system.chain([Message::new("user", prompt)]).collect::<Vec<_>>())?
            }
            None => prompt.clone(),
        };
        let tokens = tokenizer.encode_prompt(&text, template.is_some())?.ids;
        if tokens.len() >= n_positions {
            let message = format!(
                "the prompt has {} tokens, expected fewer than the model's {n_positions} positions",
                tokens.len()
            );
            return Err(Error::input(format!("{message}; shorten it")));
        }
        Ok(Prompt { tokens, source: None, n_source: 0 })
    };
    asked.prompts.iter().map(tokens).collect()
}
