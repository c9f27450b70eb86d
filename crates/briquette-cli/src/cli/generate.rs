//! `generate`: generates text with decoders.

use super::choice::ModelArgs;
use super::common::Common;
use briquette::Result;
use clap::Args;
use std::path::{Path, PathBuf};

/// The prompts and how to generate.
#[derive(Debug, Clone, Args)]
pub(crate) struct GenerateArgs {
    /// Prompt, or - for stdin; several prompts are one batch
    #[arg(long, short, value_name = "TEXT", required_unless_present = "prompts", help_heading = "Prompts")]
    pub(crate) prompt: Vec<String>,
    /// File of prompts, one per line
    #[arg(long, value_name = "FILE", help_heading = "Prompts")]
    pub(crate) prompts: Option<PathBuf>,
    /// The original model, which generates first from the same prompts
    #[arg(long, value_name = "MODEL", help_heading = "Input")]
    pub(crate) against: Option<PathBuf>,
    /// Largest number of tokens per prompt
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = "Sampling")]
    pub(crate) max_tokens: usize,
    /// System prompt, for models with a chat template
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", help_heading = "Prompts")]
    pub(crate) system: Option<String>,
    /// Use prompts as they are, without the chat template
    #[arg(long, help_heading = "Prompts")]
    pub(crate) raw: bool,
    /// Temperature of sampling; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true, help_heading = "Sampling")]
    pub(crate) temperature: f32,
    /// Sample from this many of the most likely tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 0, requires = "temperature", help_heading = "Sampling")]
    pub(crate) top_k: usize,
    /// Sample from the most likely tokens whose probabilities sum to this share
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        requires = "temperature",
        allow_negative_numbers = true,
        help_heading = "Sampling"
    )]
    pub(crate) top_p: f32,
    /// Seed of sampling
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "temperature", help_heading = "Sampling")]
    pub(crate) seed: u64,
    /// Type of cached keys and values: f32, f16 or int8
    #[arg(long, value_name = "TYPE", default_value = "f32", help_heading = "Memory")]
    pub(crate) cache: String,
    /// How to read the models
    #[command(flatten, next_help_heading = "Input")]
    pub(crate) model: ModelArgs,
}

impl GenerateArgs {
    /// Returns the paths that are read.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.prompts, &self.against].into_iter().flatten().map(PathBuf::as_path)
    }
}

/// Generates text from prompts and prints it while it is generated.
#[cfg(feature = "model")]
pub(super) fn generate(common: &Common, model: &Path, what: &GenerateArgs) -> Result<u8> {
    run::generate(common, model, what)
}

/// Returns an error, because this build cannot run models.
#[cfg(not(feature = "model"))]
pub(super) fn generate(_common: &Common, _model: &Path, _what: &GenerateArgs) -> Result<u8> {
    Err(briquette::Error::lacks_feature("model", "run models"))
}

#[cfg(feature = "model")]
mod run {
    use super::super::options::options;
    use super::super::tables::bytes;
    use super::super::text;
    use super::*;
    use briquette::core::printable::printable;
    use briquette::eval::{GenerateRequest, Generated, Sampling};
    use briquette::{Error, RunOptions, models};
    use serde::Serialize;
    use std::io::Read;

    /// Largest size of prompts from stdin or a file, in bytes.
    const MAX_BYTES: u64 = 64 << 20;

