//! One member of a pipeline's group: the parts put together over Kafka, Redis and Postgres.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::config::Config;
use crate::error::{Class, Error};
use crate::filter::redis::RedisFilter;
use crate::handler::Handler;
use crate::ledger::postgres::{Absences, Fingerprint, PostgresLedger, PostgresSettings, register};
use crate::pipeline::{Health, Retrier, Settings, Worker};
use crate::retention::Retention;
use crate::source::kafka::{KafkaHandle, KafkaLog, KafkaSource, KafkaWorkerSource};

mod assembly;
mod keeper;
mod state;

use keeper::Keeper;

pub use assembly::{fingerprint, kafka_settings, line_settings, postgres_settings, redis_filter};

/// How long the ledger's keeper waits for each answer of Kafka.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(5);

/// A running member of the group.
pub struct Member<H> {
    handler: Arc<H>,
    health: Arc<Health>,
    kafka: KafkaHandle,
    sources: Vec<KafkaWorkerSource>,
    settings: Arc<Settings>,
    postgres: PostgresSettings,
    fingerprint: Fingerprint,
    filter: Option<RedisFilter>,
    retention: Retention,
    absences: Absences,
    /// Handed to the keeper when that begins.
    log: Option<KafkaLog>,
}

impl<H: Handler<PgConnection> + 'static> Member<H> {
    /// Joins the group. Neither Kafka nor Redis nor Postgres needs to be there yet.
    ///
    /// Fatal where the configuration cannot be used.
    pub fn join(config: &Config, handler: H) -> Result<Self, Error> {
        if let Some(sentence) = config.unsupported().into_iter().next() {
            return Err(Error::fatal(sentence));
        }
        let owner = Uuid::new_v4();
        let name = assembly::member_name(owner);
        let filter = redis_filter(config)?;
        let kafka = kafka_settings(config, &name)?;
        let log = KafkaLog::open(&kafka, KAFKA_TIMEOUT)?;
        let (sources, kafka) = KafkaSource::open(kafka, config.limits.workers)?;
        Ok(Self {
            fingerprint: fingerprint(config, handler.name(), &handler.text()),
            handler: Arc::new(handler),
            health: Arc::new(Health::default()),
            kafka,
            sources,
            settings: Arc::new(line_settings(config, owner)),
            postgres: postgres_settings(config, &name),
            filter,
            retention: assembly::retention(config),
            absences: Absences::default(),
            log: Some(log),
        })
    }

    /// What the workers say of themselves.
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Works until `end` is cancelled; then drains, commits and leaves the group. An error is one
    /// that only a person can mend; the group is left all the same.
    pub async fn run(mut self, end: CancellationToken) -> Result<(), Error> {
        self.fingerprint.cluster = self.kafka.cluster_id().await;
        let registered = self.register(&end).await;
        let mut tasks = JoinSet::new();
        let retrier_end = CancellationToken::new();
        let (mut keeping, mut building) = (None, None);
        if let Ok(true) = registered {
            self.spawn(&mut tasks, &retrier_end);
            let absences = self.absences.clone();
            let (postgres, pipeline) = (self.postgres.clone(), self.fingerprint.pipeline.clone());
            building = Some(tokio::spawn(absences.keep(
                postgres,
                pipeline,
                retrier_end.clone(),
            )));
            keeping = (self.keeper()).map(|keeper| tokio::spawn(keeper.run(retrier_end.clone())));
        }
        let mut result = match registered {
            Ok(true) => tokio::select! {
                () = end.cancelled() => Ok(()),
                ended = tasks.join_next() => ended.map_or(Ok(()), flatten),
            },
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        info!("leaving the group");
        drop(std::mem::take(&mut self.sources));
        retrier_end.cancel();
        self.kafka.close().await;
        // A rotation may wait for longer than the end may take; the next keeper goes on.
        for task in keeping.into_iter().chain(building) {
            task.abort();
        }
        while let Some(ended) = tasks.join_next().await {
            result = result.and(flatten(ended));
        }
        result
    }

    /// Records the pipeline's fingerprint; waits for a Postgres that is not there. False if told to
    /// end meanwhile.
    async fn register(&self, end: &CancellationToken) -> Result<bool, Error> {
        let mut tries = 0;
        loop {
            match register(&self.postgres, &self.fingerprint).await {
                Ok(_) => return Ok(true),
                Err(error) if error.class() == Class::Transient => {
                    if self.health.postgres_is(false) {
                        warn!("Postgres is not answering; waiting: {error}");
                    }
                }
                Err(error) => return Err(error),
            }
            tries += 1;
            let pause = self
                .settings
                .reconnect
                .wait(tries, Duration::ZERO, &mut rand::rng());
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = end.cancelled() => return Ok(false),
            }
        }
    }

    fn keeper(&mut self) -> Option<Keeper> {
        Some(Keeper {
            postgres: self.postgres.clone(),
            pipeline: self.fingerprint.pipeline.clone(),
            log: self.log.take()?,
            retention: self.retention,
            health: Arc::clone(&self.health),
        })
    }

    fn spawn(&mut self, tasks: &mut JoinSet<Result<(), Error>>, end: &CancellationToken) {
        let ledger = || PostgresLedger::new(self.postgres.clone(), &self.fingerprint.pipeline);
        let retrier = Retrier::new(
            ledger(),
            Arc::clone(&self.handler),
            Arc::clone(&self.settings),
            Arc::clone(&self.health),
        );
        tasks.spawn(retrier.run(end.clone()));
        for source in std::mem::take(&mut self.sources) {
            let worker = Worker::new(
                source,
                self.filter.clone(),
                ledger().with_absences(&self.absences),
                Arc::clone(&self.handler),
                Arc::clone(&self.settings),
                Arc::clone(&self.health),
            );
            tasks.spawn(worker.run());
        }
    }
}

fn flatten(ended: Result<Result<(), Error>, JoinError>) -> Result<(), Error> {
    ended.unwrap_or_else(|error| {
        Err(Error::fatal(format!(
            "a worker ended without a word, which is a bug in onceonly: {error}"
        )))
    })
}
