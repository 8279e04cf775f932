//! Effects exactly once from an event stream.

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
pub mod retry;
pub mod shutdown;
pub mod source;
pub mod span;
pub mod telemetry;
