//! Effects exactly once from an event stream: a Kafka consumer that gives every event exactly one
//! effect in Postgres, however often producers, brokers, deploys and crashes repeat it.
//!
//! **Redis makes the fast path cheap, Postgres makes it correct.** Nothing that Redis says, forgets
//! or loses can lose or repeat an effect; it can only cost a trip to Postgres.
//!
//! # The path of one event
//!
//! 1. A [`source`] reads records of the partitions that a worker was given, and copies them once,
//!    into a [`Batch`](event::Batch).
//! 2. [`identity`] finds what makes two records the same event, and makes it a 16-byte key.
//! 3. The [`filter`] drops what this worker applied lately, and what a mark in Redis proves to be
//!    applied.
//! 4. The [`ledger`] opens one transaction in Postgres. It moves the partitions' positions first,
//!    fenced by the epoch of the claim: that settles the redelivery of a record.
//! 5. It claims the ids, sorted: that settles an event that was published twice.
//! 6. The [`handler`] gets the events that are new, and writes their effects with the same
//!    transaction.
//! 7. Events that failed are parked in it too: they wait for another attempt or are dead letters,
//!    as the [`retry`] policy says.
//! 8. It commits positions, ids, effects, failures and counts, all or none.
//! 9. Only then are the new ids marked in Redis, and the offsets acknowledged to Kafka.
//!
//! [`pipeline::Worker`] feeds this line, a [`Member`](member::Member) puts its parts together over
//! Kafka, Redis and Postgres, and [`outcome`] names what can become of a record.
//!
//! # What is guaranteed, and to whom
//!
//! Effects written through the handler's connection happen exactly once per id for as long as the
//! ledger remembers the id (`dedup.retention`). What a handler does elsewhere is not covered: it
//! makes no network calls. See [`handler::Handler`].

#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod backoff;
pub mod config;
pub mod error;
pub mod event;
pub mod filter;
pub mod handler;
#[cfg(feature = "http")]
pub mod http;
pub mod identity;
pub mod ledger;
#[cfg(feature = "kafka")]
pub mod member;
pub mod outcome;
pub mod pipeline;
pub mod place;
pub mod retention;
pub mod retry;
pub mod shutdown;
pub mod source;
pub mod span;
pub mod telemetry;
#[cfg(feature = "kafka")]
pub mod verify;
