//! What a decoder goes on with after a prompt.

use crate::outputs::ItemProgress;
use crate::sampling::Sampling;
use briquette_core::memory::MemoryMeter;
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, Choice};
use briquette_models::chat::{ChatTemplate, Message, end_tokens};
use briquette_models::{Arch, CacheType, Decoder, KeyValues, LoadedModel, ModelTask};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// What decoders are to go on from where reports show whether they still speak.
pub const PROMPT: &str = "The old man looked out of the window. It had begun to snow, and";
/// Tokens that they go on for.
const CONTINUED: usize = 32;

/// What a model goes on with after [`PROMPT`], the most likely token each time; `None` where it has no tokenizer, or no positions left.
///
/// # Errors
/// As [`generate`]; what `progress` returns, which is told of every token.
pub(crate) fn continuation(model: &LoadedModel, progress: ItemProgress) -> Result<Option<String>> {
    let request = GenerateRequest {
        model: PathBuf::new(),
        choice: Choice::default(),
        arch: None,
        prompts: vec![PROMPT.to_string()],
        system: None,
        is_raw: true,
        max_tokens: CONTINUED,
        cache: CacheType::F32,
        sampling: Sampling::default(),
        device: model.network.device(),
    };
    let Ok(prompts) = prompts_of(model, &request) else { return Ok(None) };
    let mut run = Generation::new(model, &request, &prompts)?;
    let mut n_tokens = 0;
    let each: EachPiece = &mut |_, _| {
        n_tokens += 1;
        progress(n_tokens, CONTINUED).map(|()| true)
    };
    run.read_prompts(each)?;
    run.take_steps(each)?;
    Ok(run.sequences.into_iter().next().map(|sequence| sequence.text))
}

/// What is to go on, and how.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// The model: a file, an index or a directory.
    pub model: PathBuf,
    /// Which entry is the model, in a file that holds several.
    pub choice: Choice,
    /// The architecture, where files do not tell.
    pub arch: Option<Arch>,
    /// What it goes on from, each by itself.
    pub prompts: Vec<String>,
    /// What the model is told before each, where it has a chat template.
    pub system: Option<String>,
    /// Whether prompts are taken as they are, though the model has a chat template.
    pub is_raw: bool,
    /// The most tokens for each prompt.
    pub max_tokens: usize,
    /// How keys and values are kept.
    pub cache: CacheType,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Where to run.
    pub device: Device,
}

/// Why a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The model ended it.
    Model,
    /// There are as many tokens as were asked for.
    MaxTokens,
    /// The model has no more positions.
    Positions,
}

/// What a model went on with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sequence {
    /// The prompt as it was given.
    pub prompt: String,
    /// Its tokens, with those of the chat template.
    pub n_prompt_tokens: usize,
    /// The text that follows.
    pub text: String,
    /// Its tokens, without the one that ends it.
    pub tokens: Vec<u32>,
    /// Why it ends.
    pub ending: Ending,
}

/// Texts, and what they took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generated {
    /// A text for each prompt.
    pub sequences: Vec<Sequence>,
    /// Tokens of prompts a second.
    pub prompt_tokens_per_s: f64,
    /// Tokens that were generated a second, of all sequences together; those that prompts give are not counted. `None` where there are none.
    pub tokens_per_s: Option<f64>,
    /// Bytes that the weights take.
    pub weights_bytes: u64,
    /// Bytes of keys and values at the end.
    pub cache_bytes: u64,
    /// The most bytes allocated while it ran, weights and all.
    pub peak_bytes: Option<u64>,
}

/// Told of every piece of text: the prompt it belongs to, and what to add. What it returns says whether to go on; an error stops at once.
pub type EachPiece<'a> = &'a mut dyn FnMut(usize, &str) -> Result<bool>;

