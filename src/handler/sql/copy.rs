//! Copies events into `batch` or into the default sink.

use sqlx::PgConnection;

use super::PayloadKind;
use crate::error::Error;
use crate::handler::{NewEvent, NewEvents};
use crate::ledger::postgres::binary_copy::{BinaryCopy, failed_row, push, push_i32, sized};
use crate::ledger::postgres::timestamp;

const COLUMNS: i16 = 8;
/// The first byte of a `jsonb`.
const JSONB_VERSION: u8 = 1;
const OID_TEXT: u32 = 25;
const OID_BYTEA: u32 = 17;

/// Copies events, in their order, by a statement whose columns are those of `batch`.
pub(super) async fn copy_events(
    connection: &mut PgConnection,
    statement: &str,
    events: &NewEvents<'_>,
    payload: PayloadKind,
    header_type: u32,
) -> Result<(), Error> {
    let copied = async {
        let mut copy = BinaryCopy::begin(connection, statement).await?;
        for event in events.iter() {
            copy.row(COLUMNS, |out| push_row(out, &event, payload, header_type))
                .await?;
        }
        copy.finish().await
    };
    copied.await.map_err(|error| {
        let place = place(&error, events).unwrap_or_default();
        Error::postgres(format!("copy the events{place}"), error)
    })
}

/// What the rows of the events are, without the frame of a copy.
pub(super) fn rows(events: &NewEvents<'_>, payload: PayloadKind, header_type: u32) -> Vec<u8> {
    let mut rows = Vec::new();
    for event in events.iter() {
        push_row(&mut rows, &event, payload, header_type);
    }
    rows
}

/// Which event a failed copy stumbled over.
fn place(error: &sqlx::Error, events: &NewEvents<'_>) -> Option<String> {
    let event = events.iter().nth(failed_row(error)?.checked_sub(1)?)?;
    Some(format!(
        ": event {:?} at {}, offset {}",
        event.id,
        event.event.at(),
        event.event.offset()
    ))
}

fn push_row(out: &mut Vec<u8>, new: &NewEvent<'_>, payload: PayloadKind, header_type: u32) {
    let event = new.event;
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
