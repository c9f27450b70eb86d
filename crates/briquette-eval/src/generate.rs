//! Generates text with a decoder.

use crate::next_logits::next_logits;
use crate::outputs::ItemProgress;
use crate::prompts::{AskedPrompts, Prompt, prompt_of_source, prompts_of};
use crate::sampling::Sampling;
use briquette_core::memory::MemoryMeter;
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, Choice};
use briquette_graph::op::{Composite, Rotary};
use briquette_graph::{Node, Op};
use briquette_models::chat::{end_tokens, ignored_settings};
use briquette_models::data::PairSource;
use briquette_models::{Arch, CacheType, Decoder, KeyValues, LoadedModel};
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// The prompt of the sample text in evaluation reports.
pub const PROMPT: &str = "The old man looked out of the window. It had begun to snow, and";
/// The length of the sample text in tokens.
const CONTINUED: usize = 32;

/// Generates greedily after [`PROMPT`]; `None` if the model has no tokenizer or too few positions.
///
/// # Errors
/// - See [`generate`].
/// - The first error of `progress`, which is called for every token.
pub(crate) fn continuation(model: &LoadedModel, progress: ItemProgress) -> Result<Option<String>> {
    let request = greedy(model, vec![PROMPT.to_string()], CONTINUED);
    let Ok(prompts) = prompts_of(model, request.asked()) else { return Ok(None) };
    let mut run = Generation::new(model, &request, &prompts)?;
    let mut n_tokens = 0;
    let each: EachPiece = &mut |_, _| {
        n_tokens += 1;
        progress(n_tokens, CONTINUED).map(|()| true)
    };
    run.read_prompts(each)?;
    run.take_steps(each)?;
    // Without a free position after the prompt, there is no text.
    Ok(run.sequences.into_iter().next().map(|sequence| sequence.text).filter(|text| !text.is_empty()))
}

/// Returns the text that a model writes greedily for each source.
///
/// # Errors
/// See [`continuation`].
pub(crate) fn written(model: &LoadedModel, sources: &[PairSource], progress: ItemProgress) -> Result<Vec<String>> {
    let request = greedy(model, Vec::new(), usize::MAX);
    let mut texts = Vec::new();
    for source in sources {
        let prompts = [prompt_of_source(model, source)?];
        let mut run = Generation::new(model, &request, &prompts)?;
        let each: EachPiece = &mut |_, _| progress(texts.len(), sources.len()).map(|()| true);
        run.read_prompts(each)?;
        run.take_steps(each)?;
        texts.extend(run.sequences.into_iter().map(|sequence| sequence.text));
    }
    Ok(texts)
}

/// Returns a request for the most likely text after raw prompts.
fn greedy(model: &LoadedModel, prompts: Vec<String>, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        model: PathBuf::new(),
        choice: Choice::default(),
        arch: None,
        prompts,
        system: None,
        is_raw: true,
        max_tokens,
        cache: CacheType::F32,
        sampling: Sampling::default(),
        device: model.network.device(),
    }
}

/// A request to generate text.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// The model: a file, an index or a directory.
    pub model: PathBuf,
    /// The entry to read, if the file has several.
    pub choice: Choice,
    /// The architecture, if the files do not determine it.
    pub arch: Option<Arch>,
    /// The prompts; each is continued separately. An encoder-decoder takes them as sources: texts, or WAV files.
    pub prompts: Vec<String>,
    /// The system message before each prompt, for models with a chat template.
    pub system: Option<String>,
    /// Whether to use prompts verbatim, without the model's chat template.
    pub is_raw: bool,
    /// The maximum number of tokens per prompt.
    pub max_tokens: usize,
    /// The type of the KV cache.
    pub cache: CacheType,
    /// How tokens are sampled.
    pub sampling: Sampling,
    /// The device to run on.
    pub device: Device,
}

impl GenerateRequest {
    fn asked(&self) -> AskedPrompts<'_> {
        AskedPrompts { prompts: &self.prompts, system: self.system.as_deref(), is_raw: self.is_raw }
    }
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The model returned an end token.
    Model,
    /// The maximum number of tokens was reached.
    MaxTokens,
    /// The model's positions are used up.
    Positions,
}

