//! The manual page, with all commands on one page.

use super::args::Args;
use briquette::{Error, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;

/// Returns the page in roff.
///
/// # Errors
/// Bug: the page cannot be rendered.
pub(super) fn page() -> Result<String> {
    let mut command = Args::command();
    command.build();
    let mut page = Vec::new();
    head(&command, &mut page).map_err(as_bug)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    page += ".SH COMMANDS\n";
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        page += &section(command, "briquette")?;
    }
    Ok(page)
}

fn as_bug(error: std::io::Error) -> Error {
    Error::bug(format!("the manual page: {error}"))
}

fn head(command: &Command, out: &mut Vec<u8>) -> std::io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    man.render_extra_section(out)
}

/// Returns the section of a command and its subcommands, without the options that all commands share.
fn section(command: &Command, above: &str) -> Result<String> {
    let name = format!("{above} {}", command.get_name());
    let own = command.clone().mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg });
    let man = Man::new(own);
    let mut out = Vec::new();
    let rendered = man.render_synopsis_section(&mut out).and_then(|()| man.render_description_section(&mut out));
    let rendered = rendered.and_then(|()| man.render_options_section(&mut out));
    rendered.and_then(|()| man.render_extra_section(&mut out)).map_err(as_bug)?;
    let text = String::from_utf8_lossy(&out);
    // The page of a command has its own sections; here they become plain paragraphs.
    let lines = text.lines().map(|line| if line.starts_with(".SH") { ".PP" } else { line });
    let mut section = format!(".SS \"{name}\"\n");
    lines.for_each(|line| section += &format!("{line}\n"));
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        section += &self::section(below, &name)?;
    }
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_every_command_is_on_the_page() {
        let page = page().unwrap().replace("\\-", "-");
        for option in ["--prune-pattern", "--against", "--resume", "--zeros", "--data", "--threads", "--to"] {
            assert!(page.contains(option), "{option}");
        }
        for name in ["briquette compress", "briquette recipe schema", "briquette man"] {
            assert!(page.contains(&format!(".SS \"{name}\"")), "{name}");
        }
        assert!(!page.contains("briquette-compress(1)"), "there is no such page");
        let (_, commands) = page.split_once(".SH COMMANDS").unwrap();
        assert!(!commands.contains("--threads"), "options of every command appear once");
    }
}
