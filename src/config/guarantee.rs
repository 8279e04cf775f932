//! What a configuration promises, in plain words.

use serde::Serialize;

use super::{Config, DedupMode, HandlerKind, Layout, Mark};
use crate::identity::{IdSource, OnMissing, Scope};
use crate::place::{LogPlace, Start};
use crate::span::text;

/// What a configuration promises, for each kind of effect, and within which bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Guarantee {
    /// Effects that are written in the transaction.
    pub effects_in_postgres: String,
    /// Effects that are not written in the transaction.
    pub effects_outside: String,
    /// Which records are the same event.
    pub identity: String,
    /// For how long.
    pub window: String,
    /// What Redis adds.
    pub redis: String,
    /// Where reading begins.
    pub start: String,
    /// What may not be what was meant.
    pub warnings: Vec<String>,
    /// What this version does not run yet.
    pub unsupported: Vec<String>,
}

impl Guarantee {
    /// Derives the promise from a valid configuration.
    pub fn of(config: &Config) -> Self {
        Self {
            effects_in_postgres: in_postgres(config),
            effects_outside: outside(config).into(),
            identity: identity(config),
            window: window(config),
            redis: redis(config),
            start: start(config),
            warnings: warnings(config),
            unsupported: config.unsupported(),
        }
    }
}

fn in_postgres(config: &Config) -> String {
    if config.dedup.mode == DedupMode::Observe {
        return "once for each record; an event that was published twice takes effect twice and is \
                counted, since dedup.mode is observe"
            .into();
    }
    let promise = match config.identity.from {
        IdSource::Position => {
            "exactly once for each record: position, ledger and effects commit in one transaction. \
             An event that was published twice is two records, and takes effect twice"
        }
        _ => {
            "exactly once: position, ledger and effects commit in one transaction, so an event that \
             is read or published again changes nothing"
        }
    };
    match (config.dedup.mark, &config.redis) {
        (Mark::Before, Some(_)) => {
            format!("{promise}. Two copies in flight at the same time do the work once")
        }
        _ => promise.into(),
    }
}

fn outside(config: &Config) -> &'static str {
    match (config.handler.kind, config.dedup.mark) {
        (HandlerKind::Webhook, Mark::After) => {
            "at least once: a call is recorded after it succeeded, so a crash between the two repeats \
             it, with the same Idempotency-Key"
        }
        (HandlerKind::Webhook, Mark::Before) => {
            "at most once: an attempt is recorded in Postgres before the call. One that has no result \
             is in doubt: a dead letter with that reason, never called again by itself"
        }
        _ => "not covered: what a handler does elsewhere is repeated when its transaction is",
    }
}

fn identity(config: &Config) -> String {
    let identity = config.identity();
    let same = match &identity.from {
        IdSource::Header(name) => format!("records with the same header `{name}` are one event"),
        IdSource::Key => "records with the same Kafka key are one event".into(),
        IdSource::Json(pointer) => {
            format!("records with the same value at {pointer} of the JSON payload are one event")
        }
        IdSource::CloudEvents => "CloudEvents with the same source and id are one event".into(),
        IdSource::Position => "every record is an event of its own".into(),
        IdSource::Payload => "records with the same payload are one event".into(),
    };
    let scope = match (config.kafka.has_several_topics(), identity.scope) {
        (true, Scope::Pipeline) => ", on whichever topic they come",
        (_, Scope::Topic) => ", each topic by itself",
        (false, Scope::Pipeline) => "",
    };
    let missing = match identity.on_missing {
        OnMissing::DeadLetter => "one without an id is a dead letter",
        OnMissing::Position => "one without an id is known by its place in the log",
        OnMissing::Skip => "one without an id is passed over and counted",
    };
    format!("{same}{scope}; {missing}")
}

fn window(config: &Config) -> String {
    format!(
        "an id is remembered for at least {} of the pipeline's own time since it was applied, which \
         stands still while records wait to be read{}. The same record read again is recognised for \
         ever, by its position",
        text(config.dedup.retention),
        match config.dedup.max_bytes {
            0 => String::new(),
            bytes => format!(
                ", but for less where the ledger grows beyond {}",
                bytesize::ByteSize(bytes as u64)
            ),
        }
    )
}

fn redis(config: &Config) -> String {
    let Some(redis) = &config.redis else {
        return "none: Postgres recognises every duplicate by itself".into();
    };
    let marks = match redis.layout {
        Layout::Keys => "a key for each id".into(),
        Layout::Buckets => format!(
            "ids in hashes by time, some for up to {}",
            text(redis.mark_life_max())
        ),
    };
    let claims = match config.dedup.mark {
        Mark::After => "",
        Mark::Before => ", and a claim before the work",
    };
    format!(
        "spares Postgres the duplicates of the last {} ({marks}{claims}); if it is slower than {}, \
         gone or wiped, Postgres decides, and no effect is lost or repeated",
        text(redis.ttl),
        text(redis.timeout)
    )
}

fn start(config: &Config) -> String {
    let place = match config.kafka.start {
        Start::Committed => format!(
            "at the offsets that group `{}` committed in Kafka; where there is none, it stops",
            config.group()
        ),
        Start::Place(LogPlace::Earliest) => "at the oldest record of the log".into(),
        Start::Place(LogPlace::Latest) => "behind the newest record of the log".into(),
        Start::Place(LogPlace::Offset(offset)) => format!("at offset {offset} of each partition"),
        Start::Place(LogPlace::Time(time)) => format!("at the first record since {time}"),
        Start::Place(LogPlace::Ago(ago)) => {
            format!("at the first record of the last {}", text(ago))
        }
    };
    format!(
        "a topic that the pipeline does not know yet begins {place}; after that the position in Postgres counts"
    )
}

fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |applies: bool, sentence: &str| {
        if applies {
            warnings.push(sentence.to_owned());
        }
    };
    let identity = config.identity();
    warn(
        identity.from == IdSource::Key,
        "identity.from = \"key\": a Kafka key mostly names an entity, such as a customer, and not an \
         event; if so, only the first event of each entity takes effect within the retention",
    );
    warn(
        identity.from == IdSource::Payload,
        "identity.from = \"payload\": two events that happen to be equal, such as two withdrawals of \
         the same sum, are one, and the second has no effect",
    );
    warn(
        identity.from == IdSource::Position,
        "identity.from = \"position\": what a producer sends again is not recognised",
    );
    warn(
        identity.on_missing == OnMissing::Skip,
        "identity.on_missing = \"skip\": records without an id have no effect, and leave only a count",
    );
    warn(
        config.redis.is_none(),
        "no [redis]: every duplicate costs a trip to Postgres",
    );
    warn(
        config.redis.is_none() && config.dedup.mark == Mark::Before,
        "dedup.mark = \"before\" without [redis]: there are no claims, so two copies in flight at the \
         same time may both begin; Postgres still lets only one commit",
    );
    warn(
        config.kafka.start == Start::Place(LogPlace::Latest),
        "kafka.start = \"latest\": what was produced before the first start is never read",
    );
    warn(
        config.kafka.properties.get("isolation.level") == Some("read_uncommitted"),
        "isolation.level = \"read_uncommitted\": records of aborted transactions take effect",
    );
    warn(
        config.dedup.mode == DedupMode::Observe,
        "dedup.mode = \"observe\": duplicates take effect",
    );
    warnings
}
