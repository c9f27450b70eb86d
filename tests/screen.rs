//! The full-screen view of training: it is drawn, stops the training, and restores the terminal.
#![cfg(all(feature = "model", feature = "tui"))]

use crate::distill::{RECIPE, digits};
use crate::pty::on_terminal;

/// Escape sequences that switch to the alternate screen and back.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// Rows and columns.
const SIZE: [u16; 2] = [40, 120];

#[test]
fn training_is_drawn_on_the_terminal_and_the_screen_is_restored() {
    let sandbox = digits(RECIPE);
    let (code, written) = on_terminal(&sandbox, "distill recipe.toml --threads 1", SIZE, "");
    assert_eq!(code, Some(0), "{written}");
    assert_eq!((written.matches(ENTER).count(), written.matches(LEAVE).count()), (1, 1), "{written}");
    let (screen, after) = written.split_at(written.find(LEAVE).unwrap());
    assert!(screen.contains("accuracy") && !screen.contains("epoch 1, step"), "{screen}");
    assert!(after.contains("written to"), "{after}");

    let plain = on_terminal(&sandbox, "distill recipe.toml --threads 1 --plain --force", SIZE, "");
    assert!(plain.0 == Some(0) && !plain.1.contains(ENTER) && plain.1.contains("epoch 1, step 1 of 46"), "{}", plain.1);
}

#[test]
fn an_evaluation_shows_its_items_on_the_terminal() {
    let sandbox = digits(RECIPE);
    let (code, written) = on_terminal(&sandbox, "eval digits --data digits-data.safetensors --device cpu", SIZE, "");
    assert_eq!(code, Some(0), "{written}");
    assert!(written.contains("/ 360 items"), "{written}");
}

#[test]
fn training_stopped_at_the_terminal_resumes_from_its_checkpoint() {
    for quit in ["qs", "qk"] {
        let sandbox = digits(&RECIPE.replace("epochs = 2", "epochs = 40"));
        let (code, written) = on_terminal(&sandbox, "distill recipe.toml --threads 1", SIZE, quit);
        assert_eq!(code, Some(130), "{quit}: {written}");
        let after = &written[written.rfind(LEAVE).unwrap_or_default()..];
        assert!(after.contains("run it again to resume"), "{quit}: {after}");
        assert!(!sandbox.path("out").exists() && sandbox.path("out.stages").exists());
    }
}
