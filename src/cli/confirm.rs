//! Questions to whoever typed a command.

use std::io::{IsTerminal as _, Write as _};

use anyhow::Context as _;

use super::Usage;

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
}

/// Asks on standard error, unless `yes` was given. Where nobody can answer, that is bad usage.
pub(crate) fn confirm(question: &str, yes: bool) -> anyhow::Result<Answer> {
    if yes {
        return Ok(Answer::Yes);
    }
    let input = std::io::stdin();
    if !input.is_terminal() {
        let sentence = format!("{question} There is no terminal to ask at: add --yes to go on");
        return Err(Usage(sentence).into());
    }
    eprint!("{question} Go on? [y/N] ");
    std::io::stderr().flush().context("cannot ask")?;
    let mut line = String::new();
    input
        .read_line(&mut line)
        .context("cannot read the answer")?;
    match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(Answer::Yes),
        _ => Ok(Answer::No),
    }
}
