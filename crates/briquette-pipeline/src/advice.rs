//! Adds command-line advice to error messages.

use crate::hub;
use briquette_core::{Error, Remedy};

/// The maximum number of patterns to list; longer lists are not worth copying.
const MAX_PATTERNS: usize = 12;

/// Returns an error message with the flag or command that fixes the error.
///
/// The libraries do not know flags or commands; they only set a [`Remedy`].
pub fn advised(error: &Error) -> String {
    let advice = match &error.remedy {
        None | Some(Remedy::CheckPath) => String::new(),
        Some(Remedy::Replace) => " or pass --force to replace it".into(),
        Some(Remedy::StartAnew) => " with --force".into(),
        Some(Remedy::AllowNonfinite) => " with --allow-nonfinite".into(),
        Some(Remedy::LookUpTensors) => "; see `briquette inspect`".into(),
        Some(Remedy::LookUpDevices) => "; see `briquette devices`".into(),
        Some(Remedy::SetKey(key)) => flag_of(key).map(|flag| format!(" ({flag})")).unwrap_or_default(),
        Some(Remedy::Exclude(patterns)) => format!(" with {}", excluded(patterns)),
        Some(Remedy::Download(id)) => hub::advice(id, hub::cache().as_deref()),
        Some(Remedy::BuildWith(feature)) => format!("; build it with `{}`", build_command(feature)),
    };
    format!("{error}{advice}")
}

/// Returns the command that builds the program with a Cargo feature.
pub fn build_command(feature: &str) -> String {
    const PLAIN: &str = "cargo build --release -p briquette-cli";
    // Default features, unless the program is built with `--no-default-features`.
    match feature {
        "model" | "flex" | "pytorch" | "tui" => PLAIN.into(),
        _ => format!("{PLAIN} --features {feature}"),
    }
}

/// Returns the flag for a recipe key, if there is one.
fn flag_of(key: &str) -> Option<&'static str> {
    Some(match key {
        "data.labels" => "--labels",
        "data.max_length" => "--max-length",
        "data.stride" => "--stride",
        "data.size" => "--size",
        "data.tile" => "--tile",
        "data.strict" => "--strict",
        _ => return None,
    })
}

/// Returns `--exclude` for each pattern, quoted for a shell.
fn excluded(patterns: &[String]) -> String {
    let flags = patterns.iter().take(MAX_PATTERNS).map(|pattern| match pattern.contains(['*', '[', ' ']) {
        true => format!("--exclude '{pattern}'"),
        false => format!("--exclude {pattern}"),
    });
    let more = match patterns.len().saturating_sub(MAX_PATTERNS) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    flags.collect::<Vec<_>>().join(" ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_remedy_ends_the_line_with_a_flag_or_command() {
        let patterns = |names: &[&str]| Remedy::Exclude(names.iter().map(|name| name.to_string()).collect());
        let many: Vec<String> = (0..20).map(|i| format!("n{i}")).collect();
        let cases = [
            (Remedy::Replace, " or pass --force to replace it"),
            (Remedy::StartAnew, " with --force"),
            (Remedy::AllowNonfinite, " with --allow-nonfinite"),
            (Remedy::LookUpTensors, "; see `briquette inspect`"),
            (Remedy::LookUpDevices, "; see `briquette devices`"),
            (Remedy::SetKey("data.max_length"), " (--max-length)"),
            (Remedy::SetKey("data.crop"), "it fails"),
            (Remedy::BuildWith("model"), "; build it with `cargo build --release -p briquette-cli`"),
            (Remedy::BuildWith("cuda"), "-p briquette-cli --features cuda`"),
            (patterns(&["head", "layer.*.up"]), " with --exclude head --exclude 'layer.*.up'"),
            (Remedy::Exclude(many), "--exclude n11 and 8 more"),
        ];
        for (remedy, expected) in cases {
            let line = advised(&Error::config("it fails").with_remedy(remedy).at("here"));
            assert!(line.starts_with("here: it fails") && line.ends_with(expected), "{line}");
        }
        assert_eq!(advised(&Error::config("it fails")), "it fails");
    }
}
