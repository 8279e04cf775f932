//! Rows by binary `COPY` (Postgres documentation, "COPY", binary format).

use sqlx::PgConnection;
use sqlx::postgres::{PgCopyIn, PgDatabaseError};

/// The signature, no flags, no extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const TRAILER: [u8; 2] = (-1_i16).to_be_bytes();
const NULL: i32 = -1;
/// Large enough that a message costs little, small enough to stay in the processor's cache.
const CHUNK_BYTES: usize = 128 * 1024;

/// A `COPY … from stdin (format binary)` that is under way.
///
/// One that is dropped before [`BinaryCopy::finish`] fails on the server.
pub(crate) struct BinaryCopy<'c> {
    copy: PgCopyIn<&'c mut PgConnection>,
    chunk: Vec<u8>,
}

impl<'c> BinaryCopy<'c> {
    /// Sends the statement.
    pub(crate) async fn begin(
        connection: &'c mut PgConnection,
        statement: &str,
    ) -> sqlx::Result<Self> {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4);
        chunk.extend_from_slice(HEADER);
        Ok(Self {
            copy: connection.copy_in_raw(statement).await?,
            chunk,
        })
    }

    /// Adds a row of so many columns, which `write` pushes.
    pub(crate) async fn row(
        &mut self,
        columns: i16,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> sqlx::Result<()> {
        self.chunk.extend_from_slice(&columns.to_be_bytes());
        write(&mut self.chunk);
        if self.chunk.len() >= CHUNK_BYTES {
            self.copy.send(self.chunk.as_slice()).await?;
            self.chunk.clear();
        }
        Ok(())
    }

    /// Waits until the server has taken every row. An error leaves the connection usable if the
    /// server answered.
    pub(crate) async fn finish(mut self) -> sqlx::Result<()> {
        self.chunk.extend_from_slice(&TRAILER);
        self.copy.send(self.chunk.as_slice()).await?;
        self.copy.finish().await.map(drop)
    }
}

/// The row, counted from one, at which a failed copy stumbled: the server names the line.
pub(crate) fn failed_row(error: &sqlx::Error) -> Option<usize> {
    let answer = error.as_database_error()?;
    let context = answer.try_downcast_ref::<PgDatabaseError>()?.r#where()?;
    let (_, line) = context.rsplit_once(", line ")?;
    line.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

pub(crate) fn push_i32(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// A value behind its length, or null. A batch's arena bounds lengths far below 2 GiB.
pub(crate) fn push(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => push_i32(out, NULL),
        Some(value) => {
            push_i32(out, value.len() as i32);
            out.extend_from_slice(value);
        }
    }
}

/// A value behind its length, where the length is known afterwards.
pub(crate) fn sized(out: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    push_i32(out, 0);
    value(out);
    let len = (out.len() - start - 4) as i32;
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}
