//! The words around a prompt: a chat template, as transformers renders it, and the tokens that end a text.

use crate::config::Folder;
use crate::{Input, LoadedModel};
use briquette_core::{Error, Result};
use briquette_formats::ModelDir;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value as JinjaValue, context};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const FILE: &str = "tokenizer_config.json";

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_string(), content: content.to_string() }
    }
}

/// What tokenizer_config.json has of interest here.
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

/// How a model wants to be spoken to.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    /// Where it was read.
    file: String,
    tokens: [String; 2],
}

impl ChatTemplate {
    /// The template of a model: `chat_template.jinja` beside it, or `chat_template` of its tokenizer_config.json; of several the one
    /// called `default`. `None` where it has none.
    ///
    /// # Errors
    /// Input where the file is damaged; Config where the model takes no text.
    pub fn of(model: &LoadedModel) -> Result<Option<Self>> {
        let folder = folder_of(&model.input)?;
        let config: Option<TokenizerConfig> = folder.read(FILE)?;
        let (mut source, mut tokens) = (None, [String::new(), String::new()]);
        if let Some(TokenizerConfig { chat_template, bos_token, eos_token }) = config {
            tokens = [bos_token, eos_token].map(|token| token.map_or(String::new(), SpecialToken::into_text));
            source = chat_template.and_then(|templates| match templates {
                Templates::One(template) => Some(template),
                Templates::Named(all) => {
                    all.into_iter().find(|named| named.name == "default").map(|named| named.template)
                }
            });
        }
        let mut file = FILE;
        if let Some(bytes) = folder.read_whole("chat_template.jinja")? {
            file = "chat_template.jinja";
            let damaged = |_| Error::input("it is no text; fetch it again").at(folder.file(file).display());
            source = Some(String::from_utf8(bytes).map_err(damaged)?);
        }
        Ok(source.map(|source| Self { source, file: folder.file(file).display().to_string(), tokens }))
    }

    /// The text that leads to the model's answer.
    ///
    /// # Errors
    /// Input where the template is damaged, or refuses the messages.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let mut environment = Environment::new();
        // As transformers sets up Jinja.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| Error::bug(format!("Jinja's syntax: {error}")))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| today(&format));
        let failed = |error: minijinja::Error| {
            let line = error.line().map_or(String::new(), |line| format!(" in line {line} of it"));
            let message =
                format!("its chat template cannot be used: {error}{line}; correct it, or give the text as it is");
            Error::input(message).at(&self.file)
        };
        let [bos_token, eos_token] = &self.tokens;
        let messages = messages.iter().map(|Message { role, content }| context! { role, content });
        let messages: Vec<JinjaValue> = messages.collect();
        let values = context! { messages, add_generation_prompt => true, bos_token, eos_token };
        let template = environment.template_from_str(&self.source).map_err(failed)?;
        template.render(values).map_err(failed)
    }
}

/// The day for templates that tell it, in the forms that they use; nothing else of a date is known here.
fn today(format: &str) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(since.as_secs() as i64 / 86_400);
    let name = MONTHS[month - 1];
    let values =
        [("%Y", format!("{year}")), ("%m", format!("{month:02}")), ("%d", format!("{day:02}")), ("%b", name.into())];
    values.into_iter().fold(format.to_string(), |text, (key, value)| text.replace(key, &value))
}

/// Year, month and day of a number of days since 1970. Source: Howard Hinnant, "chrono-compatible low-level date algorithms".
fn civil(days: i64) -> (i64, usize, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month as usize, day)
}

/// The tokens that end a text: `eos_token_id` of generation_config.json, or else of config.json.
///
/// # Errors
/// Input where a file is damaged; Config where the model takes no text.
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

fn folder_of(input: &Input) -> Result<Folder> {
    match input {
        Input::Text { directory, .. } => ModelDir::open(directory).map(Folder),
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
    fn a_template_is_rendered_as_transformers_does() {
        let source = "{{ bos_token }}{% for message in messages %}\n  {% if message['role'] == 'user' %}\n\
            [U]{{ message.content.strip() }}\n  {% else %}\n[S]{{ message['content'] | trim }}{{ eos_token }}\n  {% endif %}\n\
            {% endfor %}{% if add_generation_prompt %}[A]{% endif %}";
        assert_eq!(rendered(source).unwrap(), "<s>[S]Be kind.</s>\n[U]Hello\n[A]");
        assert_eq!(rendered("{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 2 %}{{ ns.n }}").unwrap(), "2");
        assert_eq!(rendered("{{ strftime_now('%d %b') | length }}").unwrap(), "6");
    }

    #[test]
    fn a_template_that_is_damaged_or_refuses_says_where() {
        for (source, said) in [("{% if", "in line 1"), ("{{ raise_exception('no system') }}", "no system")] {
            let error = rendered(source).unwrap_err().to_string();
            assert!(error.starts_with("tokenizer_config.json: its chat template") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn days_are_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_780), (2026, 11, 23));
    }
}
