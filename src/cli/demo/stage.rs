//! What the demo needs around it, and what it has to take away again.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;
use uuid::Uuid;

use super::schema::Schema;
use crate::cli::kafka::Kafka;
use crate::cli::stack;
use crate::cli::worker::{Program, Worker};

/// The longest that taking things away may last.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(60);

/// Addresses, names that no other demo has, and what was started and made so far.
pub(super) struct Stage {
    /// Names pipeline, group and topic.
    pub(super) name: String,
    /// Names the schema in Postgres.
    pub(super) schema: String,
    /// As in `dedup.mark`.
    pub(super) mark: &'static str,
    /// Where Postgres is.
    pub(super) postgres_url: String,
    /// Where Redis is.
    pub(super) redis_url: String,
    /// A real Kafka; none: an embedded one.
    pub(super) brokers: Option<String>,
    /// Holds configuration and logs.
    pub(super) folder: PathBuf,
    /// The Kafka in use.
    pub(super) kafka: Option<Kafka>,
    /// The workers that were started.
    pub(super) workers: Vec<Worker>,
    has_schema: bool,
}

impl Stage {
    /// Chooses names and addresses; makes a folder.
    pub(super) fn new(mark: &'static str, brokers: Option<&str>) -> anyhow::Result<Self> {
        let id = Uuid::new_v4().simple().to_string();
        let suffix = id.get(..8).unwrap_or(&id);
        let name = format!("onceonly-demo-{suffix}");
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let brokers = brokers.map(|brokers| match brokers {
            "" => stack::brokers(),
            brokers => brokers.to_owned(),
        });
        Ok(Self {
            schema: format!("onceonly_demo_{suffix}"),
            name,
            mark,
            postgres_url: stack::postgres_url(),
            redis_url: stack::redis_url(),
            brokers,
            folder,
            kafka: None,
            workers: Vec::new(),
            has_schema: false,
        })
    }

    /// Connects to Postgres. From now on the schema is dropped at the end.
    pub(super) async fn connect_postgres(&mut self) -> anyhow::Result<Schema> {
        let schema = Schema::connect(&self.postgres_url, &self.schema).await?;
        self.has_schema = true;
        Ok(schema)
    }

    /// Fails with advice if Redis does not answer.
    pub(super) async fn check_redis(&self) -> anyhow::Result<()> {
        stack::connect_redis(&self.redis_url).await.map(drop)
    }

    /// This program, without a configuration.
    pub(super) fn bare_program() -> anyhow::Result<Program> {
        Program::new(Vec::new())
    }

    /// Fails if a process that should run has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(kafka) = &mut self.kafka {
            kafka.check()?;
        }
        self.workers.iter_mut().try_for_each(Worker::check)
    }

    /// Lets all workers leave; after that nothing is applied any more.
    pub(super) async fn end_workers(&mut self) {
        let leaving: Vec<_> = self
            .workers
            .drain(..)
            .map(|worker| tokio::spawn(worker.leave()))
            .collect();
        for worker in leaving {
            // How they end does not matter: the effects are counted after that.
            let _ = worker.await;
        }
    }

    /// An error with the ends of the workers' logs.
    pub(super) fn with_logs(&self, error: anyhow::Error) -> anyhow::Error {
        if self.workers.is_empty() {
            return error;
        }
        let tails: String = self.workers.iter().map(Worker::tail).collect();
        anyhow::anyhow!("{error:#}\n\n{tails}")
    }

    /// Ends what runs and takes away what was made.
    pub(super) async fn clear(mut self) -> anyhow::Result<()> {
        let clear = async {
            self.end_workers().await;
            if self.has_schema {
                Schema::connect(&self.postgres_url, &self.schema)
                    .await?
                    .drop()
                    .await?;
            }
            if let Some(kafka) = self.kafka.take() {
                kafka.clear(&self.name, &[&self.name]).await?;
            }
            // A leftover in the folder for temporary files.
            let _ = std::fs::remove_dir_all(&self.folder);
            Ok(())
        };
        timeout(CLEAR_TIMEOUT, clear)
            .await
            .context("the demo could not take away all that it made")?
    }

    /// Ends what runs, and says where the rest is.
    pub(super) async fn keep(mut self) -> anyhow::Result<()> {
        self.end_workers().await;
        let (schema, folder, name) = (&self.schema, &self.folder, &self.name);
        eprintln!(
            "kept: schema {schema} in Postgres, logs in {}",
            folder.display()
        );
        match self.kafka.take() {
            Some(Kafka::Cluster { brokers, .. }) => eprintln!("kept: topic {name} at {brokers}"),
            Some(kafka) => kafka.clear(name, &[name]).await?,
            None => {}
        }
        Ok(())
    }
}
