//! Renders the chat template of an untrusted model within limits.

use super::assigned::{add_filters, guard_assignments};
use super::date::today;
use briquette_core::confined::{Confinement, confined};
use briquette_core::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, State, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::time::Duration;

/// Largest template in bytes; the largest known ones have 40 kB.
const MAX_BYTES: usize = 128 << 10;
/// Steps of a template, in addition to those for the messages. A step is an instruction, or 64 bytes of new
/// text.
const STEPS: u64 = 1_000_000;
/// Stack size in bytes, for the longest expression and for nested values and macros.
const STACK_BYTES: usize = 64 << 20;
/// Memory limit in bytes, in addition to that for the messages.
const MEMORY_BYTES: u64 = 256 << 20;
/// Time limit.
const TIME: Duration = Duration::from_secs(10);
/// Widest field of `str.format`.
const MAX_FIELD: u64 = 1000;

/// A template and its variables.
#[derive(Debug, Clone)]
pub(super) struct Rendering {
    pub(super) source: String,
    pub(super) bos_token: String,
    pub(super) eos_token: String,
    /// Role and content of each message.
    pub(super) messages: Vec<(String, String)>,
}

impl Rendering {
    /// Renders the text.
    ///
    /// # Errors
    /// - Input: the template is damaged, refuses the messages, or exceeds a limit
    /// - Io: the system refuses a thread
    /// - Interrupted: the user stopped the program
    pub(super) fn text(self) -> Result<String> {
        let n_bytes = self.source.len();
        if n_bytes > MAX_BYTES {
            return Err(Error::input(format!("found {n_bytes} bytes, expected at most {MAX_BYTES}")));
        }
        let of_messages = self.n_bytes() as u64;
        let limits = Confinement {
            stack_bytes: STACK_BYTES,
            memory_bytes: MEMORY_BYTES.saturating_add(of_messages.saturating_mul(64)),
            time: TIME,
        };
        confined(limits, move || self.render().map_err(|error| described(&error)))?
    }

    fn n_bytes(&self) -> usize {
        self.messages.iter().map(|(role, content)| role.len() + content.len() + 64).sum()
    }

    fn render(&self) -> Result<String, minijinja::Error> {
        // The Jinja settings of transformers.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        let source = guard_assignments(&without_generation_marks(&self.source), &syntax)?;
        let environment = environment(syntax, self.n_bytes());
        let messages = self.messages.iter().map(|(role, content)| context! { role, content });
        let messages: Vec<Value> = messages.collect();
        let (bos_token, eos_token) = (&self.bos_token, &self.eos_token);
        let values = context! {
            messages, add_generation_prompt => true, bos_token, eos_token, tools => (), documents => (),
        };
        environment.template_from_str(&source)?.render(values)
    }
}

fn environment(syntax: SyntaxConfig, n_bytes: usize) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_debug(false);
    environment.remove_global("debug");
    // Enough for sixteen passes over the messages.
    environment.set_fuel(Some(STEPS.saturating_add(n_bytes as u64 / 4)));
    environment.set_unknown_method_callback(method);
    environment.add_function("raise_exception", |message: Value| -> Result<Value, minijinja::Error> {
        Err(refused(message.as_str().unwrap_or("it refuses the messages")))
    });
    environment.add_function("strftime_now", |format: Value| -> Result<String, minijinja::Error> {
        match format.as_str() {
            Some(format) if format.len() <= 1000 => {
                today(format).ok_or_else(|| refused("strftime_now takes the codes of strftime"))
            }
            _ => Err(refused("strftime_now takes a format of at most 1000 bytes")),
        }
    });
    environment.add_filter("tojson", json_of);
    add_filters(&mut environment, n_bytes);
    environment
}

/// Writes a value as JSON without escapes for HTML, as transformers does.
fn json_of(state: &State, value: &Value, indent: Option<Value>, more: Kwargs) -> Result<String, minijinja::Error> {
    let escaped = minijinja::filters::tojson(value, indent, more)?.to_string();
    state.consume_fuel(escaped.len() as u64 / 64)?;
    Ok(without_html_escapes(&escaped))
}

