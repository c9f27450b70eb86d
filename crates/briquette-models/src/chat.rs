//! Chat templates, rendered as in transformers, and the tokens that end a text.

mod assigned;
mod date;
mod render;

use crate::config::Folder;
use crate::{Input, LoadedModel};
use briquette_core::{Error, ErrorKind, Result};
use briquette_formats::ModelDir;
use render::Rendering;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const FILE: &str = "tokenizer_config.json";

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Text of the message.
    pub content: String,
}

impl Message {
    /// Creates a message.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_string(), content: content.to_string() }
    }
}

/// The relevant keys of tokenizer_config.json.
#[derive(Debug, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<SpecialToken>,
    eos_token: Option<SpecialToken>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Described { content: String },
}

impl SpecialToken {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Described { content: text } => text,
        }
    }
}

/// The chat template of a model.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    /// File that the template was read from.
    file: String,
    tokens: [String; 2],
}

impl ChatTemplate {
    /// Creates a Jinja template for a tokenizer with these special tokens.
    pub fn new(source: impl Into<String>, bos_token: &str, eos_token: &str) -> Self {
        Self { source: source.into(), file: "template".into(), tokens: [bos_token, eos_token].map(str::to_string) }
    }

    /// Reads the template of a model; `None` if it has none.
    ///
    /// The source is `chat_template.jinja`, or `chat_template` in tokenizer_config.json; of several templates,
    /// the one named `default`.
    ///
    /// # Errors
    /// - Input: the file is damaged
    /// - Config: the model does not take text
    pub fn of(model: &LoadedModel) -> Result<Option<Self>> {
        let folder = folder_of(&model.input)?;
        let config: Option<TokenizerConfig> = folder.read(FILE)?;
        let (mut source, mut tokens) = (None, [String::new(), String::new()]);
        if let Some(TokenizerConfig { chat_template, bos_token, eos_token }) = config {
            tokens = [bos_token, eos_token].map(|token| token.map_or(String::new(), SpecialToken::into_text));
            source = match chat_template {
                None => None,
                Some(Templates::One(template)) => Some(template),
                Some(Templates::Named(all)) => {
                    let default = all.into_iter().find(|named| named.name == "default");
                    let missing = || {
                        let message = "chat_template has no template named \"default\"; name one so";
                        Error::input(message).at(folder.file(FILE).display())
                    };
                    Some(default.ok_or_else(missing)?.template)
                }
            };
        }
        let mut file = FILE;
        if let Some(bytes) = folder.read_whole("chat_template.jinja")? {
            file = "chat_template.jinja";
            let damaged = |_| Error::input("it is not UTF-8 text; download it again").at(folder.file(file).display());
            source = Some(String::from_utf8(bytes).map_err(damaged)?);
        }
        Ok(source.map(|source| Self { source, file: folder.file(file).display().to_string(), tokens }))
    }

    /// Renders messages as a prompt, up to the start of the model's answer.
    ///
    /// Rendering runs on its own thread with limits on steps, stack, memory and time.
    ///
    /// The memory limit needs an allocator that calls [`take`](briquette_core::confined::take) and
    /// [`give`](briquette_core::confined::give), as the allocator of the command does. With another allocator,
    /// the limits on steps, sizes of fields and time remain: render untrusted templates in a process with limited
    /// memory.
    ///
    /// # Errors
    /// - Input: the template is damaged, refuses the messages, or exceeds a limit
    /// - Io: the system refuses a thread
    /// - Interrupted: [`stop_all`](briquette_core::confined::stop_all) was called
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let [bos_token, eos_token] = self.tokens.clone();
        let messages = messages.iter().map(|Message { role, content }| (role.clone(), content.clone())).collect();
        let rendering = Rendering { source: self.source.clone(), bos_token, eos_token, messages };
        rendering.text().map_err(|error| match error.kind {
            ErrorKind::Input => {
                let message = format!("its chat template cannot be used: {error}; correct it, or do without it");
                Error::input(message).at(&self.file)
            }
            _ => error,
        })
    }
}