/// Goes on from prompts. Each is read at once, then all that have not ended take a step together; keys and values are kept.
///
/// # Errors
/// Config where the model is no decoder, or a setting means nothing; Input where it has no tokenizer, a prompt is empty or longer than the
/// model's positions, or a file is damaged; Refused where outputs are not finite; Io; what `each` returns.
pub fn generate(request: &GenerateRequest, meter: &dyn MemoryMeter, each: EachPiece) -> Result<Generated> {
    request.sampling.check()?;
    let checkpoint = Checkpoint::open_as(&request.model, &request.choice)?;
    let arch = request.arch.map_or_else(|| Arch::detect(&checkpoint), Ok)?;
    if arch.task() != ModelTask::Decoder {
        let message = format!("it is {arch}, which gives no text; name a decoder, such as a llama");
        return Err(Error::config(message).at(request.model.display()));
    }
    let before = meter.live_bytes();
    let model = LoadedModel::load(&checkpoint, Some(arch), &request.device)?;
    let prompts = prompts_of(&model, request)?;
    meter.reset_peak();
    let mut run = Generation::new(&model, request, &prompts)?;
    let outcome = run.read_prompts(each).and_then(|()| run.take_steps(each));
    let peak_bytes = meter.peak_bytes().zip(before).map(|(peak, before)| peak.saturating_sub(before));
    outcome?;
    let weights_bytes = briquette_nn::held(&model.network).values().map(|held| held.n_bytes as u64).sum();
    run.generated(&prompts, weights_bytes, peak_bytes)
}

/// The tokens of each prompt, as the model wants to be spoken to.
fn prompts_of(model: &LoadedModel, request: &GenerateRequest) -> Result<Vec<Vec<u32>>> {
    let (tokenizer, n_positions) = (model.tokenizer()?, model.network.as_decoder().max_positions());
    let template = if request.is_raw { None } else { ChatTemplate::of(model)? };
    if let (None, Some(_)) = (&template, &request.system) {
        return Err(Error::config("the model has no chat template to put it into, or is not to use it; leave it out")
            .at("system"));
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
                let system = request.system.iter().map(|words| Message::new("system", words));
                template.render(&system.chain([Message::new("user", prompt)]).collect::<Vec<_>>())?
            }
            None => prompt.clone(),
        };
        let tokens = tokenizer.encode_prompt(&text, template.is_some())?.0;
        if tokens.len() >= n_positions {
            let message = format!(
                "the prompt has {} tokens, expected fewer than the model's {n_positions} positions",
                tokens.len()
            );
            return Err(Error::input(format!("{message}; shorten it")));
        }
        Ok(tokens)
    };
    request.prompts.iter().map(tokens).collect()
}

/// Sequences while they grow.
struct Generation<'a> {
    model: &'a LoadedModel,
    request: &'a GenerateRequest,
    decoder: &'a dyn Decoder,
    ends: Vec<u32>,
    prompts: &'a [Vec<u32>],
    sequences: Vec<Growing<'a>>,
    seconds: [f64; 2],
    /// Tokens that steps gave.
    n_steps: usize,
    cache_bytes: u64,
}

struct Growing<'a> {
    stream: briquette_models::text::TokenStream<'a>,
    cache: Option<KeyValues>,
    tokens: Vec<u32>,
    text: String,
    ending: Option<Ending>,
}

impl<'a> Generation<'a> {
    fn new(model: &'a LoadedModel, request: &'a GenerateRequest, prompts: &'a [Vec<u32>]) -> Result<Self> {
        let (decoder, tokenizer) = (model.network.as_decoder(), model.tokenizer()?);
        let growing = |_: &Vec<u32>| Growing {
            stream: tokenizer.stream(),
            cache: Some(decoder.key_values(request.cache)),
            tokens: Vec::new(),
            text: String::new(),
            ending: (request.max_tokens == 0).then_some(Ending::MaxTokens),
        };
        let (ends, sequences) = (end_tokens(model)?, prompts.iter().map(growing).collect());
        Ok(Self { model, request, decoder, ends, prompts, sequences, seconds: [0.0; 2], n_steps: 0, cache_bytes: 0 })
    }

    /// Reads each prompt, and chooses the first token after it.
    fn read_prompts(&mut self, each: EachPiece) -> Result<()> {
        for (index, prompt) in self.prompts.iter().enumerate() {
            let start = Instant::now();
            let scores = self.scores(&[index], std::slice::from_ref(prompt))?;
            self.seconds[0] += start.elapsed().as_secs_f64();
            self.add(index, &scores[0], each)?;
        }
        Ok(())
    }

