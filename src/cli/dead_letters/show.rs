//! `onceonly dead-letters show`.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use onceonly::ledger::postgres::report::{Attempt, DeadLetter, DeadLetterContent, Observer};
use onceonly::member::postgres_settings;
use serde::Serialize;

use crate::cli::{Global, output};

/// How much of a payload is printed for people.
const PAYLOAD_BYTES: usize = 4096;

/// Show everything kept of a dead letter, a discarded one too
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The event's id
    id: String,
    /// Only of this topic; under identity.scope = "topic" an id may have several dead letters
    #[arg(long)]
    topic: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    pipeline: &'a str,
    dead_letters: Vec<Shown<'a>>,
}

/// A dead letter with its content. Bytes that are no UTF-8 are written in hexadecimal.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    letter: &'a DeadLetter,
    key: Option<Bytes<'a>>,
    headers: Vec<Header<'a>>,
    payload: Option<Bytes<'a>>,
}

#[derive(Serialize)]
struct Header<'a> {
    name: &'a str,
    value: Option<Bytes<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Bytes<'a> {
    Text(&'a str),
    Hex(String),
}

impl<'a> Bytes<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(_) => Self::Hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        }
    }

    fn shown(bytes: Option<&'a [u8]>) -> String {
        match bytes.map(Self::of) {
            None => "null".to_owned(),
            Some(Self::Text("")) => "empty".to_owned(),
            Some(Self::Text(text)) => output::shown(text),
            Some(Self::Hex(hex)) => format!("0x{hex}"),
        }
    }
}

impl<'a> From<&'a DeadLetterContent> for Shown<'a> {
    fn from(content: &'a DeadLetterContent) -> Self {
        let header = |(name, value): &'a (String, Option<Vec<u8>>)| Header {
            name,
            value: value.as_deref().map(Bytes::of),
        };
        Self {
            letter: &content.letter,
            key: content.key.as_deref().map(Bytes::of),
            headers: content.headers.iter().map(header).collect(),
            payload: content.payload.as_deref().map(Bytes::of),
        }
    }
}

impl Show {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let config = global.configuration()?;
        let settings = postgres_settings(&config, "onceonly dead-letters show");
        let mut observer = Observer::connect(&settings, &config.pipeline).await?;
        let mut letters = observer.dead_letter(&self.id).await?;
        if let Some(topic) = &self.topic {
            letters.retain(|content| content.letter.topic == *topic);
        }
        if self.json {
            output::print_json(&Report {
                pipeline: &config.pipeline,
                dead_letters: letters.iter().map(Shown::from).collect(),
            })?;
        } else {
            let texts: Vec<String> = letters.iter().map(text).collect();
            output::print(&texts.join("\n"))?;
        }
        if letters.is_empty() {
            let of = self
                .topic
                .map_or(String::new(), |t| format!(" of topic {t}"));
            anyhow::bail!(
                "pipeline {} has no dead letter with the id {:?}{of}",
                config.pipeline,
                self.id
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn text(content: &DeadLetterContent) -> String {
    let letter = &content.letter;
    let mut table = output::table();
    table.add_row(["event", &output::shown(&letter.event_id)]);
    table.add_row(["key in the ledger", &letter.event_key.to_string()]);
    table.add_row(["state", &letter.state]);
    table.add_row([
        "record",
        &format!(
            "topic {}, partition {}, offset {}",
            letter.topic, letter.partition, letter.offset
        ),
    ]);
    table.add_row(["record's time", &record_time(letter.timestamp_ms)]);
    table.add_row(["dead since", &output::time(letter.dead_at)]);
    table.add_row(["attempts", &letter.attempts.to_string()]);
    table.add_row(["Kafka key", &Bytes::shown(content.key.as_deref())]);
    for (name, value) in &content.headers {
        let value = Bytes::shown(value.as_deref());
        let header = format!("{}: {value}", output::shown(name));
        table.add_row(["header", &header]);
    }
    for error in &letter.errors {
        table.add_row(["error", &attempt(error)]);
    }
    format!(
        "{}\n{}\n",
        table.trim_fmt(),
        payload(content.payload.as_deref())
    )
}

fn record_time(timestamp_ms: Option<i64>) -> String {
    match timestamp_ms.map(Timestamp::from_millisecond) {
        Some(Ok(time)) => output::time(time),
        Some(Err(_)) => "beyond any calendar".to_owned(),
        None => "none".to_owned(),
    }
}

fn attempt(error: &Attempt) -> String {
    format!(
        "attempt {} at {}: {}: {}",
        error.attempt,
        output::time(error.at),
        error.code,
        output::shown(&error.message)
    )
}

/// The payload as it came, not in the table, whose wrapping would break it up.
fn payload(payload: Option<&[u8]>) -> String {
    let Some(bytes) = payload else {
        return "payload: null".to_owned();
    };
    let whole = bytes.len();
    let mut end = whole.min(PAYLOAD_BYTES);
    let is_text = std::str::from_utf8(bytes).ok();
    if let Some(text) = is_text {
        end = text.floor_char_boundary(end);
    }
    let begin = bytes.get(..end).unwrap_or(bytes);
    let rest = match whole - end {
        0 => String::new(),
        more => format!("\n… and {more} bytes more: --json has them"),
    };
    format!(
        "payload, {whole} bytes:\n{}{rest}",
        Bytes::shown(Some(begin))
    )
}
