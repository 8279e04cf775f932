//! `[postgres]` and `[redis]`.

use std::str::FromStr as _;
use std::time::Duration;

use redis::IntoConnectionInfo as _;
use sqlx::postgres::PgConnectOptions;

use super::{DAY, Problems, refuse, text, within};
use crate::config::{Config, Layout, Mark, Redis, Secret};

pub(super) fn check_postgres(config: &Config, problems: &mut Problems) {
    let url = config.postgres.url.expose();
    let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
    if !is_postgres {
        refuse(problems, "postgres.url", "must begin with `postgres://`");
    } else if let Err(error) = PgConnectOptions::from_str(url) {
        refuse(
            problems,
            "postgres.url",
            format!("is no URL of a database: {error}"),
        );
    }
    let schema = &config.postgres.schema;
    let begins = schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    let consists = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    // Room is left for the names of what is derived from it.
    if !begins || !schema.chars().all(consists) || schema.len() > 40 || schema.starts_with("pg_") {
        refuse(
            problems,
            "postgres.schema",
            format!(
                "is `{schema}`; it has 1 to 40 small letters, digits and `_`, does not begin with a \
                 digit, and not with `pg_`"
            ),
        );
    }
}

pub(super) fn check_redis_url(key: &'static str, url: &Secret, problems: &mut Problems) {
    if let Err(error) = url.expose().into_connection_info() {
        refuse(
            problems,
            key,
            format!("is no URL of a Redis, such as redis://localhost:6379: {error}"),
        );
    }
}

pub(super) fn check_redis(config: &Config, redis: &Redis, problems: &mut Problems) {
    check_redis_url("redis.url", &redis.url, problems);
    let (least, most) = (Duration::from_millis(1), Duration::from_secs(10));
    within("redis.timeout", redis.timeout, least, most, problems);
    within(
        "redis.ttl",
        redis.ttl,
        Duration::from_secs(1),
        3_650 * DAY,
        problems,
    );
    if redis.mark_life_max() > config.dedup.retention {
        let (ttl, retention) = (text(redis.ttl), text(config.dedup.retention));
        let life = match redis.layout {
            Layout::Keys => "longer than",
            Layout::Buckets => "and a mark in buckets lives for up to twice that, longer than",
        };
        refuse(
            problems,
            "redis.ttl",
            format!(
                "is {ttl}, {life} `dedup.retention`, which is {retention}: a mark must not outlive \
                 what it stands for; lower the one or raise the other"
            ),
        );
    }
    if redis.layout == Layout::Buckets && config.dedup.mark == Mark::Before {
        refuse(
            problems,
            "redis.layout",
            "is \"buckets\", which has no claims, and `dedup.mark = \"before\"` claims every id: a key \
             for each is what buckets save; use \"keys\", or mark \"after\""
                .to_owned(),
        );
    }
}