/// A generated text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sequence {
    /// The prompt.
    pub prompt: String,
    /// The number of prompt tokens, including those of the chat template.
    pub n_prompt_tokens: usize,
    /// The text after the prompt.
    pub text: String,
    /// The generated tokens, without the end token.
    pub tokens: Vec<u32>,
    /// Why the text ended.
    pub ending: Ending,
}

/// Generated texts, with their speed and memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generated {
    /// One text per prompt.
    pub sequences: Vec<Sequence>,
    /// Keys of generation_config.json that change the most likely text and are not applied.
    pub ignored: Vec<String>,
    /// Prompt tokens per second.
    pub prompt_tokens_per_s: f64,
    /// Generated tokens per second over all sequences, without the first token of each. `None` if there are no
    /// others.
    pub tokens_per_s: Option<f64>,
    /// The size of the weights in bytes.
    pub weights_bytes: u64,
    /// The size of the KV caches at the end in bytes.
    pub cache_bytes: u64,
    /// The peak of allocated bytes during the run, including weights.
    pub peak_bytes: Option<u64>,
}

/// A callback for every piece of text, with the index of its prompt.
///
/// Returns whether to continue; an error stops the run immediately.
pub type EachPiece<'a> = &'a mut dyn FnMut(usize, &str) -> Result<bool>;

/// Generates text after prompts, with KV caches.
///
/// Each prompt is processed in one pass; then all unfinished sequences take each step together.
///
/// # Errors
/// - Config: the model is not a decoder, or a setting is invalid.
/// - Input: the model has no tokenizer, a prompt is empty or longer than the model's positions, or a file is
///   damaged.
/// - Refused: outputs are not finite.
/// - Io: a file cannot be read, or the device fails.
/// - The first error of `each`.
pub fn generate(request: &GenerateRequest, meter: &dyn MemoryMeter, each: EachPiece) -> Result<Generated> {
    request.sampling.check()?;
    let checkpoint = Checkpoint::open_as(&request.model, &request.choice)?;
    let arch = request.arch.map_or_else(|| Arch::detect(&checkpoint), Ok)?;
    if !arch.task().predicts_tokens() {
        let message = format!("it is {arch}, which generates no text; use a decoder, such as llama");
        return Err(Error::config(message).at(request.model.display()));
    }
    let before = meter.live_bytes();
    let model = LoadedModel::load(&checkpoint, Some(arch), &request.device)?;
    let prompts = prompts_of(&model, request.asked())?;
    meter.reset_peak();
    let mut run = Generation::new(&model, request, &prompts)?;
    let outcome = run.read_prompts(each).and_then(|()| run.take_steps(each));
    let peak_bytes = meter.peak_bytes().zip(before).map(|(peak, before)| peak.saturating_sub(before));
    outcome?;
    let weights_bytes = briquette_nn::held(&model.network).values().map(|held| held.n_bytes as u64).sum();
    run.generated(&prompts, weights_bytes, peak_bytes)
}

