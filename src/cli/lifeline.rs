//! Standard input as a lifeline: a pipe whose other end closes however its holder ends.

use std::io::Read as _;
use std::thread;

use anyhow::Context as _;
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;

/// Blocks until standard input ends.
pub(crate) fn await_end() {
    let mut ignored = [0; 64];
    while matches!(std::io::stdin().read(&mut ignored), Ok(1..)) {}
}

/// From now on the end of standard input is a SIGTERM to this process.
pub(crate) fn end_by_signal() -> anyhow::Result<()> {
    let watch = || {
        await_end();
        if raise(SIGTERM).is_err() {
            std::process::exit(1);
        }
    };
    let spawned = thread::Builder::new().name("lifeline".into()).spawn(watch);
    spawned.map(drop).context("cannot watch standard input")
}
