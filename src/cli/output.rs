//! Results on standard output.

use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// The width of tables where no terminal tells one.
const WIDTH: u16 = 100;

/// Prints a text as it is. A reader that has gone away has seen enough; that is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the result to standard output"),
    }
}

/// Prints a result as one JSON object.
pub(crate) fn print_json(result: &impl Serialize) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(result).context("cannot write the result as JSON")?;
    print(&format!("{json}\n"))
}

/// A table without lines, as wide as the terminal.
pub(crate) fn table() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(WIDTH);
    }
    table
}