/// Returns the tokens that end a text: `eos_token_id` of generation_config.json, or else of config.json.
///
/// # Errors
/// - Input: a file is damaged
/// - Config: the model does not take text
pub fn end_tokens(model: &LoadedModel) -> Result<Vec<u32>> {
    let folder = folder_of(&model.input)?;
    for file in ["generation_config.json", "config.json"] {
        let settings: serde_json::Map<String, Value> = folder.read(file)?.unwrap_or_default();
        let found = match settings.get("eos_token_id") {
            Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).collect(),
            Some(id) => id.as_u64().into_iter().collect::<Vec<_>>(),
            None => Vec::new(),
        };
        if !found.is_empty() {
            return Ok(found.into_iter().filter_map(|id| u32::try_from(id).ok()).collect());
        }
    }
    Ok(Vec::new())
}

/// Returns the keys of generation_config.json that change the most likely text and are not applied.
///
/// # Errors
/// See [`end_tokens`].
pub fn ignored_settings(model: &LoadedModel) -> Result<Vec<String>> {
    // Each key with the value that changes nothing.
    const KEYS: [(&str, f64); 7] = [
        ("repetition_penalty", 1.0),
        ("encoder_repetition_penalty", 1.0),
        ("no_repeat_ngram_size", 0.0),
        ("encoder_no_repeat_ngram_size", 0.0),
        ("min_length", 0.0),
        ("min_new_tokens", 0.0),
        ("num_beams", 1.0),
    ];
    const LISTS: [&str; 4] = ["suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias"];
    let settings: serde_json::Map<String, Value> =
        folder_of(&model.input)?.read("generation_config.json")?.unwrap_or_default();
    let number = |key: &str| settings.get(key).and_then(Value::as_f64);
    let has_list = |key: &&str| settings.get(*key).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let numbers = KEYS.into_iter().filter(|(key, usual)| number(key).is_some_and(|value| value != *usual));
    Ok(numbers.map(|(key, _)| key).chain(LISTS.into_iter().filter(has_list)).map(str::to_string).collect())
}

fn folder_of(input: &Input) -> Result<Folder> {
    match input {
        Input::Text { directory, .. } | Input::Pair { directory, .. } => ModelDir::open(directory).map(Folder),
        Input::Images(_) => Err(Error::config("the model takes images, found text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(source: &str) -> Result<String> {
        let tokens = ["<s>", "</s>"].map(str::to_string);
        let template = ChatTemplate { source: source.into(), file: "tokenizer_config.json".into(), tokens };
        template.render(&[Message::new("system", "Be kind."), Message::new("user", " Hello ")])
    }

    #[test]
    fn a_template_renders_as_in_transformers() {
        let source = "{{ bos_token }}{% for message in messages %}\n  {% if message['role'] == 'user' %}\n\
            [U]{{ message.content.strip() }}\n  {% else %}\n[S]{{ message['content'] | trim }}{{ eos_token }}\n  {% endif %}\n\
            {% endfor %}{% if add_generation_prompt %}[A]{% endif %}";
        assert_eq!(rendered(source).unwrap(), "<s>[S]Be kind.</s>\n[U]Hello\n[A]");
        assert_eq!(rendered("{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 2 %}{{ ns.n }}").unwrap(), "2");
        assert_eq!(rendered("{{ strftime_now('%d %b') | length }}").unwrap(), "6");
    }

    #[test]
    fn template_errors_have_a_line_number() {
        for (source, said) in [("{% if", "in line 1"), ("{{ raise_exception('no system') }}", "no system")] {
            let error = rendered(source).unwrap_err().to_string();
            assert!(error.starts_with("tokenizer_config.json: its chat template") && error.contains(said), "{error}");
        }
    }
}