/// Replaces the escapes of `<`, `>`, `&` and `'` in a JSON text by these characters.
fn without_html_escapes(json: &str) -> String {
    const ESCAPES: [(&str, char); 4] = [("u003c", '<'), ("u003e", '>'), ("u0026", '&'), ("u0027", '\'')];
    let mut text = String::with_capacity(json.len());
    let mut rest = json;
    while let Some((before, behind)) = rest.split_once('\\') {
        text.push_str(before);
        if let Some((code, letter)) = ESCAPES.into_iter().find(|(code, _)| behind.starts_with(code)) {
            text.push(letter);
            rest = &behind[code.len()..];
        } else {
            // An escaped backslash begins no other escape.
            let n = behind.chars().next().map_or(0, char::len_utf8);
            text.push('\\');
            text.push_str(&behind[..n]);
            rest = &behind[n..];
        }
    }
    text + rest
}

/// Replaces the tags around an assistant's text, which trainings of transformers read, by tags without effect.
fn without_generation_marks(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, behind)) = rest.split_once("{%") {
        text.push_str(before);
        text.push_str("{%");
        rest = behind;
        let Some((tag, _)) = behind.split_once("%}") else { break };
        let plain = match tag.trim_matches(|letter: char| letter.is_whitespace() || matches!(letter, '-' | '+')) {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => continue,
        };
        text.push_str(&plain);
        rest = &behind[tag.len()..];
    }
    text + rest
}

fn refused(what: &str) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, what.to_string())
}

/// Implements Python's methods of strings, lists and maps. Methods that lengthen text consume steps first.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, minijinja::Error> {
    match (name, value.as_str(), arguments) {
        ("join", Some(_), [items]) => state.apply_filter("join", &[items.clone(), value.clone()]),
        ("format", Some(format), _) => {
            state.consume_fuel(padding(format)? / 64)?;
            unknown_method_callback(state, value, name, arguments)
        }
        _ => unknown_method_callback(state, value, name, arguments),
    }
}

/// Returns the sum of all widths and precisions in a format such as `{:>20}`.
fn padding(format: &str) -> Result<u64, minijinja::Error> {
    let mut sum = 0;
    for field in format.split('{').skip(1) {
        let field = field.split_once('}').map_or(field, |(field, _)| field);
        for digits in field.split(|letter: char| !letter.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
            match digits.parse::<u64>() {
                Ok(width) if width <= MAX_FIELD => sum += width,
                _ => return Err(refused("a field of a format is wider than 1000 characters")),
            }
        }
    }
    Ok(sum)
}

