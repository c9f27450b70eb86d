//! Reads the model of a training checkpoint and lists the other entries.

#![allow(clippy::unwrap_used)]

mod archives;
mod common;

use archives::{dict, item, key, tensor, zip};
use briquette_core::ErrorKind;
use briquette_formats::{Checkpoint, Choice, TensorSource};
use common::{fixture, tensors};

/// Encodes a dictionary under a key.
fn below(name: &str, items: &[u8]) -> Vec<u8> {
    [key(name).as_slice(), b"}(", items, b"u"].concat()
}

/// Encodes a tensor of one element.
fn scalar(name: &str) -> Vec<u8> {
    [key(name), tensor(b"K\0))")].concat()
}

fn optimizer() -> Vec<u8> {
    [key("state").as_slice(), b"}(", &item("0", 0, 1), b"u", &key("param_groups"), b"]"].concat()
}

fn open(items: &[Vec<u8>], choice: &Choice) -> Result<Checkpoint, briquette_core::Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    std::fs::write(&path, zip(&[("m/data.pkl", &dict(&items.concat())), ("m/data/0", &[0; 8])])).unwrap();
    Checkpoint::open_as(&path, choice)
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors().iter().map(|info| info.name.as_str()).collect()
}

fn left(checkpoint: &Checkpoint) -> Vec<(&str, bool)> {
    checkpoint.left_out().iter().map(|left| (left.key.as_str(), left.is_model)).collect()
}

fn by_none() -> Choice {
    Choice::default()
}

fn by_key(key: &str) -> Choice {
    Choice { key: Some(key.into()), ..Choice::default() }
}

#[test]
fn the_model_of_a_training_checkpoint_equals_its_safetensors_twin() {
    for name in ["training", "ema"] {
        let path = fixture(&format!("pt/{name}.pt"));
        let expected = tensors(&fixture("pt/training.expected.safetensors"));
        assert_eq!(tensors(&path), expected, "{name}");
        let checkpoint = Checkpoint::open(&path).unwrap();
        let n_bytes: usize = checkpoint.tensors().iter().map(|info| info.n_bytes()).sum();
        assert_eq!(checkpoint.weight_bytes(), n_bytes as u64, "{name}");
    }
    let checkpoint = Checkpoint::open(&fixture("pt/training.pt")).unwrap();
    assert_eq!(left(&checkpoint), [("optimizer", false), ("best_acc", false)]);
    assert_eq!(checkpoint.left_out()[0].n_bytes, 2 * checkpoint.weight_bytes() + 4 * 4);
    assert_eq!(checkpoint.stripped_prefixes(), ["module.", "_orig_mod."]);
    let checkpoint = Checkpoint::open(&fixture("pt/ema.pt")).unwrap();
    assert_eq!(left(&checkpoint), [("model_ema", true)]);
    let checkpoint = Checkpoint::open_as(&fixture("pt/ema.pt"), &by_key("model_ema")).unwrap();
    assert_eq!(names(&checkpoint), ["n_averaged", "0.weight", "0.bias", "1.weight", "1.bias"]);
    assert_eq!(left(&checkpoint), [("model", true)]);
}

