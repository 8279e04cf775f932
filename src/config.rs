//! The configuration of a pipeline: defaults, then a TOML file, then `ONCEONLY_…` variables, then
//! flags; each wins over the one before.
//!
//! What is read is valid: [`Config`] comes out of [`Layers`], which refuses unknown keys by their
//! nearest known name, and values that cannot work, with a sentence each.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::identity::{Identity, Scope};

mod error;
mod events;
mod flow;
mod guarantee;
mod kafka;
mod keys;
mod layers;
mod secret;
mod service;
mod statement;
mod storage;
mod validate;
mod values;

pub use error::ConfigError;
pub use events::{
    Dedup, DedupMode, Handler, HandlerKind, IdentityConfig, Mark, OnDead, OnTombstone, Order,
    PayloadKind, Retry,
};
pub use flow::{Batch, Limits, Shutdown};
pub use guarantee::Guarantee;
pub use kafka::{Kafka, Properties};
pub use layers::{Layers, PREFIX};
pub use secret::Secret;
pub use service::{Coordination, Gateway, Http};
pub use storage::{Layout, Postgres, Redis};

/// A complete example with comments, whose every value is the default or stands for a required one.
pub const EXAMPLE: &str = include_str!("config/example.toml");

/// The configuration of one pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The pipeline's name: the scope of ids, positions and marks.
    pub pipeline: String,
    /// Where events come from.
    pub kafka: Kafka,
    /// The filter; without it Postgres alone decides, at its own speed.
    pub redis: Option<Redis>,
    /// Where effects and ledger live.
    pub postgres: Postgres,
    /// What makes two records the same event.
    #[serde(default)]
    pub identity: IdentityConfig,
    /// How duplicates are recognised, and for how long.
    #[serde(default)]
    pub dedup: Dedup,
    /// What an event does.
    #[serde(default)]
    pub handler: Handler,
    /// What becomes of an event that failed.
    #[serde(default)]
    pub retry: Retry,
    /// How many events share a transaction.
    #[serde(default)]
    pub batch: Batch,
    /// What the process may take.
    #[serde(default)]
    pub limits: Limits,
    /// Locks, fences, queues and schedules.
    #[serde(default)]
    pub coordination: Coordination,
    /// The operator's port.
    #[serde(default)]
    pub http: Http,
    /// The front door for HTTP clients; absent: none.
    pub gateway: Option<Gateway>,
    /// How the process leaves.
    #[serde(default)]
    pub shutdown: Shutdown,
}

impl Config {
    /// Reads a file, if one is given, and the variables of the process.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let layers = match file {
            Some(path) => Layers::new().file(path)?,
            None => Layers::new(),
        };
        layers.environment()?.config()
    }

    /// Reads a TOML text alone, without the environment.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Layers::new().toml("the text", text)?.config()
    }

    /// The consumer group: `kafka.group`, or else the pipeline's name.
    pub fn group(&self) -> &str {
        self.kafka.group.as_deref().unwrap_or(&self.pipeline)
    }

    /// What makes two records the same event.
    pub fn identity(&self) -> Identity {
        Identity {
            from: self.identity.from.clone(),
            scope: self.identity.scope.unwrap_or(Scope::Pipeline),
            on_missing: self.identity.on_missing,
        }
    }

    /// The Redis of the coordination tools: `coordination.redis_url`, or else `redis.url`.
    pub fn coordination_url(&self) -> Option<&Secret> {
        let own = self.coordination.redis_url.as_ref();
        own.or_else(|| self.redis.as_ref().map(|redis| &redis.url))
    }

    /// The same with every default spelled out that depends on another key.
    pub fn resolved(mut self) -> Self {
        self.kafka.group = Some(self.group().to_owned());
        self.identity.scope = Some(self.identity().scope);
        self.coordination.redis_url = self.coordination_url().cloned();
        self
    }

    /// A sentence for each valid setting that this version cannot run yet.
    pub fn unsupported(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        let mut refuse = |key: &str, value: &str, is_set: bool| {
            if is_set {
                sentences.push(format!(
                    "`{key} = \"{value}\"` is valid, but this version does not run it yet"
                ));
            }
        };
        refuse(
            "handler.kind",
            "webhook",
            self.handler.kind == HandlerKind::Webhook,
        );
        refuse("retry.order", "key", self.retry.order == Order::Key);
        refuse(
            "retry.order",
            "partition",
            self.retry.order == Order::Partition,
        );
        sentences
    }

    /// Every key there is, with values that stand for required ones and defaults for the others.
    fn complete() -> Self {
        Self {
            pipeline: "orders".into(),
            kafka: Kafka::complete(),
            redis: Some(Redis::complete()),
            postgres: Postgres::complete(),
            identity: IdentityConfig::default(),
            dedup: Dedup::default(),
            handler: Handler::default(),
            retry: Retry::default(),
            batch: Batch::default(),
            limits: Limits::default(),
            coordination: Coordination::default(),
            http: Http::default(),
            gateway: Some(Gateway::complete()),
            shutdown: Shutdown::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_the_defaults() {
        let example = Config::from_toml(EXAMPLE).unwrap();
        let defaults = Config {
            gateway: None,
            ..Config::complete()
        };
        assert_eq!(example, defaults);
    }

    /// The example with every commented line that is TOML by itself, but for those that read files.
    fn uncommented() -> String {
        let is_toml = |line: &str| !line.contains("file:") && line.parse::<toml::Table>().is_ok();
        EXAMPLE
            .lines()
            .map(|line| {
                line.strip_prefix("# ")
                    .filter(|line| is_toml(line))
                    .unwrap_or(line)
            })
            .map(|line| format!("{line}\n"))
            .collect()
    }

    #[test]
    fn the_example_has_every_key_and_its_comments_are_valid() {
        let text = uncommented();
        let config = Config::from_toml(&text).unwrap();
        assert_eq!(config.gateway, Config::complete().gateway);
        assert_eq!(
            config.kafka.properties.get("sasl.mechanism"),
            Some("SCRAM-SHA-512")
        );
        let table: toml::Table = text.parse().unwrap();
        for key in keys::known() {
            let mut parts = key.split('.');
            let first = table.get(parts.next().unwrap());
            let value = parts.try_fold(first.unwrap(), |value, part| value.get(part));
            assert!(value.is_some(), "the example lacks {key}");
        }
    }
}
