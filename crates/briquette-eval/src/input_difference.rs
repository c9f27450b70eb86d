//! Whether two models prepare the same item in the same way.
//!
//! A model that lost its settings reads its items in another way than its original. Its metrics are bad then, and its weights are not
//! the reason.

use briquette_core::Result;
use briquette_core::printable::printable;
use briquette_models::Input;
use briquette_models::data::{Data, DataSpec, ImageInput, PairSource};
use briquette_models::text::TextTokenizer;

/// The number of texts that both tokenizers encode, and the characters of each.
const N_TEXTS: usize = 64;
const N_CHARS: usize = 1000;

/// Returns how the inputs of a model and of its reference differ for the same item, in words; `None` if they do not.
///
/// Tokenizers are compared by the tokens of the first texts of the data.
///
/// # Errors
/// - Config: the data's settings do not fit a model.
/// - Input: a text cannot be encoded.
pub(crate) fn input_difference(
    model: &Input,
    reference: &Input,
    data: &Data,
    spec: &DataSpec,
) -> Result<Option<String>> {
    match (model, reference) {
        (Input::Images(model), Input::Images(reference)) => {
            Ok(of_images(&spec.image_input(model)?, &spec.image_input(reference)?))
        }
        (Input::Text { pooling, .. }, Input::Text { pooling: other, .. }) if pooling != other => {
            Ok(Some("the reference pools hidden states in another way".into()))
        }
        (Input::Pair { sound, start, .. }, Input::Pair { sound: other, start: first, .. })
            if (sound, start) != (other, first) =>
        {
            let what =
                if sound == other { "begins or ends targets with other tokens" } else { "reads other spectrograms" };
            Ok(Some(format!("the reference {what}")))
        }
        (model, reference) => of_texts(model, reference, data, spec),
    }
}

fn of_images(model: &ImageInput, reference: &ImageInput) -> Option<String> {
    let list = |values: &[f32]| values.iter().map(|value| format!("{value:.4}")).collect::<Vec<_>>().join(" ");
    let side = |side: Option<usize>| side.map_or("none".to_string(), |side| side.to_string());
    let scaled = |input: &ImageInput| match input.resize {
        Some(side) if input.is_squeezed => format!("both sides of {side}"),
        Some(side) => format!("a shorter side of {side}"),
        None => "sides of the crop".to_string(),
    };
    let rounding = |input: &ImageInput| match input.resize {
        None => "not at all",
        Some(_) if input.crops_down => "down",
        Some(_) => "to even",
    };
    let described = |input: &ImageInput| {
        let [height, width] = input.crop;
        [
            ("channels", input.channels.to_string()),
            ("a size of", format!("{height} x {width}")),
            ("scaled", scaled(input)),
            ("half a pixel before the crop rounded", rounding(input).to_string()),
            ("the filter", format!("{:?}", input.filter).to_lowercase()),
            ("tiles of", side(input.tile)),
            ("a divisor of", input.scale.to_string()),
            ("a mean of", list(&input.mean)),
            ("a deviation of", list(&input.std)),
        ]
    };
    let differs = |((what, own), (_, other)): ((&str, String), (&str, String))| {
        (own != other).then(|| format!("{what} {other} instead of {own}"))
    };
    let all: Vec<String> = described(model).into_iter().zip(described(reference)).filter_map(differs).collect();
    (!all.is_empty()).then(|| format!("the reference reads images with {}", all.join(", ")))
}

fn of_texts(model: &Input, reference: &Input, data: &Data, spec: &DataSpec) -> Result<Option<String>> {
    let tokenizer = |input: &Input| -> Result<TextTokenizer> {
        let mut input = input.clone();
        spec.max_length.map_or(Ok(()), |max_length| input.set_max_length(max_length))?;
        input.tokenizer().cloned()
    };
    let (model, reference) = (tokenizer(model)?, tokenizer(reference)?);
    for text in texts_of(data) {
        let [found, expected] = [model.encode(&text)?, reference.encode(&text)?];
        if found != expected {
            let start: String = text.chars().take(40).collect();
            let (n, m) = (found.len(), expected.len());
            let words = if n == m { format!("{n} other tokens") } else { format!("{m} tokens instead of {n}") };
            return Ok(Some(format!("the reference reads \"{}…\" as {words}", printable(&start))));
        }
    }
    Ok(None)
}

/// Returns the first texts of the data.
fn texts_of(data: &Data) -> Vec<String> {
    let first = |text: &str| text.chars().take(N_CHARS).collect::<String>();
    match data {
        Data::Sentences(sentences) => sentences.texts.iter().take(N_TEXTS).map(|text| first(text)).collect(),
        Data::Document(text) => vec![first(text)],
        Data::Pairs(pairs) => {
            let sources = pairs.sources.iter().filter_map(|source| match source {
                PairSource::Text(text) => Some(text),
                PairSource::Sound(_) => None,
            });
            sources.take(N_TEXTS).chain(pairs.targets.iter().take(N_TEXTS)).map(|text| first(text)).collect()
        }
        Data::Images(_) => Vec::new(),
    }
}
