//! Limits on the expressions of a template and on assigned values.
//!
//! The parser recurses for each operator and each `elif`, so their number is limited.
//!
//! Only Jinja's namespaces are mutable. A namespace that contains itself, or a list that grows by nesting
//! itself in a loop, is unbounded. So each `{% set NAME = VALUE %}` passes its value through a filter that
//! refuses such values.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value, value::ValueKind};

/// Filter of values assigned to a name, which may be namespaces.
const OF_NAME: &str = "assigned_to_name";
/// Filter of values assigned to an attribute of a namespace, which may not be namespaces.
const OF_ATTRIBUTE: &str = "assigned_to_attribute";
/// Largest nesting depth of lists and maps in an assigned value.
const MAX_DEPTH: usize = 64;
/// Largest number of items and bytes of text in an assigned value, in addition to those of the messages.
const MAX_SIZE: usize = 1 << 20;

/// Largest number of tokens between `{{` and `}}` or `{%` and `%}`. Known templates have a few hundred.
const MAX_TOKENS: usize = 4096;
/// Largest number of `elif` in a template.
const MAX_ELIFS: usize = 1024;

/// Wraps each assigned value of a template in the filter. Line numbers stay the same.
///
/// # Errors
/// - the template cannot be split into tokens (a syntax error)
/// - an expression is too long, or there are too many `elif`
pub(super) fn guard_assignments(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let mut guarded = String::with_capacity(source.len() + source.len() / 8);
    let (mut copied, mut state, mut depth, mut last_end) = (0, TemplatePlace::Outside, 0_usize, 0);
    let (mut counts, mut has_attribute) = (TokenCounts::default(), false);
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        counts.add(&token, matches!(state, TemplatePlace::Start))?;
        let end = span.end_offset as usize;
        state = match (state, &token) {
            (_, Token::BlockStart) => TemplatePlace::Start,
            (TemplatePlace::Start, Token::Ident("set")) => {
                has_attribute = false;
                TemplatePlace::Target
            }
            (TemplatePlace::Target, Token::Dot) => {
                has_attribute = true;
                TemplatePlace::Target
            }
            (TemplatePlace::Target, Token::Assign) if depth == 0 => {
                guarded.push_str(source.get(copied..end).unwrap_or_default());
                guarded.push('(');
                copied = end;
                TemplatePlace::Value
            }
            (TemplatePlace::Value, Token::BlockEnd) => {
                guarded.push_str(source.get(copied..last_end).unwrap_or_default());
                guarded.push_str(&format!(")|{}", if has_attribute { OF_ATTRIBUTE } else { OF_NAME }));
                copied = last_end;
                TemplatePlace::Outside
            }
            (_, Token::BlockEnd) | (TemplatePlace::Start, _) => TemplatePlace::Outside,
            (state, _) => state,
        };
        depth = match token {
            Token::BlockStart | Token::BlockEnd => 0,
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth + 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => depth.saturating_sub(1),
            _ => depth,
        };
        last_end = end;
    }
    guarded.push_str(source.get(copied..).unwrap_or_default());
    Ok(guarded)
}

/// Counts tokens of the current expression, and `elif`.
#[derive(Default)]
struct TokenCounts {
    of_expression: usize,
    elifs: usize,
}

impl TokenCounts {
    fn add(&mut self, token: &Token, starts_statement: bool) -> Result<(), Error> {
        match token {
            Token::BlockStart | Token::VariableStart | Token::TemplateData(_) => self.of_expression = 0,
            Token::Ident("elif") if starts_statement => self.elifs += 1,
            _ => self.of_expression += 1,
        }
        if self.of_expression > MAX_TOKENS {
            return Err(refused("an expression with more than 4096 parts is not supported"));
        }
        if self.elifs > MAX_ELIFS {
            return Err(refused("more than 1024 elif are not supported"));
        }
        Ok(())
    }
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_string())
}

/// Position of a token in a template.
#[derive(Clone, Copy)]
enum TemplatePlace {
    Outside,
    /// First word of a statement.
    Start,
    /// Before the `=` of an assignment.
    Target,
    /// After the `=` of an assignment.
    Value,
}

/// Adds the filters. `n_bytes` is the size of the messages.
pub(super) fn add_filters(environment: &mut minijinja::Environment, n_bytes: usize) {
    let max_size = MAX_SIZE.saturating_add(n_bytes.saturating_mul(4));
    for (name, depth) in [(OF_NAME, 0), (OF_ATTRIBUTE, 1)] {
        environment.add_filter(name, move |value: Value| -> Result<Value, Error> {
            let mut left = max_size;
            measure(&value, depth, &mut left)?;
            Ok(value)
        });
    }
}

/// Subtracts the size of a value from `left`.
///
/// # Errors
/// If `left` is exhausted, a value is nested too deeply, or a namespace is inside another value.
fn measure(value: &Value, depth: usize, left: &mut usize) -> Result<(), Error> {
    let is_namespace = value.as_object().is_some_and(|object| object.type_name().contains("namespace"));
    if is_namespace && depth > 0 {
        return Err(refused("a namespace within another value is not supported"));
    }
    if depth > MAX_DEPTH {
        return Err(refused("a value with more than 64 levels is not supported"));
    }
    let size = 1 + value.as_str().map_or(0, str::len);
    match left.checked_sub(size) {
        Some(rest) => *left = rest,
        None => return Err(refused("the value is too large")),
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        return Ok(());
    }
    for item in value.try_iter()? {
        measure(&item, depth + 1, left)?;
        if value.kind() == ValueKind::Map {
            measure(&value.get_item(&item)?, depth + 1, left)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(source: &str) -> String {
        guard_assignments(source, &SyntaxConfig::default()).unwrap()
    }

    #[test]
    fn assigned_values_pass_the_filter_and_nothing_else_changes() {
        for same in [
            "{{ x }}\n{# {% set a = 1 %} #}",
            "{% set a %}text{% endset %}",
            "{% raw %}{% set a = 1 %}{% endraw %}",
            "é{{ '{% set a = 1 %}' }}",
        ] {
            assert_eq!(guarded(same), same);
        }
        assert_eq!(guarded("é{%- set a = '=' -%}b"), "é{%- set a =( '=')|assigned_to_name -%}b");
        assert_eq!(guarded("{% set ns.a = f(b=1) | e, 2 %}"), "{% set ns.a =( f(b=1) | e, 2)|assigned_to_attribute %}");
        assert_eq!(
            guarded("{% set a = 1 %}{% set b = 2 %}"),
            "{% set a =( 1)|assigned_to_name %}{% set b =( 2)|assigned_to_name %}"
        );
    }
}