    /// The JSON output.
    #[derive(Serialize)]
    struct GeneratedDocument<'a> {
        before: Option<&'a Generated>,
        after: &'a Generated,
        /// For each prompt, the number of leading tokens that equal the original's.
        equal_tokens: Option<Vec<usize>>,
    }

    pub(super) fn generate(common: &Common, model: &Path, what: &GenerateArgs) -> Result<u8> {
        let options = options(common, false)?;
        let prompts = prompts(what)?;
        let is_one = prompts.len() == 1 && what.against.is_none();
        let request = |model: &Path| -> Result<GenerateRequest> {
            Ok(GenerateRequest {
                model: model.to_path_buf(),
                choice: what.model.choice(),
                arch: what
                    .model
                    .arch
                    .as_deref()
                    .map(|name| name.parse().map_err(|error: Error| error.at("--arch")))
                    .transpose()?,
                prompts: prompts.clone(),
                system: what.system.clone(),
                is_raw: what.raw,
                max_tokens: what.max_tokens,
                cache: what.cache.parse().map_err(|message| Error::config(message).at("--cache"))?,
                sampling: Sampling {
                    temperature: what.temperature,
                    top_k: what.top_k,
                    top_p: what.top_p,
                    seed: what.seed,
                },
                device: models::device(&common.device)?,
            })
        };
        let before = what.against.as_deref().map(|original| {
            let name = format!("before, {}", original.display());
            texts(common, &request(original)?, &options, Some(&name))
        });
        let before = before.transpose()?;
        let name = format!("after, {}", model.display());
        let name = what.against.is_some().then_some(name.as_str());
        let after = texts(common, &request(model)?, &options, name)?;
        let equal_tokens = before.as_ref().map(|before| equal_tokens(before, &after));
        if common.json {
            text::print_json(&GeneratedDocument { before: before.as_ref(), after: &after, equal_tokens })?;
        } else if !common.quiet {
            before.iter().for_each(|before| tell("before", before));
            tell(if is_one || before.is_none() { "generated" } else { "after" }, &after);
            for (n_equal, sequence) in equal_tokens.iter().flatten().zip(&after.sequences) {
                text::complain(&format!("the first {n_equal} of {} tokens are equal", sequence.tokens.len()));
            }
        }
        Ok(0)
    }

    /// Returns the prompts of the command line, then those of the file.
    fn prompts(what: &GenerateArgs) -> Result<Vec<String>> {
        let mut prompts = Vec::new();
        for prompt in &what.prompt {
            if prompt != "-" {
                prompts.push(prompt.clone());
                continue;
            }
            let text = text_of(std::io::stdin().lock(), Path::new("stdin"), MAX_BYTES)?;
            prompts.push(text.trim_end_matches(['\r', '\n']).to_string());
        }
        if let Some(path) = &what.prompts {
            let file = std::fs::File::open(path).map_err(|error| Error::io("cannot read", path, error))?;
            let text = text_of(file, path, MAX_BYTES)?;
            prompts.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_string));
        }
        match prompts.is_empty() {
            true => Err(Error::input("found no prompt; write one per line").at("--prompts")),
            false => Ok(prompts),
        }
    }

    /// Reads a whole text; refuses more than `max_bytes`.
    fn text_of(from: impl Read, path: &Path, max_bytes: u64) -> Result<String> {
        let bad = |message: String| Error::input(message).at(path.display());
        let mut bytes = Vec::new();
        from.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|error| Error::io("cannot read", path, error))?;
        if bytes.len() as u64 > max_bytes {
            return Err(bad(format!("found more than {max_bytes} bytes, expected at most that; give fewer prompts")));
        }
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            bad(format!("found invalid UTF-8 at byte {at}, expected text; convert it"))
        })
    }

    /// Generates the texts of one model. The text of a single prompt is printed while it is generated, several
    /// texts at the end.
    fn texts(
        common: &Common,
        request: &GenerateRequest,
        options: &RunOptions,
        name: Option<&str>,
    ) -> Result<Generated> {
        let (streams, mut is_open) = (!common.json && request.prompts.len() == 1, false);
        if let (Some(name), false) = (name, common.json) {
            text::print(&format!("== {}\n", printable(name)))?;
        }
        if !streams {
            options.progress.begin("generate", 0);
        }
        let mut each = |_: usize, piece: &str| {
            options.stop.check()?;
            is_open |= streams && !piece.is_empty();
            if streams { text::print_piece(piece) } else { Ok(true) }
        };
        let found =
            models::guarded(&request.device, || briquette::eval::generate(request, options.meter.as_ref(), &mut each));
        options.progress.end();
        if is_open {
            // Ends the current line, even if generation was stopped.
            text::print("\n")?;
        }
        let found = found?;
        if !streams && !common.json {
            for sequence in &found.sequences {
                text::print(&format!("-- {}\n{}\n", printable(&sequence.prompt), sequence.text))?;
            }
        }
        Ok(found)
    }

    /// Prints speed and memory to stderr; stdout has only the text.
    fn tell(name: &str, found: &Generated) {
        if !found.ignored.is_empty() {
            let keys = found.ignored.join(", ");
            text::complain(&format!("{name}: generation_config.json sets {keys}, which this command does not apply"));
        }
        let n_tokens: usize = found.sequences.iter().map(|sequence| sequence.tokens.len()).sum();
        let rate = found.tokens_per_s.map_or("-".to_string(), |rate| format!("{rate:.1}"));
        let peak = found.peak_bytes.map_or(String::new(), |peak| format!(", peak memory {}", bytes(peak)));
        text::complain(&format!(
            "{name}: {n_tokens} tokens, {rate} per second (prompt: {:.0} per second); weights {}, keys and values {}{peak}",
            found.prompt_tokens_per_s,
            bytes(found.weights_bytes),
            bytes(found.cache_bytes),
        ));
    }

    fn equal_tokens(before: &Generated, after: &Generated) -> Vec<usize> {
        let pairs = before.sequences.iter().zip(&after.sequences);
        pairs.map(|(a, b)| a.tokens.iter().zip(&b.tokens).take_while(|(a, b)| a == b).count()).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn prompts_are_read_whole_or_refused() {
            let path = Path::new("stdin");
            assert_eq!(text_of(&b"four"[..], path, 4).unwrap(), "four");
            for (bytes, said) in
                [(&b"fives"[..], "stdin: found more than 4 bytes"), (b"a\xff", "stdin: found invalid UTF-8 at byte 1")]
            {
                let error = text_of(bytes, path, 4).unwrap_err();
                assert!(error.exit_code() == 4 && error.to_string().starts_with(said), "{error}");
            }
            // A file without an end.
            assert_eq!(text_of(std::io::repeat(0), path, 1 << 20).unwrap_err().exit_code(), 4);
        }
    }
}
