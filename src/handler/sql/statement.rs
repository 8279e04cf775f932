//! A user's statement: what it may be, and what is wrong with it.

use std::fmt::Write as _;

use sqlx::postgres::{PgDatabaseError, PgErrorPosition};

use crate::error::{Class, Error};

/// Statements that a transaction can hold any number of, and that end with it.
const BEGINNINGS: [&str; 6] = ["with", "insert", "update", "delete", "merge", "select"];

/// How much of a statement a message shows.
const SHOWN_LINES: usize = 40;

/// Refuses what is not a statement over data, such as `commit`, before any server is asked.
pub(super) fn check(number: usize, text: &str) -> Result<(), Error> {
    let word = first_word(text);
    if BEGINNINGS
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known))
    {
        return Ok(());
    }
    let begins = match word {
        "" => "is empty".to_owned(),
        word => format!("begins with {word:?}"),
    };
    Err(Error::fatal(format!(
        "handler statement {number} {begins}; it must begin with one of {}:\n{}",
        BEGINNINGS.join(", "),
        quoted(text, None)
    )))
}

/// The first word behind white space and comments.
fn first_word(text: &str) -> &str {
    let mut rest = text.trim_start();
    loop {
        let after = if let Some(comment) = rest.strip_prefix("--") {
            comment.split_once('\n').map_or("", |(_, after)| after)
        } else if let Some(comment) = rest.strip_prefix("/*") {
            after_comment(comment)
        } else {
            break;
        };
        rest = after.trim_start();
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    rest.get(..end.unwrap_or(rest.len())).unwrap_or_default()
}

/// What follows a comment whose beginning was taken. Comments nest in Postgres.
fn after_comment(text: &str) -> &str {
    let mut rest = text;
    let mut depth = 1;
    while depth > 0 {
        let Some(at) = rest.find(['*', '/']) else {
            return "";
        };
        let tail = rest.get(at..).unwrap_or_default();
        let (step, width) = match tail.get(..2) {
            Some("/*") => (1, 2),
            Some("*/") => (-1, 2),
            _ => (0, 1),
        };
        depth += step;
        rest = tail.get(width..).unwrap_or_default();
    }
    rest
}

/// What Postgres says against a statement, with the place that it means.
pub(super) fn explain(number: usize, text: &str, source: sqlx::Error) -> Error {
    let error = Error::postgres(format!("handler statement {number}"), source);
    if error.class() == Class::Transient {
        return error;
    }
    let answer = std::error::Error::source(&error)
        .and_then(|source| source.downcast_ref::<sqlx::Error>())
        .and_then(sqlx::Error::as_database_error)
        .and_then(|answer| answer.try_downcast_ref::<PgDatabaseError>());
    let position = answer.and_then(|answer| match answer.position() {
        Some(PgErrorPosition::Original(position)) => line_and_column(text, position),
        _ => None,
    });
    let place = match position {
        Some((line, column)) => format!(" at line {line}, column {column}"),
        None => String::new(),
    };
    Error::fatal(format!("{error}{place}:\n{}", quoted(text, position))).caused_by(error)
}

pub(super) fn with_parameters(number: usize, text: &str) -> Error {
    Error::fatal(format!(
        "handler statement {number} has parameters ($1, …), and there is nothing to give them: it \
         reads its events from the relation batch:\n{}",
        quoted(text, None)
    ))
}

/// The statement on one line, to tell it from others.
pub(super) fn shortened(text: &str) -> String {
    const SHOWN_CHARS: usize = 200;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{}…", line.get(..cut).unwrap_or_default()),
        None => line,
    }
}

/// Line and column of a character, both counted from one, as Postgres counts characters.
fn line_and_column(text: &str, position: usize) -> Option<(usize, usize)> {
    let before: String = text.chars().take(position.checked_sub(1)?).collect();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    Some((line, column))
}

/// The statement's lines, indented, with a caret under the place.
fn quoted(text: &str, place: Option<(usize, usize)>) -> String {
    let mut quoted = String::new();
    for (number, line) in (1..).zip(text.lines()).take(SHOWN_LINES) {
        _ = writeln!(quoted, "  {line}");
        if let Some((_, column)) = place.filter(|(at, _)| *at == number) {
            _ = writeln!(quoted, "  {:>column$}", "^");
        }
    }
    quoted.truncate(quoted.trim_end().len());
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_over_data_pass_behind_comments() {
        for text in [
            "insert into t select 1",
            "  \n WITH a as (select 1) select 1",
            "-- why\n-- more\nupdate t set a = 1",
            "/* a /* nested */ comment */ delete from t",
            "/* * / ** */merge into t using batch on true when matched then do nothing",
            "select(1)",
        ] {
            assert!(check(1, text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_could_end_the_transaction_is_refused() {
        for text in [
            "commit",
            "begin",
            "call p()",
            "do $$ begin end $$",
            "copy t from stdin",
            "",
            "-- only",
            "/* open",
            "truncate t",
            "selects",
            "create table t ()",
            "(select 1)",
        ] {
            let error = check(3, text).unwrap_err();
            assert!(
                error.to_string().starts_with("handler statement 3 "),
                "{error}"
            );
        }
    }

    #[test]
    fn a_caret_stands_under_the_place() {
        let text = "select ä,\n  nope\nfrom batch";
        let position = text.chars().position(|c| c == 'n').unwrap() + 1;
        let place = line_and_column(text, position);
        assert_eq!(place, Some((2, 3)));
        assert_eq!(
            quoted(text, place),
            "  select ä,\n    nope\n    ^\n  from batch"
        );
    }
}
