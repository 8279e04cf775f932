//! The machine and the servers, as far as they decide what is measured.

use std::fs;

use indicatif::HumanBytes;
use onceonly::config::{Batch, Limits};
use serde::Serialize;

use super::database::Server;
use super::stage::Stage;
use super::usage::{self, Servers};
use crate::cli::{output, stack};

/// Where something was measured. What cannot be learnt is left out.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    /// The processor's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) processor: Option<String>,
    /// How many threads it runs at once.
    pub(super) cores: usize,
    /// All there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_bytes: Option<u64>,
    /// The kernel's release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kernel: Option<String>,
    /// Of this program, the servers and the Kafka client.
    pub(super) versions: Versions,
    /// Of Postgres, and the product's defaults.
    pub(super) settings: Settings,
}

/// Versions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Versions {
    onceonly: &'static str,
    /// A debug build measures nothing of worth.
    build: &'static str,
    librdkafka: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    kafka: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redis: Option<String>,
    postgres: String,
}

/// Settings.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Settings {
    postgres: serde_json::Map<String, serde_json::Value>,
    #[serde(rename = "limits.workers")]
    workers: usize,
    #[serde(rename = "batch.max_events")]
    max_events: usize,
    #[serde(rename = "batch.max_bytes")]
    max_bytes: usize,
    #[serde(rename = "batch.max_wait_ms")]
    max_wait_ms: u128,
}

/// Looks around, and finds the servers' processes.
pub(super) async fn look(stage: &Stage, server: &Server) -> anyhow::Result<(Machine, Servers)> {
    let (redis_version, redis_process) = redis(stage).await?;
    let servers = Servers {
        kafka: usage::listener(stage.brokers.split(',').next().unwrap_or_default()),
        redis: redis_process.and_then(usage::redis_server),
        postgres: usage::postmaster(server.backend),
    };
    let (batch, limits) = (Batch::default(), Limits::default());
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    let settings = server.settings.iter();
    let machine = Machine {
        processor: field("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: memory_bytes(),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .ok()
            .map(|release| release.trim().to_owned()),
        versions: Versions {
            onceonly: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
            librdkafka,
            kafka: servers.kafka.and_then(kafka_version),
            redis: redis_version,
            postgres: server.version.clone(),
        },
        settings: Settings {
            postgres: settings
                .map(|(name, value)| ((*name).to_owned(), value.clone().into()))
                .collect(),
            workers: limits.workers,
            max_events: batch.max_events,
            max_bytes: batch.max_bytes,
            max_wait_ms: batch.max_wait.as_millis(),
        },
    };
    Ok((machine, servers))
}

/// Redis's version and process.
async fn redis(stage: &Stage) -> anyhow::Result<(Option<String>, Option<u32>)> {
    let mut connection = stack::connect_redis(&stage.redis_url).await?;
    let info: redis::InfoDict = redis::cmd("INFO")
        .arg("server")
        .query_async(&mut connection)
        .await?;
    Ok((info.get("redis_version"), info.get("process_id")))
}

/// From the name of a library that it has open: Kafka's protocol does not tell its version.
fn kafka_version(process: u32) -> Option<String> {
    let files = usage::open_files(process);
    let mut versions = files.iter().filter_map(|file| {
        let (_, after) = file.split_once("kafka-clients-")?;
        after.strip_suffix(".jar")
    });
    versions.next().map(str::to_owned)
}

fn memory_bytes() -> Option<u64> {
    let total = field("/proc/meminfo", "MemTotal")?;
    let kib: u64 = total.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The first value under a name, in a file with a colon between.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(known, _)| known.trim() == name)?;
    Some(value.trim().to_owned())
}

impl Machine {
    /// For people: a few lines.
    pub(super) fn text(&self) -> String {
        let unknown = || "unknown".to_owned();
        let Versions {
            onceonly,
            build,
            librdkafka,
            kafka,
            redis,
            postgres,
        } = &self.versions;
        let Settings {
            postgres: server,
            workers,
            max_events,
            max_bytes,
            max_wait_ms,
        } = &self.settings;
        let server: Vec<String> = server
            .iter()
            .map(|(name, value)| format!("{name} {}", value.as_str().unwrap_or_default()))
            .collect();
        let lines = [
            (
                "machine",
                format!(
                    "{} cores, {}, {} memory, Linux {}",
                    self.cores,
                    self.processor.clone().unwrap_or_else(unknown),
                    self.memory_bytes
                        .map_or_else(unknown, |bytes| HumanBytes(bytes).to_string()),
                    self.kernel.clone().unwrap_or_else(unknown),
                ),
            ),
            (
                "versions",
                format!(
                    "onceonly {onceonly} ({build}), librdkafka {librdkafka}, Kafka {}, Redis {}, \
                     Postgres {postgres}",
                    kafka.clone().unwrap_or_else(unknown),
                    redis.clone().unwrap_or_else(unknown),
                ),
            ),
            ("postgres", server.join(", ")),
            (
                "onceonly",
                format!(
                    "workers {workers}, batches of {max_events} events or {}, wait {max_wait_ms} ms",
                    HumanBytes(*max_bytes as u64)
                ),
            ),
        ];
        let mut table = output::table();
        for (name, line) in lines {
            table.add_row([name.to_owned(), line]);
        }
        output::keep_first_column(&mut table);
        format!("{}\n", table.trim_fmt())
    }
}
