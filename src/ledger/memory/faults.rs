//! Faults that strike a ledger in memory.

/// A step of a ledger at which a fault may strike, before it does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// [`Ledger::connect`].
    Connect,
    /// [`Ledger::begin`].
    Begin,
    /// [`Ledger::advance`].
    Advance,
    /// [`Ledger::claim`].
    Claim,
    /// [`Ledger::park`].
    Park,
    /// [`Ledger::count`].
    Count,
    /// [`Ledger::commit`].
    Commit,
    /// After the commit, before its answer.
    Answer,
    /// [`Ledger::settle`].
    Settle,
    /// A statement outside the line.
    Read,
}

/// What strikes at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The server answers with a transient error.
    Transient,
    /// The connection breaks.
    Disconnect,
}

/// Decides what strikes. It may also wait: a worker that is stopped for a while, or for ever.
pub trait Faults: Send + Sync {
    /// Called before each step.
    fn strike(&self, step: Step) -> impl Future<Output = Fault> + Send;
}

/// Nothing ever strikes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl Faults for NoFaults {
    async fn strike(&self, _: Step) -> Fault {
        Fault::None
    }
}
