//! The rows of the effects, with their key, into one table by binary `COPY`.
//!
//! As many connections as the product has, batches of its size, a transaction for each batch. Keys
//! are sorted within a batch, which the index likes, and rows are encoded while the clock runs.

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use sqlx::PgConnection;

use super::Work;
use crate::cli::bench::database::Database;
use crate::cli::bench::events::Event;
use crate::cli::bench::measured::{Clock, Measured};
use crate::cli::bench::stage::Stage;
use crate::cli::produce::ID_HEADER;

const COPY_ROWS: &str = include_str!("../../../../sql/bench/copy_rows.sql");

/// The signature, no flags, no extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const TRAILER: [u8; 2] = (-1_i16).to_be_bytes();
const COLUMNS: i16 = 9;
const JSONB_VERSION: u8 = 1;
const OID_TEXT: u32 = 25;
const OID_BYTEA: u32 = 17;
const CHUNK_BYTES: usize = 128 * 1024;
/// From 1970 to 2000, where Postgres begins to count.
const EPOCH_US: i64 = 946_684_800_000_000;

pub(super) async fn measure(
    stage: &Stage,
    database: &mut Database,
    work: &Work,
) -> anyhow::Result<Measured> {
    database.create_rows().await?;
    let encoder = Encoder {
        topic: work.topic.clone(),
        timestamp_us: Timestamp::now().as_microsecond() - EPOCH_US,
        header_type: database.header_type().await?,
    };
    let statement = database.render(COPY_ROWS);
    let mut connections = Vec::new();
    for _ in 0..work.workers {
        connections.push(database.another().await?.connection);
    }
    database.checkpoint().await;
    let clock = Clock::start(stage.servers, std::process::id());
    let mut tasks = Vec::new();
    for (worker, mut connection) in connections.into_iter().enumerate() {
        let (work, encoder, statement) = (work.clone(), encoder.clone(), statement.clone());
        tasks.push(stage.spawn(async move {
            copy_all(&mut connection, &statement, &encoder, &work, worker).await
        }));
    }
    let mut rows = 0;
    for task in tasks {
        rows += task.await.context("a copy ended without a word")??;
    }
    let measured = clock.stop(rows);
    ensure!(
        rows == work.events.len() as u64,
        "{rows} rows were copied, not {}",
        work.events.len()
    );
    database.drop_rows().await?;
    Ok(measured)
}

async fn copy_all(
    connection: &mut PgConnection,
    statement: &str,
    encoder: &Encoder,
    work: &Work,
    worker: usize,
) -> anyhow::Result<u64> {
    let events: Vec<&Event> = work.of_worker(worker).collect();
    let mut rows = 0;
    for batch in events.chunks(work.batch) {
        let mut batch = batch.to_vec();
        batch.sort_unstable_by_key(|event| event.id);
        let copied = copy_batch(connection, statement, encoder, &batch).await;
        rows += copied.context("cannot copy rows")?;
    }
    Ok(rows)
}

async fn copy_batch(
    connection: &mut PgConnection,
    statement: &str,
    encoder: &Encoder,
    batch: &[&Event],
) -> Result<u64, sqlx::Error> {
    let mut copy = connection.copy_in_raw(statement).await?;
    let mut chunk = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4);
    chunk.extend_from_slice(HEADER);
    for event in batch {
        encoder.push_row(&mut chunk, event);
        if chunk.len() >= CHUNK_BYTES {
            copy.send(chunk.as_slice()).await?;
            chunk.clear();
        }
    }
    chunk.extend_from_slice(&TRAILER);
    copy.send(chunk.as_slice()).await?;
    copy.finish().await
}

#[derive(Clone)]
struct Encoder {
    topic: String,
    timestamp_us: i64,
    header_type: u32,
}

impl Encoder {
    fn push_row(&self, out: &mut Vec<u8>, event: &Event) {
        let id = event.id.to_string();
        out.extend_from_slice(&COLUMNS.to_be_bytes());
        push(out, event.id.as_bytes());
        push(out, id.as_bytes());
        push(out, self.topic.as_bytes());
        push(out, &i32::from(event.partition).to_be_bytes());
        push(out, &event.offset.to_be_bytes());
        push(out, &self.timestamp_us.to_be_bytes());
        push(out, event.key.as_bytes());
        self.push_headers(out, &id);
        push_len(out, event.value.len() + 1);
        out.push(JSONB_VERSION);
        out.extend_from_slice(event.value.as_bytes());
    }

    /// An array of one header: dimensions, nulls, element type, size, lower bound, the element.
    fn push_headers(&self, out: &mut Vec<u8>, id: &str) {
        let element_bytes = 4 + 8 + ID_HEADER.len() + 8 + id.len();
        push_len(out, 5 * 4 + 4 + element_bytes);
        for number in [1, 0, self.header_type, 1, 1] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        push_len(out, element_bytes);
        push_len(out, 2);
        out.extend_from_slice(&OID_TEXT.to_be_bytes());
        push(out, ID_HEADER.as_bytes());
        out.extend_from_slice(&OID_BYTEA.to_be_bytes());
        push(out, id.as_bytes());
    }
}

/// A value behind its length.
fn push(out: &mut Vec<u8>, value: &[u8]) {
    push_len(out, value.len());
    out.extend_from_slice(value);
}

fn push_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&(len as i32).to_be_bytes());
}