/// Converts an error of a template, with its line.
fn described(error: &minijinja::Error) -> Error {
    let line = error.line().map_or(String::new(), |line| format!(" in line {line}"));
    match error.kind() {
        ErrorKind::OutOfFuel => Error::input(format!("it exceeds its limit of steps{line}")),
        _ => Error::input(format!("{error}{line}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn text(source: &str) -> Result<String> {
        let messages = vec![("user".to_string(), "Hello".to_string())];
        let (bos_token, eos_token) = ("<s>".to_string(), "</s>".to_string());
        Rendering { source: source.into(), bos_token, eos_token, messages }.text()
    }

    #[test]
    fn self_referencing_values_are_refused() {
        for source in [
            "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
            "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}",
            "{% set ns = namespace() %}{% set other = namespace(a=ns) %}{% set ns.x = other %}{{ ns == other }}",
            "{% set ns = namespace() %}{% set a, ns.x = 1, {'y': ns} %}{{ ns ~ '' }}",
            "{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
            "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x ~ '' }}",
        ] {
            let error = text(source).unwrap_err();
            assert!(error.exit_code() == 4 && error.message.lines().count() == 1, "{source}: {error}");
        }
        // Namespaces with a list of messages are common.
        let common = "{% set ns = namespace(found=false, list=[]) %}{% for m in messages %}{% set ns.list = ns.list + [m] %}\
            {% set ns.found = true %}{% endfor %}{{ ns.found }} {{ ns.list | length }}";
        assert_eq!(text(common).unwrap(), "True 1");
    }

    #[test]
    fn templates_are_rendered_as_in_transformers() {
        for (source, expected) in [
            ("{% if tools is not none or documents is not none %}tools{% endif %}x", "x"),
            ("{{ {'a': \"<b> & 'c' \\\\u003c\"} | tojson }}", r#"{"a": "<b> & 'c' \\u003c"}"#),
            ("a {%- generation -%} b{% endgeneration %}", "ab"),
            ("{{ strftime_now('%%') }}", "%"),
        ] {
            assert_eq!(text(source).unwrap(), expected, "{source}");
        }
        let date = text("{{ strftime_now('%d %B %Y') }}").unwrap();
        assert!(date.split(' ').nth(1).is_some_and(|month| month.chars().all(char::is_alphabetic)), "{date}");
        assert!(text("{{ strftime_now('%Q') }}").unwrap_err().message.contains("the codes of strftime"));
    }

    #[test]
    fn endless_loops_and_huge_texts_are_refused_quickly() {
        for source in [
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
            "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}",
            "{{ 'a\nb'|indent(4611686018427387904) }}",
            "{{ '{:>1000000000}'.format(1) }}",
            "{{ '{:.1000000000f}'.format(1.0) }}",
            "{{ '%1000000000d'|format(1) }}",
            "{{ '%*d'|format(1000000000, 1) }}",
            "{{ 'a' * 4000000000 }}",
            "{{ ([1] * 4000000000) | list }}",
            "{{ ([1] * 4000000000) ~ '' }}",
            "{{ range(99999999999999) | list }}",
            "{{ messages | batch(4611686018427387904, 'x') }}",
            "{{ messages | slice(4611686018427387904) }}",
            "{{ ('a' * 10000).replace('', 'b' * 10000) }}",
            "{{ ('a' * 10000) | replace('a', 'b' * 100000) }}",
            "{{ ('b' * 100000).join('a' * 100000) }}",
            "{% set x = 'a' * 1000 %}{% for i in range(1000) %}{% for j in range(1000) %}{{ x }}{% endfor %}{% endfor %}",
            "{{ 'x' | indent(1000000000) | indent(1000000000) }}{{ {'a': 1} | tojson(indent=1000000000) }}",
            "{% macro f(x) %}{{ f([x, x]) }}{% endmacro %}{{ f('a') }}",
            "{{ raise_exception([1] * 4000000000) }}",
        ] {
            let start = Instant::now();
            let error = text(source).unwrap_err();
            assert!(error.exit_code() == 4 && error.message.lines().count() == 1, "{source}: {error}");
            assert!(start.elapsed() < TIME + Duration::from_secs(5), "{source}: {:?}", start.elapsed());
        }
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        let repeated = |before: &str, part: &str, after: &str, end: &str| {
            let n = (MAX_BYTES - before.len() - after.len()) / (part.len() + end.len());
            format!("{before}{}{after}{}", part.repeat(n), end.repeat(n))
        };
        for (before, part, after, end) in [
            ("{{ ", "-", "1 }}", ""),
            ("{{ ", "not ", "1 }}", ""),
            ("{{ 1", "+1", " }}", ""),
            ("{{ 1", "~1", " }}", ""),
            ("{{ 1", "**1", " }}", ""),
            ("{{ 1", " and 1", " }}", ""),
            ("{{ x", ".a", " }}", ""),
            ("{{ x", "[0]", " }}", ""),
            ("{{ x", "()", " }}", ""),
            ("{{ 'a'", "|e", " }}", ""),
            ("{{ x", " is x", " }}", ""),
            ("{{ x", " if x else x", " }}", ""),
            ("{{ ", "(", "1 }}", ")"),
            ("{{ ", "[", "1 }}", "]"),
            ("{{ ", "{1:", "1 }}", "}"),
            ("{{ ", "f(", "1 }}", ")"),
            ("", "{% if x %}", "", "{% endif %}"),
            ("{% if x %}", "{% elif x %}", "{% endif %}", ""),
            ("", "{% for x in y %}", "", "{% endfor %}"),
            ("{% set ", "(", "a = 1 %}", ")"),
            ("{% set x = 1 %}", "{% set x = [x] %}", "{{ x }}", ""),
            ("", "{# ", "", ""),
        ] {
            let source = repeated(before, part, after, end);
            match text(&source) {
                Ok(text) => assert!(text.len() <= 4 * MAX_BYTES),
                Err(error) => assert!(error.exit_code() == 4 && error.message.lines().count() == 1, "{part}: {error}"),
            }
        }
        let nested = format!("{0}1{1}", "[".repeat(60), "]".repeat(60));
        let macros =
            format!("{{% macro f(x) %}}{{{{ f({}) }}}}{{% endmacro %}}{{{{ f(1) }}}}", nested.replace('1', "x"));
        assert_eq!(text(&macros).unwrap_err().exit_code(), 4);
        assert!(text(&" ".repeat(MAX_BYTES + 1)).unwrap_err().to_string().contains("expected at most 131072"));
    }
}
