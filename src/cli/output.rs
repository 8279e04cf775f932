//! Results on standard output.

use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use jiff::Timestamp;
use serde::Serialize;

/// The width of tables where neither a terminal nor `COLUMNS` tells one.
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
    let width = width(table.width(), columns());
    table.set_width(width);
    table
}

/// Keeps the first column from being wrapped, unless it is long: names are there to be copied.
pub(crate) fn keep_first_column(table: &mut Table) {
    const LONGEST: u16 = 40;
    let width = table.column_max_content_widths().first().copied();
    if width.is_some_and(|width| width <= LONGEST)
        && let Some(column) = table.column_mut(0)
    {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
}

/// A terminal that was never told its size says 0.
fn width(terminal: Option<u16>, columns: Option<u16>) -> u16 {
    let mut told = [terminal, columns].into_iter().flatten();
    told.find(|width| *width > 0).unwrap_or(WIDTH)
}

fn columns() -> Option<u16> {
    std::env::var("COLUMNS").ok()?.parse().ok()
}

/// A text that somebody else wrote, without what would steer the terminal. Line feeds and tabs
/// stay.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && !matches!(c, '\n' | '\t') {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// A time to the second, in UTC.
pub(crate) fn time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A span in its greatest unit.
pub(crate) fn span(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_size_is_as_wide_as_none() {
        assert_eq!(width(Some(80), Some(120)), 80);
        assert_eq!(width(None, Some(120)), 120);
        assert_eq!(width(Some(0), Some(120)), 120);
        assert_eq!(width(Some(0), Some(0)), WIDTH);
        assert_eq!(width(None, None), WIDTH);
    }

    #[test]
    fn what_others_wrote_cannot_steer_the_terminal() {
        assert_eq!(shown("a\u{1b}[2J\tb\nc\r"), "a\\u{1b}[2J\tb\nc\\r");
    }

    #[test]
    fn a_span_is_told_in_its_greatest_unit() {
        for (seconds, told) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_600, "1h"),
            (172_800, "2d"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), told);
        }
    }
}
