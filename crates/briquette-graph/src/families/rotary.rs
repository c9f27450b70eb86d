//! Rotary position embeddings as `config.json` describes them.

use crate::config::Config;
use crate::op::{Rotary, RotaryScaling};
use briquette_core::{Error, Result};

/// The settings for heads of a width. `kind` is the kind of layer where kinds have settings of their own.
pub(super) fn rotary(config: &Config, kind: Option<&str>, head_width: usize) -> Result<Rotary> {
    let rope = ["rope_parameters", "rope_scaling"].into_iter().find_map(|key| config.object(key));
    let own = kind.and_then(|kind| rope.as_ref()?.object(kind));
    let rope = own.or(rope).unwrap_or_default();
    // Old files of Gemma 3 have the base of sliding layers as a key of its own, and scale other layers alone.
    let local = config.number("rope_local_base_freq").filter(|_| kind == Some("sliding_attention"));
    let (theta, rope) = match local {
        Some(theta) => (theta, Config::default()),
        None => {
            let keys = ["rope_theta", "rotary_emb_base"];
            let theta = rope.number("rope_theta").or(keys.into_iter().find_map(|key| config.number(key)));
            (theta.unwrap_or(10_000.0), rope)
        }
    };
    let share = rope.number("partial_rotary_factor");
    let share = share.or(config.number("partial_rotary_factor")).or(config.number("rotary_pct")).unwrap_or(1.0);
    let width = (head_width as f64 * share) as usize;
    if width == 0 || width > head_width || !width.is_multiple_of(2) {
        let message =
            format!("rotary positions turn {width} elements of a head, expected an even number up to {head_width}");
        return Err(Error::input(message).at("config.json"));
    }
    let scaling = match rope.text("rope_type").or(rope.text("type")) {
        // The first files of Phi-3 have "su".
        Some("longrope" | "su") => long_rope(config, &rope, width / 2)?,
        // Others of Phi-3 say "yarn" with the factors of LongRoPE.
        Some("yarn") if config.model_type() == Some("phi3") && rope.numbers("long_factor").is_some() => {
            long_rope(config, &rope, width / 2)?
        }
        _ => scaling(config, &rope)?,
    };
    check(theta, &rope)?;
    Ok(Rotary { theta, scaling, width: Some(width).filter(|&width| width < head_width) })
}

/// Refuses settings that give frequencies that are not finite.
fn check(theta: f64, rope: &Config) -> Result<()> {
    let keys = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];
    let given = keys.into_iter().filter_map(|key| Some((key, rope.number(key)?)));
    match std::iter::once(("rope_theta", theta)).chain(given).find(|(_, value)| !is_usable(*value)) {
        Some((key, value)) => {
            Err(Error::input(format!("{key} is {value}, expected a number above 0; correct it")).at("config.json"))
        }
        None => Ok(()),
    }
}

fn is_usable(value: f64) -> bool {
    value > 0.0 && (value as f32).is_normal()
}

fn scaling(config: &Config, rope: &Config) -> Result<RotaryScaling> {
    let number = |key: &str, usual: f64| rope.number(key).unwrap_or(usual);
    let longest = config.number("max_position_embeddings").unwrap_or(8192.0);
    // The key beside the others comes first.
    let key = "original_max_position_embeddings";
    let given = config.number(key).or(rope.number(key));
    let original = given.unwrap_or(longest);
    let is_yarn = rope.text("rope_type").or(rope.text("type")) == Some("yarn");
    let factor = number("factor", if is_yarn { longest / original } else { 1.0 });
    Ok(match rope.text("rope_type").or(rope.text("type")).unwrap_or("default") {
        "default" => RotaryScaling::None,
        "linear" => RotaryScaling::Linear(factor),
        "dynamic" => RotaryScaling::Dynamic { factor, original: longest },
        "llama3" => RotaryScaling::Llama3 {
            factor,
            low: number("low_freq_factor", 1.0),
            high: number("high_freq_factor", 4.0),
            original: given.unwrap_or(8192.0),
        },
        "yarn" => RotaryScaling::Yarn {
            factor,
            fast: number("beta_fast", 32.0),
            slow: number("beta_slow", 1.0),
            original,
            is_rounded: rope.flag("truncate") != Some(false),
            amplitude: amplitude(rope, factor),
        },
        other => return Err(Error::input(format!("rope_type is {other:?}, which is not known")).at("config.json")),
    })
}