    fn take_steps(&mut self, each: EachPiece) -> Result<()> {
        loop {
            let alive: Vec<usize> =
                (0..self.sequences.len()).filter(|&at| self.sequences[at].ending.is_none()).collect();
            if alive.is_empty() {
                return Ok(());
            }
            let last: Vec<Vec<u32>> =
                alive.iter().map(|&at| self.sequences[at].tokens.last().copied().into_iter().collect()).collect();
            let start = Instant::now();
            let scores = self.scores(&alive, &last)?;
            self.seconds[1] += start.elapsed().as_secs_f64();
            self.n_steps += alive.len();
            for (&index, scores) in alive.iter().zip(&scores) {
                self.add(index, scores, each)?;
            }
        }
    }

    /// The scores of what follows the last of some tokens, equally many for each of some sequences.
    fn scores(&mut self, of: &[usize], tokens: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        let (n, device) = (tokens[0].len(), &self.request.device);
        let ids: Vec<i32> = tokens.iter().flatten().map(|&id| id as i32).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [of.len(), n]), device);
        let mut caches: Vec<KeyValues> = of.iter().filter_map(|&at| self.sequences[at].cache.take()).collect();
        let state = self.decoder.next_state(ids, &mut caches);
        of.iter().zip(caches).for_each(|(&at, cache)| self.sequences[at].cache = Some(cache));
        let scores = self.decoder.scores(state.narrow(1, n - 1, 1)).cast(FloatDType::F32);
        let width = scores.dims()[2];
        let failed = |error: String| {
            Error::io("cannot run the model", std::path::Path::new("device"), std::io::Error::other(error))
        };
        let data = scores.try_into_data().map_err(|error| failed(error.to_string()))?;
        let values = data.try_into_vec_as::<f32>().map_err(|error| failed(format!("{error:?}")))?;
        Ok(values.chunks(width).map(<[f32]>::to_vec).collect())
    }

    /// Chooses the next token of a sequence, and tells what it adds to the text.
    fn add(&mut self, index: usize, scores: &[f32], each: EachPiece) -> Result<()> {
        let (max_tokens, n_positions) = (self.request.max_tokens, self.decoder.max_positions());
        let sequence = &mut self.sequences[index];
        if sequence.ending.is_none() {
            // Every token of every sequence is another draw.
            let place = (index as u64) << 32 | sequence.tokens.len() as u64;
            let token = self.request.sampling.choose(scores, place)?;
            let mut piece = String::new();
            if self.ends.contains(&token) {
                sequence.ending = Some(Ending::Model);
            } else {
                sequence.tokens.push(token);
                piece = sequence.stream.push(token)?;
                let n_tokens = self.prompts[index].len() + sequence.tokens.len();
                if sequence.tokens.len() >= max_tokens {
                    sequence.ending = Some(Ending::MaxTokens);
                } else if n_tokens >= n_positions {
                    sequence.ending = Some(Ending::Positions);
                }
            }
            if sequence.ending.is_some() {
                let stream = std::mem::replace(&mut sequence.stream, self.model.tokenizer()?.stream());
                piece += &stream.finish()?;
                self.cache_bytes += sequence.cache.take().map_or(0, |cache| cache.n_bytes() as u64);
            }
            sequence.text += &piece;
            if !each(index, &piece)? {
                self.sequences.iter_mut().for_each(|sequence| _ = sequence.ending.get_or_insert(Ending::MaxTokens));
            }
        }
        Ok(())
    }

    fn generated(self, prompts: &[Vec<u32>], weights_bytes: u64, peak_bytes: Option<u64>) -> Result<Generated> {
        let rate = |n: usize, seconds: f64| n as f64 / seconds.max(1e-9);
        let n_prompt_tokens = prompts.iter().map(Vec::len).sum();
        let sequences = self.request.prompts.iter().zip(prompts).zip(self.sequences);
        let sequences = sequences.map(|((prompt, tokens), grown)| Sequence {
            prompt: prompt.clone(),
            n_prompt_tokens: tokens.len(),
            text: grown.text,
            tokens: grown.tokens,
            ending: grown.ending.unwrap_or(Ending::MaxTokens),
        });
        Ok(Generated {
            sequences: sequences.collect(),
            prompt_tokens_per_s: rate(n_prompt_tokens, self.seconds[0]),
            tokens_per_s: (self.n_steps > 0).then(|| rate(self.n_steps, self.seconds[1])),
            weights_bytes,
            cache_bytes: self.cache_bytes,
            peak_bytes,
        })
    }
}
