//! Fills the relation `batch` by binary `COPY` (Postgres documentation, "COPY", binary format).

use sqlx::PgConnection;
use sqlx::postgres::PgDatabaseError;

use super::PayloadKind;
use crate::error::Error;
use crate::handler::{NewEvent, NewEvents};
use crate::ledger::postgres::timestamp;

const COPY_BATCH: &str = include_str!("../../../sql/handler/copy_batch.sql");

/// The signature, no flags, no extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const TRAILER: [u8; 2] = (-1_i16).to_be_bytes();
const COLUMNS: i16 = 8;
const NULL: i32 = -1;
/// The first byte of a `jsonb`.
const JSONB_VERSION: u8 = 1;
const OID_TEXT: u32 = 25;
const OID_BYTEA: u32 = 17;
/// Large enough that a message costs little, small enough to stay in the processor's cache.
const CHUNK_BYTES: usize = 128 * 1024;

/// Copies events into `batch`, in their order.
pub(super) async fn fill_batch(
    connection: &mut PgConnection,
    events: &NewEvents<'_>,
    payload: PayloadKind,
    header_type: u32,
) -> Result<(), Error> {
    let lost = |error| Error::postgres("fill the relation batch", error);
    let mut copy = connection.copy_in_raw(COPY_BATCH).await.map_err(lost)?;
    let mut chunk = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4);
    chunk.extend_from_slice(HEADER);
    for event in events.iter() {
        push_row(&mut chunk, &event, payload, header_type);
        if chunk.len() >= CHUNK_BYTES {
            copy.send(chunk.as_slice()).await.map_err(lost)?;
            chunk.clear();
        }
    }
    chunk.extend_from_slice(&TRAILER);
    // A connection that cannot send is lost, and with it the copy: there is nobody to abort it to.
    copy.send(chunk.as_slice()).await.map_err(lost)?;
    copy.finish().await.map_err(|error| {
        let place = place(&error, events).unwrap_or_default();
        Error::postgres(format!("fill the relation batch{place}"), error)
    })?;
    Ok(())
}

/// Which event a failed copy stumbled over: the server names line and column.
fn place(error: &sqlx::Error, events: &NewEvents<'_>) -> Option<String> {
    let sqlx::Error::Database(answer) = error else {
        return None;
    };
    let context = answer.try_downcast_ref::<PgDatabaseError>()?.r#where()?;
    let (_, line) = context.rsplit_once("COPY batch, line ")?;
    let digits = line.split(|c: char| !c.is_ascii_digit()).next()?;
    let index = digits.parse::<usize>().ok()?.checked_sub(1)?;
    let event = events.iter().nth(index)?;
    Some(format!(
        " with event {:?} at {}, offset {}",
        event.id,
        event.event.at(),
        event.event.offset()
    ))
}

fn push_row(out: &mut Vec<u8>, new: &NewEvent<'_>, payload: PayloadKind, header_type: u32) {
    let event = new.event;
    out.extend_from_slice(&COLUMNS.to_be_bytes());
    push(out, Some(new.id.as_bytes()));
    push(out, Some(event.topic().as_bytes()));
    push(out, Some(&event.partition().to_be_bytes()));
    push(out, Some(&event.offset().to_be_bytes()));
    let timestamp = event.timestamp_ms().and_then(timestamp::wire_us);
    push(
        out,
        timestamp
            .map(i64::to_be_bytes)
            .as_ref()
            .map(<[u8; 8]>::as_slice),
    );
    push(out, event.key());
    sized(out, |out| push_headers(out, new, header_type));
    match (payload, event.payload()) {
        (PayloadKind::Json, Some([]) | None) => push(out, None),
        (PayloadKind::Json, Some(json)) => sized(out, |out| {
            out.push(JSONB_VERSION);
            out.extend_from_slice(json);
        }),
        (_, payload) => push(out, payload),
    }
}

fn push_i32(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// A value behind its length, or null. A batch's arena bounds lengths far below 2 GiB.
fn push(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => push_i32(out, NULL),
        Some(value) => {
            push_i32(out, value.len() as i32);
            out.extend_from_slice(value);
        }
    }
}

/// A value behind its length, where the length is known afterwards.
fn sized(out: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    push_i32(out, 0);
    value(out);
    let len = (out.len() - start - 4) as i32;
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}

/// An array of `onceonly.header`: dimensions, nulls, element type, then the elements.
fn push_headers(out: &mut Vec<u8>, new: &NewEvent<'_>, header_type: u32) {
    let headers = new.event.headers();
    let count = headers.clone().count() as i32;
    push_i32(out, i32::from(count > 0));
    push_i32(out, 0);
    out.extend_from_slice(&header_type.to_be_bytes());
    if count == 0 {
        return;
    }
    push_i32(out, count);
    push_i32(out, 1);
    for (name, value) in headers {
        sized(out, |out| {
            push_i32(out, 2);
            out.extend_from_slice(&OID_TEXT.to_be_bytes());
            push(out, Some(name.as_bytes()));
            out.extend_from_slice(&OID_BYTEA.to_be_bytes());
            push(out, value);
        });
    }
}