/// The factors of LongRoPE for each of `n` pairs.
fn long_rope(config: &Config, rope: &Config, n: usize) -> Result<RotaryScaling> {
    let error = |message: String| Err(Error::input(format!("{message}; correct it")).at("config.json"));
    let [short, long] = ["short_factor", "long_factor"].map(|key| rope.numbers(key).unwrap_or_default());
    for (key, factors) in [("short_factor", &short), ("long_factor", &long)] {
        if factors.len() != n {
            return error(format!("{key} has {} numbers, expected {n}, half of a head's turned width", factors.len()));
        }
        if let Some(factor) = factors.iter().find(|factor| !is_usable(**factor)) {
            return error(format!("{key} has {factor}, expected numbers above 0"));
        }
    }
    let (key, longest) = ("original_max_position_embeddings", config.number("max_position_embeddings"));
    let original = config.number(key).or(rope.number(key)).or(longest).unwrap_or(4096.0);
    let factor = rope.number("factor").unwrap_or(longest.unwrap_or(original) / original);
    let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
    let amplitude = rope.number("attention_factor").unwrap_or(usual);
    match original > 1.0 && is_usable(original) && is_usable(amplitude) {
        true => Ok(RotaryScaling::LongRope { short, long, original, amplitude }),
        false => error(format!("{key} is {original} and attention_factor is {amplitude}, expected more than 1 and 0")),
    }
}

/// What YaRN multiplies cosines and sines by.
fn amplitude(rope: &Config, factor: f64) -> f64 {
    let scale = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    let given = rope.number("attention_factor");
    given.unwrap_or(match (rope.number("mscale"), rope.number("mscale_all_dim")) {
        (Some(own), Some(all)) if own != 0.0 && all != 0.0 => scale(own) / scale(all),
        _ => scale(1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(json: &str) -> Result<Rotary> {
        rotary(&Config::parse(Some(json.as_bytes())).unwrap(), None, 4)
    }

    #[test]
    fn rotary_settings_of_zero_are_refused() {
        for (json, key) in [
            (r#"{"rope_theta": 0.0}"#, "rope_theta is 0"),
            (r#"{"rope_theta": -1.0}"#, "rope_theta is -1"),
            (r#"{"rope_scaling": {"type": "linear", "factor": 0.0}}"#, "factor is 0"),
            (r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0}}"#, "low_freq_factor"),
            (r#"{"rope_scaling": {"type": "linear", "factor": 1e-300}}"#, "factor"),
        ] {
            let error = found(json).unwrap_err().to_string();
            assert!(error.contains(key), "{json}: {error}");
        }
        let long = |short: &str, original: &str| {
            format!(
                r#"{{"rope_scaling": {{"type": "longrope", "short_factor": {short}, "long_factor": [4.0, 8.0]}},
                "original_max_position_embeddings": {original}, "max_position_embeddings": 64}}"#
            )
        };
        for (short, original, phrase) in [
            ("[1.0]", "8", "short_factor has 1 numbers, expected 2"),
            ("[1.0, 0.0]", "8", "short_factor has 0, expected numbers above 0"),
            ("[1.0, 1.0]", "1", "original_max_position_embeddings is 1 "),
        ] {
            let error = found(&long(short, original)).unwrap_err().to_string();
            assert!(error.contains(phrase), "{error}");
        }
        assert!(found(&long("[1.0, 2.0]", "8")).is_ok());
        assert!(found(r#"{"rope_theta": 10000.0}"#).is_ok());
    }
}
