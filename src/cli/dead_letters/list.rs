//! `onceonly dead-letters list`.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use onceonly::ledger::postgres::report::{DeadLetter, DeadLetterFilter, Observer};
use onceonly::member::postgres_settings;
use onceonly::place::LogPlace;
use serde::Serialize;

use crate::cli::{Global, Usage, output};

/// How much of an error's sentence a row of the table has.
const ERROR_CHARS: usize = 160;

/// List dead letters, the latest first
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only the event with exactly this id
    #[arg(long)]
    id: Option<String>,
    /// Only those whose last error has this code, or this text in its sentence
    #[arg(long, value_name = "CODE|TEXT")]
    error: Option<String>,
    /// Only those given up at this time or later: 2026-01-31T09:00:00Z, or -24h
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    since: Option<LogPlace>,
    /// Only those of this topic
    #[arg(long)]
    topic: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    pipeline: &'a str,
    dead_letters: &'a [DeadLetter],
    /// Whether there are more than the limit.
    more: bool,
}

impl List {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let config = global.configuration()?;
        let limit = self.limit as usize;
        let filter = DeadLetterFilter {
            since: self.since.map(time).transpose()?,
            id: self.id,
            error: self.error,
            topic: self.topic,
            limit: limit + 1,
        };
        let settings = postgres_settings(&config, "onceonly dead-letters list");
        let mut observer = Observer::connect(&settings, &config.pipeline).await?;
        let mut letters = observer.dead_letters(&filter).await?;
        let more = letters.len() > limit;
        letters.truncate(limit);
        if self.json {
            output::print_json(&Report {
                pipeline: &config.pipeline,
                dead_letters: &letters,
                more,
            })?;
        } else {
            output::print(&text(&config.pipeline, &filter, &letters, more))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn time(since: LogPlace) -> anyhow::Result<Timestamp> {
    since.time(Timestamp::now()).ok_or_else(|| {
        Usage(format!(
            "--since {since} is no time: write 2026-01-31T09:00:00Z, or a time ago such as -24h"
        ))
        .into()
    })
}

fn text(pipeline: &str, filter: &DeadLetterFilter, letters: &[DeadLetter], more: bool) -> String {
    if letters.is_empty() {
        let unfiltered = DeadLetterFilter {
            limit: filter.limit,
            ..DeadLetterFilter::default()
        };
        let which = match *filter == unfiltered {
            true => "",
            false => " that the filters let through",
        };
        return format!("pipeline {pipeline} has no dead letters{which}\n");
    }
    let mut table = output::table();
    table.set_header(["event", "last error"]);
    for letter in letters {
        table.add_row([output::shown(&letter.event_id), told(letter)]);
    }
    output::keep_first_column(&mut table);
    let mut text = format!("{}\n", table.trim_fmt());
    if more {
        text.push_str(&format!(
            "\nThere are more than these {}: raise --limit, or filter by --id, --error, --since or \
             --topic.\n",
            letters.len()
        ));
    }
    text
}

fn told(letter: &DeadLetter) -> String {
    let DeadLetter {
        topic,
        partition,
        offset,
        attempts,
        ..
    } = letter;
    let times = if *attempts == 1 { "" } else { "s" };
    format!(
        "{}\n{topic}/{partition} @ {offset}, dead since {}, {attempts} attempt{times}",
        last_error(letter),
        output::time(letter.dead_at),
    )
}

fn last_error(letter: &DeadLetter) -> String {
    let Some(error) = letter.errors.last() else {
        return String::new();
    };
    let sentence = output::shown(&error.message);
    let short: String = sentence.chars().take(ERROR_CHARS).collect();
    let rest = if short.len() < sentence.len() {
        "…"
    } else {
        ""
    };
    format!("{}: {short}{rest}", error.code)
}
