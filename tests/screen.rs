//! A training on a whole terminal: drawn there, stopped from there, and given back as it was.
#![cfg(all(feature = "model", feature = "tui"))]

use crate::distill::{RECIPE, digits};
use crate::sandbox::Sandbox;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

/// What a terminal is told to show another screen, and to show the first one again.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// Runs the binary on a terminal, where `keys` are pressed one by one once the screen is up. The exit code, and all that was written to the terminal.
fn on_terminal(sandbox: &Sandbox, line: &str, keys: &str) -> (Option<i32>, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let mut command = sandbox.command(line);
    let open = || File::options().read(true).write(true).open(&name).unwrap();
    command.stdin(open()).stdout(open()).stderr(open()).env("TERM", "xterm-256color");
    let mut child = command.spawn().unwrap();
    // Otherwise this process, too, holds the terminal open.
    drop(command);

    let (mut master, mut written, mut buffer) = (File::from(master), Vec::new(), [0; 4096]);
    let mut keys = keys.bytes();
    // A terminal that nobody holds open any more ends with an error.
    while let Ok(n @ 1..) = master.read(&mut buffer) {
        written.extend_from_slice(&buffer[..n]);
        let is_up = String::from_utf8_lossy(&written).contains("loss");
        if let Some(key) = is_up.then(|| keys.next()).flatten() {
            std::thread::sleep(Duration::from_millis(300));
            master.write_all(&[key]).unwrap();
        }
    }
    (child.wait().unwrap().code(), String::from_utf8_lossy(&written).into_owned())
}

#[test]
fn a_training_is_drawn_on_the_terminal_which_gets_its_own_screen_back() {
    let sandbox = digits(RECIPE);
    let (code, written) = on_terminal(&sandbox, "distill recipe.toml --threads 1", "");
    assert_eq!(code, Some(0), "{written}");
    assert_eq!((written.matches(ENTER).count(), written.matches(LEAVE).count()), (1, 1), "{written}");
    let (screen, after) = written.split_at(written.find(LEAVE).unwrap());
    assert!(screen.contains("accuracy") && !screen.contains("epoch 1, step"), "{screen}");
    assert!(after.contains("written to"), "{after}");

    let plain = on_terminal(&sandbox, "distill recipe.toml --threads 1 --plain --force", "");
    assert!(plain.0 == Some(0) && !plain.1.contains(ENTER) && plain.1.contains("epoch 1, step 1 of 46"), "{}", plain.1);
}

#[test]
fn an_evaluation_counts_its_items_on_the_terminal() {
    let sandbox = digits(RECIPE);
    let (code, written) = on_terminal(&sandbox, "eval digits --data digits-data.safetensors --device cpu", "");
    assert_eq!(code, Some(0), "{written}");
    assert!(written.contains("/ 360 items"), "{written}");
}

#[test]
fn stopped_at_the_terminal_it_goes_on_from_its_checkpoint() {
    for quit in ["qs", "qk"] {
        let sandbox = digits(&RECIPE.replace("epochs = 2", "epochs = 40"));
        let (code, written) = on_terminal(&sandbox, "distill recipe.toml --threads 1", quit);
        assert_eq!(code, Some(130), "{quit}: {written}");
        let after = &written[written.rfind(LEAVE).unwrap_or_default()..];
        assert!(after.contains("run it again to go on"), "{quit}: {after}");
        assert!(!sandbox.path("out").exists() && sandbox.path("out.stages").exists());
    }
}
