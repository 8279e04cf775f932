//! The usual way: for each event a `SET NX EX`, and where that was new a transaction.
//!
//! The transaction is one `insert` with its own commit, the least it can be; most services pay for
//! `begin` and `commit` beside it. Fewer events than the product had, since all cost the same.

use anyhow::{Context as _, ensure};
use redis::aio::MultiplexedConnection;

use super::Work;
use crate::cli::bench::database::Database;
use crate::cli::bench::events::Event;
use crate::cli::bench::measured::{Clock, Measured};
use crate::cli::bench::stage::Stage;
use crate::cli::stack;

/// At most so many events.
const EVENTS_MAX: usize = 4_000;

const TTL_S: u32 = 86_400;

pub(super) async fn measure(
    stage: &Stage,
    database: &mut Database,
    work: &Work,
) -> anyhow::Result<Measured> {
    database.create_rows().await?;
    let prefix = stage.key_prefix("naive");
    let mut services = Vec::new();
    for _ in 0..work.workers {
        services.push(Service {
            postgres: database.another().await?,
            redis: stack::connect_redis(&stage.redis_url).await?,
            prefix: prefix.clone(),
            topic: work.topic.clone(),
        });
    }
    database.checkpoint().await;
    let clock = Clock::start(stage.servers, std::process::id());
    let mut tasks = Vec::new();
    for (worker, mut service) in services.into_iter().enumerate() {
        let work = work.clone();
        tasks.push(stage.spawn(async move {
            let mut effects = 0;
            for event in work.of_worker(worker).take(EVENTS_MAX / work.workers) {
                effects += service.apply(event).await?;
            }
            anyhow::Ok(effects)
        }));
    }
    let mut effects = 0;
    for task in tasks {
        effects += task.await.context("a connection ended without a word")??;
    }
    let measured = clock.stop(effects);
    stage.delete_keys(&prefix).await?;
    database.drop_rows().await?;
    Ok(measured)
}

struct Service {
    postgres: Database,
    redis: MultiplexedConnection,
    prefix: String,
    topic: String,
}

impl Service {
    /// Returns how many effects that was.
    async fn apply(&mut self, event: &Event) -> anyhow::Result<u64> {
        let id = event.id.to_string();
        let mut set = redis::cmd("SET");
        set.arg(format!("{}{id}", self.prefix)).arg("1").arg("NX");
        set.arg("EX").arg(TTL_S);
        let is_new: Option<String> = set
            .query_async(&mut self.redis)
            .await
            .context("Redis does not answer")?;
        ensure!(is_new.is_some(), "Redis knows an id that was never set");
        self.postgres.insert_row(event, &self.topic).await
    }
}
