//! Runs the binary on a pseudoterminal.

use crate::sandbox::Sandbox;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

/// Runs the binary on a terminal of this size and presses `keys` one by one once it draws the progress of
/// training.
///
/// Returns the exit code and everything written to the terminal.
pub(crate) fn on_terminal(
    sandbox: &Sandbox,
    line: &str,
    [rows, columns]: [u16; 2],
    keys: &str,
) -> (Option<i32>, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let mut command = sandbox.command(line);
    let open = || File::options().read(true).write(true).open(&name).unwrap();
    command.stdin(open()).stdout(open()).stderr(open()).env("TERM", "xterm-256color").env_remove("COLUMNS");
    let mut child = command.spawn().unwrap();
    // The command holds open file descriptors of the terminal.
    drop(command);

    let (mut master, mut written, mut buffer) = (File::from(master), Vec::new(), [0; 4096]);
    let mut keys = keys.bytes();
    // Reading fails once no process has the terminal open.
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

/// The content of a terminal's screen.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// Its lines, from the top.
    pub(crate) lines: Vec<String>,
    /// Lines that exceeded the width, as they were when they wrapped.
    pub(crate) wrapped: Vec<String>,
}

impl Shown {
    /// Interprets the text on a terminal of this many columns.
    ///
    /// Supports the sequences of progress bars: carriage returns, moves upwards, cleared lines.
    pub(crate) fn of(written: &str, columns: usize) -> Self {
        let (mut shown, mut row, mut column) = (Self::default(), 0_usize, 0_usize);
        let mut cells: Vec<Vec<char>> = vec![Vec::new()];
        let mut letters = written.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\r' => column = 0,
                '\n' => row += 1,
                '\x1b' => {
                    let sequence: String =
                        letters.by_ref().skip(1).take_while_inclusive(|letter| !letter.is_alphabetic());
                    let n = sequence.trim_end_matches(char::is_alphabetic).parse().unwrap_or(1);
                    match sequence.chars().last() {
                        Some('A') => row = row.saturating_sub(n),
                        Some('K') => cells[row].truncate(if sequence == "2K" { 0 } else { column }),
                        Some('D') => column = column.saturating_sub(n),
                        _ => {}
                    }
                }
                _ => {
                    if column == columns {
                        shown.wrapped.push(cells[row].iter().collect());
                        (row, column) = (row + 1, 0);
                    }
                    cells.resize(cells.len().max(row + 1), Vec::new());
                    let length = cells[row].len().max(column + 1);
                    cells[row].resize(length, ' ');
                    cells[row][column] = letter;
                    column += 1;
                }
            }
            cells.resize(cells.len().max(row + 1), Vec::new());
        }
        shown.lines = cells.iter().map(|line| line.iter().collect::<String>().trim_end().to_string()).collect();
        shown
    }
}

/// Takes characters through the first that ends a sequence.
trait TakeInclusive: Iterator<Item = char> {
    fn take_while_inclusive(self, continues: impl Fn(&char) -> bool) -> String;
}

impl<I: Iterator<Item = char>> TakeInclusive for I {
    fn take_while_inclusive(mut self, continues: impl Fn(&char) -> bool) -> String {
        let mut letters = String::new();
        for letter in self.by_ref() {
            letters.push(letter);
            if !continues(&letter) {
                break;
            }
        }
        letters
    }
}

#[test]
fn the_screen_clears_lines_and_records_wrapped_ones() {
    let shown = Shown::of("half\r\x1b[2Kdone\r\nabcdef\x1b[1A\r\x1b[2Kup", 5);
    assert_eq!(
        (shown.lines.as_slice(), shown.wrapped.as_slice()),
        (["done", "up", "f"].map(String::from).as_slice(), ["abcde".to_string()].as_slice())
    );
}
