//! What the configuration means to each part.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::backoff::{Backoff, Jitter};
use crate::config::{self, Config, DedupMode, Mark};
use crate::error::Error;
use crate::filter::MarkOrder;
use crate::filter::redis::{Layout, RedisFilter, RedisSettings};
use crate::ledger::postgres::{Fingerprint, PostgresSettings};
use crate::pipeline::{Rate, Settings};
use crate::place::{self, LogPlace};
use crate::retention::Retention;
use crate::retry::RetryPolicy;
use crate::source::kafka::{KafkaSettings, Start};

/// How many applied ids a worker remembers: 5 to 10 MB.
const RECENT_IDS: usize = 250_000;

/// How far tries are apart while Postgres does not answer.
const RECONNECT: Backoff = Backoff {
    base: Duration::from_millis(100),
    cap: Duration::from_secs(5),
    jitter: Jitter::Equal,
};

/// Names this process in positions, commits and sessions: host, process and the start of its id.
pub(super) fn member_name(owner: Uuid) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() {
        "onceonly"
    } else {
        host.trim()
    };
    format!(
        "{host}/{}/{}",
        std::process::id(),
        &owner.simple().to_string()[..8]
    )
}

/// What a client of the pipeline's Kafka is told; `member` is what it calls itself.
///
/// Fatal where `kafka.start` cannot be used.
pub fn kafka_settings(config: &Config, member: &str) -> Result<KafkaSettings, Error> {
    let topics = config.kafka.topics.clone();
    let start = start(config)?;
    let mut settings = KafkaSettings::new(&config.kafka.brokers, config.group(), topics, start);
    settings.client_id = member.to_owned();
    for (key, value) in config.kafka.properties.iter() {
        settings.properties.insert(key.to_owned(), value.to_owned());
    }
    // A batch is charged whole: one of many seconds' worth would come in a burst after a long wait.
    let per_second = match config.limits.events_per_second {
        0 => usize::MAX,
        limit => limit as usize,
    };
    settings.max_events = config.batch.max_events.min(per_second);
    settings.max_bytes = config.batch.max_bytes;
    settings.max_wait = config.batch.max_wait;
    settings.in_flight_bytes = config.limits.in_flight_bytes;
    settings.drain_timeout = drain_timeout(config, settings.drain_timeout);
    Ok(settings)
}

/// Letting go of partitions may take no longer than the group waits for this member, nor than the
/// process may take to end.
fn drain_timeout(config: &Config, longest: Duration) -> Duration {
    let session = config.kafka.properties.get("session.timeout.ms");
    let session = session
        .and_then(|text| text.parse().ok())
        .map(Duration::from_millis);
    longest
        .min(config.shutdown.timeout / 2)
        .min(session.map_or(longest, |session| session / 2))
}

fn start(config: &Config) -> Result<Start, Error> {
    let place = match config.kafka.start {
        place::Start::Committed => return Ok(Start::Committed),
        place::Start::Place(place) => place,
    };
    match place {
        LogPlace::Earliest => Ok(Start::Earliest),
        LogPlace::Latest => Ok(Start::Latest),
        LogPlace::Offset(offset) => Ok(Start::Offset(offset)),
        LogPlace::Time(_) | LogPlace::Ago(_) => place
            .time(Timestamp::now())
            .map(|time| Start::TimestampMs(time.as_millisecond()))
            .ok_or_else(|| Error::fatal(format!("kafka.start = \"{place}\" is no time"))),
    }
}

/// The filter of marks; `None` where no Redis is configured.
///
/// Fatal where the address cannot be used.
pub fn redis_filter(config: &Config) -> Result<Option<RedisFilter>, Error> {
    let Some(redis) = &config.redis else {
        return Ok(None);
    };
    let filter = RedisFilter::open(RedisSettings {
        url: redis.url.expose().to_owned(),
        timeout: redis.timeout,
        ttl: redis.ttl,
        pipeline: config.pipeline.clone(),
        mark: match config.dedup.mark {
            Mark::After => MarkOrder::After,
            Mark::Before => MarkOrder::Before,
        },
        layout: match redis.layout {
            config::Layout::Keys => Layout::Keys,
            config::Layout::Buckets => Layout::Buckets,
        },
    })?;
    Ok(Some(filter))
}

pub(super) fn retention(config: &Config) -> Retention {
    Retention {
        retention: config.dedup.retention,
        generations: config.dedup.generations,
        max_bytes: config.dedup.max_bytes as u64,
    }
}

/// Where a command or a member finds the pipeline's tables; `member` names it there.
pub fn postgres_settings(config: &Config, member: &str) -> PostgresSettings {
    let mut settings = PostgresSettings::new(config.postgres.url.expose());
    settings.schema.clone_from(&config.postgres.schema);
    settings.member = member.to_owned();
    settings
}

/// What makes the configured pipeline the same pipeline. The handler's text is recorded as a hash.
pub fn fingerprint(config: &Config, handler_kind: &str, handler_text: &str) -> Fingerprint {
    let identity = config.identity();
    Fingerprint {
        pipeline: config.pipeline.clone(),
        // For whoever asks a broker. Where none tells, positions are compared when they are claimed.
        cluster: None,
        consumer_group: config.group().to_owned(),
        identity: identity.from.to_string(),
        scope: identity.scope.to_string(),
        retention: config.dedup.retention,
        handler_kind: handler_kind.to_owned(),
        handler_hash: blake3::hash(handler_text.as_bytes()).to_hex().to_string(),
    }
}

/// What the members of the pipeline agree on; `owner` is this one.
pub fn line_settings(config: &Config, owner: Uuid) -> Settings {
    let retry = &config.retry;
    Settings {
        owner,
        identity: config.identity(),
        on_tombstone: config.handler.on_tombstone,
        retry: RetryPolicy {
            max_attempts: retry.max_attempts,
            backoff: retry.backoff(),
        },
        max_dead_in_a_row: retry.max_dead_in_a_row,
        detect_conflicts: config.dedup.detect_conflicts,
        observe: config.dedup.mode == DedupMode::Observe,
        recent_ids: RECENT_IDS,
        reconnect: RECONNECT,
        rate: Rate::new(config.limits.events_per_second),
    }
}
