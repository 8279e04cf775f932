//! What the usual consumer loses and repeats: `SET event:{id} 1 NX EX`, beside onceonly, through the
//! same faults.
//!
//! ```sh
//! make stack-up && eval "$(compose/stack env)"
//! cargo run --example dedup_gaps
//! ```
//!
//! Both read the same records of the same topic and insert a row for each event. The faults are the
//! three that no setting of that command can avoid together: the key expires, the process ends
//! between the key and the effect (in either order), and Redis loses what it held.

mod naive;
mod once;
mod stage;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use comfy_table::{Table, presets};

use stage::{Effects, Stage};

/// How the table calls the consumers.
const NAIVE: &str = "SET NX EX";
const ONCEONLY: &str = "onceonly";
/// Events of each gap.
const EVENTS: usize = 10;
/// The event in whose midst a process ends.
const STRUCK: usize = 4;
/// How long a mark lives where its end is the fault.
const SHORT_TTL: Duration = Duration::from_secs(1);
/// How long otherwise.
const LONG_TTL: Duration = Duration::from_secs(600);

/// When the mark is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Before,
    After,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    /// The producer sends its events again after the key has expired.
    Expired,
    /// The process ends in the midst of an event.
    Crash(Mark),
    /// Redis comes back empty, and the producer sends its events again.
    RedisEmptied,
}

const GAPS: [(Gap, &str); 4] = [
    (Gap::Expired, "sent again after the key's TTL"),
    (Gap::Crash(Mark::Before), "a crash, mark before the effect"),
    (Gap::Crash(Mark::After), "a crash, mark after the effect"),
    (Gap::RedisEmptied, "sent again after Redis lost its data"),
];

impl Gap {
    fn mark(self) -> Mark {
        match self {
            Self::Crash(mark) => mark,
            Self::Expired | Self::RedisEmptied => Mark::After,
        }
    }

    fn ttl(self) -> Duration {
        match self {
            Self::Expired => SHORT_TTL,
            Self::Crash(_) | Self::RedisEmptied => LONG_TTL,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dedup_gaps: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let rows = rows().await?;
    let mut table = Table::new();
    table
        .load_style(presets::ASCII_MARKDOWN)
        .set_header(["fault", "consumer", "lost", "twice", "once"]);
    for (fault, consumer, effects) in &rows {
        let counts = [effects.lost, effects.twice, effects.once].map(|count| count.to_string());
        let names = [*fault, *consumer].map(str::to_owned);
        table.add_row(names.into_iter().chain(counts));
    }
    println!("{table}");
    let failed = |row: &&Row| row.1 == ONCEONLY && row.2.once != EVENTS;
    let failed = rows.iter().find(failed).map(|row| row.0);
    ensure!(failed.is_none(), "onceonly failed: {failed:?}");
    Ok(())
}

/// The fault, the consumer, and what became of the events.
pub type Row = (&'static str, &'static str, Effects);

/// Every gap, for both consumers.
pub async fn rows() -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (gap, fault) in GAPS {
        let stage = Stage::new().await?;
        let played = play(gap, &stage).await;
        stage.clear().await?;
        let (naive, once) = played.with_context(|| format!("the gap {fault:?}"))?;
        rows.push((fault, NAIVE, naive));
        rows.push((fault, ONCEONLY, once));
    }
    Ok(rows)
}

/// Takes both consumers through one gap.
async fn play(gap: Gap, stage: &Stage) -> anyhow::Result<(Effects, Effects)> {
    stage.send(0..EVENTS)?;
    if let Gap::Crash(mark) = gap {
        naive::consume(stage, gap, Some(mark)).await?;
        once::consume_until_struck(stage, gap).await?;
    }
    naive::consume(stage, gap, None).await?;
    once::consume(stage, gap, EVENTS).await?;
    match gap {
        Gap::Crash(_) => {}
        Gap::Expired => tokio::time::sleep(SHORT_TTL + Duration::from_millis(200)).await,
        Gap::RedisEmptied => stage.lose_redis().await?,
    }
    if !matches!(gap, Gap::Crash(_)) {
        stage.send(0..EVENTS)?;
        naive::consume(stage, gap, None).await?;
        once::consume(stage, gap, 2 * EVENTS).await?;
    }
    Ok((
        stage.effects(naive::TABLE).await?,
        stage.effects(once::TABLE).await?,
    ))
}
