//! How activations are quantized when a model with integer codes runs.

use serde_json::Value;

/// The name of activations on fixed int8 grids, which `briquette-activations.json` lists.
pub const STATIC: &str = "int8-static";

/// How activations are rounded to int8, with one scale per token, computed at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationRounding {
    /// Around zero, `scale = max |x| / 127`.
    Symmetric,
    /// Around zero, `scale = max |x| / 127.5`, as in the compressed-tensors library.
    SymmetricFull,
    /// With a zero point.
    Asymmetric,
    /// On grids that are fixed before the model runs, of the network's values or of each layer's inputs.
    Fixed,
    /// A way that this program does not know.
    Other,
}

impl ActivationRounding {
    /// Reads the rounding from a group of a `quantization_config`; `None` if activations stay floats.
    pub(crate) fn of_group(group: &Value) -> Option<Self> {
        let given = |key: &str| group.get(key).filter(|value| !value.is_null());
        if given("output_activations").is_some() {
            return Some(Self::Other);
        }
        let input = given("input_activations")?;
        let text = |key: &str| input.get(key).and_then(Value::as_str);
        let is_int8 =
            input.get("num_bits").is_none_or(|bits| bits == 8) && text("type").is_none_or(|kind| kind == "int");
        if is_int8 && Self::is_of_fixed_scale(input) && matches!(text("strategy"), None | Some("tensor")) {
            return Some(Self::Fixed);
        }
        let is_known = is_int8 && text("strategy") == Some("token") && input.get("dynamic") == Some(&true.into());
        Some(match input.get("symmetric").and_then(Value::as_bool) {
            _ if !is_known => Self::Other,
            Some(false) => Self::Asymmetric,
            _ => Self::SymmetricFull,
        })
    }

    /// Returns whether the scale of `input_activations` is fixed before the model runs; it is without `dynamic`.
    pub(crate) fn is_of_fixed_scale(input: &Value) -> bool {
        input.get("dynamic").is_none_or(|dynamic| dynamic.as_bool() == Some(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_int8_per_token_is_known() {
        let input = |input: Value| ActivationRounding::of_group(&json!({ "input_activations": input }));
        assert_eq!(input(Value::Null), None);
        let token = json!({ "num_bits": 8, "type": "int", "symmetric": true, "strategy": "token", "dynamic": true });
        assert_eq!(input(token.clone()), Some(ActivationRounding::SymmetricFull));
        for (key, value, expected) in [
            ("symmetric", json!(false), ActivationRounding::Asymmetric),
            ("num_bits", json!(4), ActivationRounding::Other),
            ("type", json!("float"), ActivationRounding::Other),
            ("strategy", json!("tensor"), ActivationRounding::Other),
            ("dynamic", json!("local"), ActivationRounding::Other),
            ("dynamic", json!(false), ActivationRounding::Other),
        ] {
            let mut changed = token.clone();
            changed[key] = value;
            assert_eq!(input(changed), Some(expected), "{key}");
        }
        let output = json!({ "input_activations": token, "output_activations": {} });
        assert_eq!(ActivationRounding::of_group(&output), Some(ActivationRounding::Other));
    }
}