#[test]
fn the_key_of_the_model_is_found() {
    let model = || item("a", 0, 1);
    let optim = || below("optimizer", &optimizer());
    /// Items of the pickle, the expected names, and the other entries.
    type Case<'a> = (Vec<Vec<u8>>, &'a [&'a str], &'a [(&'a str, bool)]);
    let cases: [Case; 9] = [
        (vec![below("state_dict", &model()), scalar("best_acc")], &["a"], &[("best_acc", false)]),
        (vec![below("net", &model()), optim()], &["a"], &[("optimizer", false)]),
        (vec![below("model_ema", &model()), below("model", &item("b", 0, 1))], &["b"], &[("model_ema", true)]),
        (vec![below("params_ema", &model()), optim()], &["a"], &[("optimizer", false)]),
        // One model under an unusual key beside an optimizer, and two models, which are parts of one.
        (vec![below("encoder", &model()), optim()], &["a"], &[("optimizer", false)]),
        (
            vec![below("encoder", &model()), below("decoder", &model()), optim()],
            &["encoder.a", "decoder.a"],
            &[("optimizer", false)],
        ),
        // A state dict, whatever the names of its modules.
        (vec![item("model.a", 0, 1), item("optimizer.a", 0, 1)], &["model.a", "optimizer.a"], &[]),
        (vec![below("encoder", &model())], &["encoder.a"], &[]),
        (vec![below("model", b""), item("a", 0, 1)], &["a"], &[]),
    ];
    for (items, expected, expected_left) in cases {
        let checkpoint = open(&items, &Choice::default()).unwrap();
        assert_eq!(names(&checkpoint), expected);
        assert_eq!(left(&checkpoint), expected_left);
    }
}

#[test]
fn a_nested_state_dict_is_unwrapped_and_a_layer_named_net_is_not() {
    let state = || below("state_dict", &item("a", 0, 1));
    let found =
        open(&[below("model", &[state(), below("optimizer", &optimizer())].concat()), scalar("best_acc")], &by_none());
    let found = found.unwrap();
    assert_eq!(names(&found), ["a"]);
    assert_eq!(left(&found), [("best_acc", false), ("model.optimizer", false)]);
    let deep = open(&[below("checkpoint", &below("model", &state())), below("optimizer", &optimizer())], &by_none());
    assert_eq!(names(&deep.unwrap()), ["a"]);
    // Layers of a network in nested dictionaries.
    let layers = [below("net", &item("a", 0, 1)), below("head", &item("b", 0, 1))].concat();
    let nested = open(&[below("state_dict", &layers)], &by_none()).unwrap();
    assert_eq!(names(&nested), ["net.a", "head.b"]);
}

#[test]
fn a_key_selects_an_entry_and_a_missing_key_lists_the_entries() {
    let both = below("b", &item("c", 0, 1));
    let items = [below("model", &item("a", 0, 1)), below("model_ema", &both), scalar("best_acc")];
    for (key, expected) in
        [("model_ema", &["b.c"][..]), ("model_ema.b", &["c"]), ("", &["model.a", "model_ema.b.c", "best_acc"])]
    {
        assert_eq!(names(&open(&items, &by_key(key)).unwrap()), expected);
    }
    for key in ["ema", "best_acc", "model.a", "model_ema.x"] {
        let error = open(&items, &by_key(key)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Config);
        let message = error.to_string();
        assert!(message.contains("one of \"model\", \"model_ema\", or \"\" for all"), "{message}");
    }
    let error = Checkpoint::open_as(&fixture("digits"), &by_key("model")).unwrap_err();
    assert!(error.kind == ErrorKind::Config && error.to_string().contains("only PyTorch files have keys"), "{error}");
}

#[test]
fn prefixes_are_stripped_or_kept_as_chosen() {
    let items = [item("module.model.a", 0, 1), item("module.b", 0, 1)];
    let with = |prefix: &str| Choice { strip_prefix: Some(prefix.into()), ..Choice::default() };
    assert_eq!(names(&open(&items, &Choice::default()).unwrap()), ["model.a", "b"]);
    assert_eq!(names(&open(&items, &with("")).unwrap()), ["module.model.a", "module.b"]);
    assert_eq!(names(&open(&items, &with("module.model.")).unwrap()), ["a", "module.b"]);
    let error = open(&items, &with("net.")).unwrap_err();
    assert!(error.kind == ErrorKind::Config && error.to_string().contains("no name begins with"), "{error}");
    // Names in safetensors files are only changed by an explicit prefix.
    let digits = Checkpoint::open_as(&fixture("digits"), &with("fc1.")).unwrap();
    assert!(digits.tensors().iter().any(|info| info.name == "weight"));
}

/// A root with many keys, all of which refer to one large dictionary.
#[test]
fn the_search_for_the_model_is_fast_with_shared_dictionaries() {
    let list = [
        b"}(".as_slice(),
        &(0..1000_u16).flat_map(|i| [b"M".as_slice(), &i.to_le_bytes(), b"N"].concat()).collect::<Vec<u8>>(),
        b"uq\x000",
    ]
    .concat();
    let keys: Vec<u8> =
        (0..800_u16).flat_map(|i| [key(&format!("optimizer{i}")), b"h\x00".to_vec()].concat()).collect();
    let pickle = [b"\x80\x02".as_slice(), &list, b"}(", &keys, &item("a", 0, 1), b"u."].concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    std::fs::write(&path, zip(&[("m/data.pkl", &pickle), ("m/data/0", &[0; 8])])).unwrap();
    let since = std::time::Instant::now();
    assert_eq!(names(&Checkpoint::open(&path).unwrap()), ["a"]);
    assert!(since.elapsed() < std::time::Duration::from_secs(5), "{:?}", since.elapsed());
}
