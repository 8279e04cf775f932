//! The same ids read and set in Redis, pipelined in the same batches: `MGET`, then `SET NX EX` for
//! each, from as many connections as the product has workers.
//!
//! Commands are written straight into one buffer, as nothing is cheaper.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use redis::{Connection, ConnectionLike as _, Value};
use tokio_util::sync::CancellationToken;

use super::Work;
use crate::cli::bench::events::Event;
use crate::cli::bench::measured::{Clock, Measured};
use crate::cli::bench::stage::Stage;

/// As long as the product's marks live by default.
const TTL_S: &str = "86400";

/// As long as a mark's value usually is.
const VALUE: &str = "d/AAAAAAAA/0/100000";

/// Ids of one `MGET`: Redis serves nobody else meanwhile.
const MGET_IDS: usize = 1_000;

/// How long Redis may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn measure(stage: &Stage, work: &Work) -> anyhow::Result<Measured> {
    let prefix = stage.key_prefix("marks");
    let client = redis::Client::open(stage.redis_url.as_str()).context("cannot use REDIS_URL")?;
    let mut connections = Vec::new();
    for _ in 0..work.workers {
        let client = client.clone();
        let connecting = stage.spawn_blocking(move || connect(&client));
        connections.push(connecting.await.context("cannot connect to Redis")??);
    }
    let clock = Clock::start(stage.servers, std::process::id());
    let mut tasks = Vec::new();
    for (worker, mut connection) in connections.into_iter().enumerate() {
        let (work, prefix, end) = (work.clone(), prefix.clone(), stage.end.clone());
        tasks.push(stage.spawn_blocking(move || {
            let events: Vec<&Event> = work.of_worker(worker).collect();
            let batches = events.chunks(work.batch);
            batches
                .map(|batch| mark(&mut connection, &prefix, batch, &end))
                .sum::<anyhow::Result<u64>>()
        }));
    }
    let mut marked = 0;
    for task in tasks {
        marked += task.await.context("a connection ended without a word")??;
    }
    let measured = clock.stop(marked);
    stage.delete_keys(&prefix).await?;
    Ok(measured)
}

fn connect(client: &redis::Client) -> anyhow::Result<Connection> {
    let connection = client.get_connection().context("cannot connect to Redis")?;
    connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(connection)
}

fn mark(
    connection: &mut Connection,
    prefix: &str,
    batch: &[&Event],
    end: &CancellationToken,
) -> anyhow::Result<u64> {
    if end.is_cancelled() {
        bail!("given up");
    }
    let keys: Vec<String> = batch
        .iter()
        .map(|event| format!("{prefix}{}", event.id))
        .collect();
    let failed = "Redis does not answer";
    let mut commands = Vec::with_capacity(128 * keys.len());
    let chunks = keys.chunks(MGET_IDS);
    let count = chunks.len();
    for chunk in chunks {
        push_mget(&mut commands, chunk);
    }
    let known = connection
        .req_packed_commands(&commands, 0, count)
        .context(failed)?;
    ensure!(
        known.iter().all(are_unknown),
        "Redis knows ids that were never marked"
    );
    commands.clear();
    for key in &keys {
        push_set(&mut commands, key);
    }
    let set = connection
        .req_packed_commands(&commands, 0, keys.len())
        .context(failed)?;
    ensure!(
        set.iter().all(|answer| *answer == Value::Okay),
        "Redis did not set a mark"
    );
    Ok(set.len() as u64)
}

fn are_unknown(answer: &Value) -> bool {
    matches!(answer, Value::Array(values) if values.iter().all(|value| *value == Value::Nil))
}

fn push_mget(out: &mut Vec<u8>, keys: &[String]) {
    push_count(out, b'*', keys.len() + 1);
    push(out, "MGET");
    for key in keys {
        push(out, key);
    }
}

fn push_set(out: &mut Vec<u8>, key: &str) {
    push_count(out, b'*', 6);
    for part in ["SET", key, VALUE, "NX", "EX", TTL_S] {
        push(out, part);
    }
}

fn push(out: &mut Vec<u8>, part: &str) {
    push_count(out, b'$', part.len());
    out.extend_from_slice(part.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn push_count(out: &mut Vec<u8>, kind: u8, count: usize) {
    out.push(kind);
    // Writing to a vector cannot fail.
    _ = write!(out, "{count}\r\n");
}
