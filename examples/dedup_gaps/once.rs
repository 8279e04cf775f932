//! The same with onceonly: a member of its group, ended in the midst of its work where the gap says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use onceonly::config::Config;
use onceonly::error::Error;
use onceonly::handler::{Handler, NewEvents};
use onceonly::member::Member;
use sqlx::PgConnection;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::stage::Stage;
use super::{Gap, Mark};

pub const TABLE: &str = "once_effect";

/// How long the work may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Inserts a row for each event; struck, it never gets beyond that.
struct Insert {
    statement: String,
    struck: Option<Arc<Notify>>,
}

impl Handler for Insert {
    fn name(&self) -> &str {
        "insert"
    }

    async fn handle(
        &self,
        transaction: &mut PgConnection,
        events: &NewEvents<'_>,
    ) -> Result<(), Error> {
        let ids: Vec<&str> = events.iter().map(|new| new.id).collect();
        sqlx::query(sqlx::AssertSqlSafe(self.statement.clone()))
            .bind(ids)
            .execute(transaction)
            .await
            .map_err(|error| Error::postgres("insert effects", error))?;
        if let Some(struck) = &self.struck {
            struck.notify_one();
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

/// Runs a member until its records have had so many outcomes.
pub async fn consume(stage: &Stage, gap: Gap, outcomes: usize) -> anyhow::Result<()> {
    let end = CancellationToken::new();
    let member = Member::join(&config(stage, gap)?, insert(stage, None))?;
    let running = tokio::spawn(member.run(end.clone()));
    let begun = Instant::now();
    while stage.outcomes().await? < outcomes as i64 && !running.is_finished() {
        ensure!(begun.elapsed() < PATIENCE, "onceonly stands still");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    end.cancel();
    Ok(running.await??)
}

/// Runs a member until it has claimed its events and written their effects, and ends it there, as a
/// process that dies does: nothing is committed, nothing given back.
pub async fn consume_until_struck(stage: &Stage, gap: Gap) -> anyhow::Result<()> {
    let struck = Arc::new(Notify::new());
    let member = Member::join(&config(stage, gap)?, insert(stage, Some(struck.clone())))?;
    let running = tokio::spawn(member.run(CancellationToken::new()));
    tokio::time::timeout(PATIENCE, struck.notified()).await?;
    running.abort();
    Ok(())
}

fn insert(stage: &Stage, struck: Option<Arc<Notify>>) -> Insert {
    Insert {
        statement: format!(
            "insert into {}.{TABLE} (id) select unnest($1::text[])",
            stage.name
        ),
        struck,
    }
}

fn config(stage: &Stage, gap: Gap) -> anyhow::Result<Config> {
    let mark = match gap.mark() {
        Mark::Before => "before",
        Mark::After => "after",
    };
    let text = format!(
        "pipeline = \"{name}\"\n\
         [kafka]\nbrokers = \"{brokers}\"\ntopics = [\"{name}\"]\nstart = \"earliest\"\n\
         [redis]\nurl = \"{redis}\"\nttl = \"{ttl}s\"\n\
         [postgres]\nurl = \"{postgres}\"\nschema = \"{name}\"\n\
         [dedup]\nmark = \"{mark}\"\n",
        name = stage.name,
        brokers = stage.brokers,
        redis = stage.redis_url,
        postgres = stage.postgres_url,
        ttl = gap.ttl().as_secs(),
    );
    Ok(Config::from_toml(&text)?)
}