/// The state of a generation.
struct Generation<'a> {
    model: &'a LoadedModel,
    request: &'a GenerateRequest,
    decoder: &'a dyn Decoder,
    ends: Vec<u32>,
    /// Whether positions are turned by the length of the longest sequence, so that each takes its steps alone.
    is_apart: bool,
    prompts: &'a [Prompt],
    sequences: Vec<Growing<'a>>,
    seconds: [f64; 2],
    /// The number of tokens generated by steps.
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
    fn new(model: &'a LoadedModel, request: &'a GenerateRequest, prompts: &'a [Prompt]) -> Result<Self> {
        let (decoder, tokenizer) = (model.network.as_decoder(), model.tokenizer()?);
        let growing = |prompt: &Prompt| Growing {
            stream: tokenizer.stream(),
            // Reading the source makes the cache of an encoder-decoder.
            cache: prompt.source.is_none().then(|| decoder.key_values(request.cache)),
            tokens: Vec::new(),
            text: String::new(),
            ending: (request.max_tokens == 0).then_some(Ending::MaxTokens),
        };
        let (ends, sequences) = (end_tokens(model)?, prompts.iter().map(growing).collect());
        let turns_by_length = |node: &Node| match &node.op {
            Op::Composite(Composite::Attention(settings)) => {
                settings.rotary.as_ref().is_some_and(Rotary::depends_on_length)
            }
            _ => false,
        };
        let is_apart = model.network.graph().nodes.iter().any(turns_by_length);
        let (seconds, n_steps, cache_bytes) = ([0.0; 2], 0, 0);
        Ok(Self { model, request, decoder, ends, is_apart, prompts, sequences, seconds, n_steps, cache_bytes })
    }

    /// Processes each prompt, and samples the first token after it.
    fn read_prompts(&mut self, each: EachPiece) -> Result<()> {
        for (index, prompt) in self.prompts.iter().enumerate() {
            let start = Instant::now();
            if let Some(source) = &prompt.source {
                self.sequences[index].cache = self.model.network.read_source(source, self.request.cache).pop();
            }
            let scores = self.scores(&[index], std::slice::from_ref(&prompt.tokens))?;
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
            for together in alive.chunks(if self.is_apart { 1 } else { alive.len() }) {
                self.step(together, each)?;
            }
        }
    }

    /// Takes one step of some sequences.
    fn step(&mut self, together: &[usize], each: EachPiece) -> Result<()> {
        let last = |&at: &usize| self.sequences[at].tokens.last().copied().into_iter().collect();
        let last: Vec<Vec<u32>> = together.iter().map(last).collect();
        let start = Instant::now();
        let scores = self.scores(together, &last)?;
        self.seconds[1] += start.elapsed().as_secs_f64();
        self.n_steps += together.len();
        together.iter().zip(&scores).try_for_each(|(&index, scores)| self.add(index, scores, each))
    }

    /// Returns the logits after the last of some tokens, an equal number for each sequence.
    fn scores(&mut self, of: &[usize], tokens: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        let (n, device) = (tokens[0].len(), &self.request.device);
        let ids: Vec<i32> = tokens.iter().flatten().map(|&id| id as i32).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [of.len(), n]), device);
        let mut caches: Vec<KeyValues> = of.iter().filter_map(|&at| self.sequences[at].cache.take()).collect();
        let logits = next_logits(self.decoder, ids, &mut caches);
        of.iter().zip(caches).for_each(|(&at, cache)| self.sequences[at].cache = Some(cache));
        logits
    }

    /// Samples the next token of a sequence, and reports the added text.
    fn add(&mut self, index: usize, scores: &[f32], each: EachPiece) -> Result<()> {
        let (max_tokens, n_positions) = (self.request.max_tokens, self.decoder.max_positions());
        let sequence = &mut self.sequences[index];
        if sequence.ending.is_none() {
            // Every token of every sequence has its own random number.
            let place = (index as u64) << 32 | sequence.tokens.len() as u64;
            let token = self.request.sampling.choose(scores, place)?;
            let mut piece = String::new();
            if self.ends.contains(&token) {
                sequence.ending = Some(Ending::Model);
            } else {
                sequence.tokens.push(token);
                piece = sequence.stream.push(token)?;
                let n_tokens = self.prompts[index].tokens.len() + sequence.tokens.len();
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

    fn generated(self, prompts: &[Prompt], weights_bytes: u64, peak_bytes: Option<u64>) -> Result<Generated> {
        let rate = |n: usize, seconds: f64| n as f64 / seconds.max(1e-9);
        let n_prompt_tokens = prompts.iter().map(Prompt::n_tokens).sum();
        let sequences = self.request.prompts.iter().zip(prompts).zip(self.sequences);
        let sequences = sequences.map(|((prompt, read), grown)| Sequence {
            prompt: prompt.clone(),
            n_prompt_tokens: read.n_tokens(),
            text: grown.text,
            tokens: grown.tokens,
            ending: grown.ending.unwrap_or(Ending::MaxTokens),
        });
        Ok(Generated {
            sequences: sequences.collect(),
            ignored: ignored_settings(self.model)?,
            prompt_tokens_per_s: rate(n_prompt_tokens, self.seconds[0]),
            tokens_per_s: (self.n_steps > 0).then(|| rate(self.n_steps, self.seconds[1])),
            weights_bytes,
            cache_bytes: self.cache_bytes,
            peak_bytes,
        })
    }
}
