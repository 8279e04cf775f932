//! What a measurement needs around it, and what it has to take away again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::database::Database;
use super::events::PARTITIONS;
use super::usage::Servers;
use crate::cli::kafka::Kafka;
use crate::cli::produce::{Producing, Record};
use crate::cli::stack;
use crate::cli::worker::{Program, Worker};

/// The longest that taking things away may last.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(120);

/// Keys that Redis is asked for, and deletes, at once.
const KEYS_AT_ONCE: usize = 5_000;

/// Addresses, names that no other measurement has, and what was started and made so far.
pub(super) struct Stage {
    /// Begins the names of topics, pipelines, groups and keys.
    pub(super) name: String,
    /// The schema in Postgres.
    pub(super) schema: String,
    /// Where Kafka is.
    pub(super) brokers: String,
    /// Where Redis is.
    pub(super) redis_url: String,
    /// Where Postgres is.
    pub(super) postgres_url: String,
    /// Holds configuration and logs.
    pub(super) folder: PathBuf,
    /// The servers' processes, once they are known.
    pub(super) servers: Servers,
    /// The product, while it runs.
    pub(super) worker: Option<Worker>,
    /// Cancelled when what runs in this process has to end.
    pub(super) end: CancellationToken,
    tasks: TaskTracker,
    topics: Vec<(String, Kafka)>,
    pipelines: Vec<String>,
}

impl Stage {
    /// Chooses names and addresses; makes a folder.
    pub(super) fn new(brokers: Option<String>) -> anyhow::Result<Self> {
        let id = Uuid::new_v4().simple().to_string();
        let suffix = id.get(..8).unwrap_or(&id);
        let name = format!("onceonly-bench-{suffix}");
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self {
            schema: format!("onceonly_bench_{suffix}"),
            name,
            brokers: brokers.unwrap_or_else(stack::brokers),
            redis_url: stack::redis_url(),
            postgres_url: stack::postgres_url(),
            folder,
            servers: Servers::default(),
            worker: None,
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
            topics: Vec::new(),
            pipelines: Vec::new(),
        })
    }

    /// Connects to Postgres.
    pub(super) async fn connect_postgres(&self) -> anyhow::Result<Database> {
        Database::connect(&self.postgres_url, &self.schema).await
    }

    /// Runs something that ends when the stage is cleared.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> JoinHandle<anyhow::Result<T>> {
        let end = self.end.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                done = work => done,
                () = end.cancelled() => Err(anyhow::anyhow!("given up")),
            }
        })
    }

    /// Runs something on a thread; it has to look at [`Stage::end`] now and then.
    pub(super) fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn_blocking(work)
    }

    /// Creates a topic and sends records to it; the next topic that has the same name is another
    /// one's.
    pub(super) async fn load_topic(
        &mut self,
        name: &str,
        count: u64,
        records: impl Iterator<Item = Record> + Send + 'static,
    ) -> anyhow::Result<String> {
        let topic = format!("{}-{name}", self.name);
        let kafka = Kafka::cluster(&self.brokers, &topic, PARTITIONS).await?;
        self.topics.push((topic.clone(), kafka));
        let mut producing = Producing::start(&self.brokers, &topic, count, records)?;
        producing.finish().await?;
        Ok(topic)
    }

    /// A name for a pipeline that nobody had before.
    pub(super) fn new_pipeline(&mut self) -> String {
        let name = format!("{}-{}", self.name, self.pipelines.len());
        self.pipelines.push(name.clone());
        name
    }

    /// What the keys begin with that a baseline sets.
    pub(super) fn key_prefix(&self, baseline: &str) -> String {
        format!("event:{}-{baseline}:", self.name)
    }

    /// Drops the schema and makes it anew.
    pub(super) async fn renew_schema(
        &self,
        database: &mut Database,
        program: &Program,
    ) -> anyhow::Result<()> {
        database.drop_schema().await?;
        program.complete("migrate", &[]).await
    }

    /// Deletes the keys in Redis whose name has a part.
    pub(super) async fn delete_keys(&self, part: &str) -> anyhow::Result<()> {
        let mut connection = stack::connect_redis(&self.redis_url).await?;
        let failed = || format!("cannot delete the keys *{part}* in Redis");
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("*{part}*"));
            scan.arg("COUNT").arg(KEYS_AT_ONCE);
            let (next, keys): (u64, Vec<String>) = scan
                .query_async(&mut connection)
                .await
                .with_context(failed)?;
            if !keys.is_empty() {
                let mut unlink = redis::cmd("UNLINK");
                let unlinked = unlink.arg(keys).exec_async(&mut connection).await;
                unlinked.with_context(failed)?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// An error with the end of the product's log, if it runs.
    pub(super) fn with_log(&self, error: anyhow::Error) -> anyhow::Error {
        match &self.worker {
            Some(worker) => anyhow::anyhow!("{error:#}\n\n{}", worker.tail()),
            None => error,
        }
    }

    /// Ends what runs and takes away what was made.
    pub(super) async fn clear(mut self) -> anyhow::Result<()> {
        let clear = async {
            self.end.cancel();
            self.tasks.close();
            self.tasks.wait().await;
            if let Some(worker) = self.worker.take() {
                worker.leave().await;
            }
            let schema = async { self.connect_postgres().await?.drop_schema().await };
            let schema = schema.await;
            let keys = self.delete_keys(&self.name).await;
            let mut topics = Ok(());
            let groups: Vec<&str> = self.pipelines.iter().map(String::as_str).collect();
            for (topic, kafka) in std::mem::take(&mut self.topics) {
                topics = topics.and(kafka.clear(&topic, &groups).await);
            }
            // A leftover in the folder for temporary files.
            _ = std::fs::remove_dir_all(&self.folder);
            schema.and(keys).and(topics)
        };
        timeout(CLEAR_TIMEOUT, clear)
            .await
            .context("the measurement could not take away all that it made")?
    }
}

/// Records of events, made while they are sent.
pub(super) fn records_of(
    events: &Arc<Vec<super::events::Event>>,
) -> impl Iterator<Item = Record> + Send + 'static {
    let events = Arc::clone(events);
    (0..events.len()).filter_map(move |at| {
        let event = events.get(at)?;
        Some(event.record(event.partition))
    })
}
