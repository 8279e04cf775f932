//! Real signals to a real process: this binary, started again as the process under test.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use onceonly::shutdown::Shutdown;

/// Set for the process under test: `shutdown.timeout` in milliseconds.
const TIMEOUT_MS: &str = "SHUTDOWN_TEST_TIMEOUT_MS";

/// Set for the process under test: what it does once it is told to end.
const ENDING: &str = "SHUTDOWN_TEST_ENDING";

/// The process under test, for which the tests below start this binary. Its main thread is busy
/// without end, as a stuck runtime is, unless it is to drain.
#[test]
fn process_under_test() {
    let Ok(timeout_ms) = std::env::var(TIMEOUT_MS) else {
        return;
    };
    let timeout = Duration::from_millis(timeout_ms.parse().unwrap());
    let shutdown = Shutdown::watch(timeout).unwrap();
    let worker = shutdown.unfinished("worker 0");
    println!("started");
    let end = shutdown.token();
    while !end.is_cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("told");
    if std::env::var(ENDING).unwrap() == "drain" {
        drop(worker);
        shutdown.finish();
        println!("drained");
        return;
    }
    loop {
        std::thread::park();
    }
}

struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
    err: ChildStderr,
}

/// Starts the process under test and waits until it takes signals.
fn start(timeout: Duration, ending: &str) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_under_test", "--nocapture"])
        .env(TIMEOUT_MS, timeout.as_millis().to_string())
        .env(ENDING, ending)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let err = child.stderr.take().unwrap();
    let mut process = Process { child, out, err };
    process.wait_for("started");
    process
}

impl Process {
    fn wait_for(&mut self, said: &str) {
        let mut line = String::new();
        while !line.contains(said) {
            line.clear();
            let bytes = self.out.read_line(&mut line).unwrap();
            assert_ne!(bytes, 0, "the process ended without saying `{said}`");
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }

    /// The exit code, and what was said on standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.err.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_process_that_drains_after_a_signal_ends_well() {
    for name in ["TERM", "INT"] {
        let mut process = start(LONG, "drain");
        process.signal(name);
        process.wait_for("drained");
        let (code, said) = process.end();
        assert_eq!(code, Some(0), "{name}: {said}");
        assert!(!said.contains("unfinished"), "{name}: {said}");
    }
}

#[test]
fn a_second_signal_ends_a_stuck_process_at_once_and_says_what_did_not_finish() {
    let mut process = start(LONG, "hang");
    process.signal("TERM");
    process.wait_for("told");
    process.signal("INT");
    let (code, said) = process.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("a second signal (SIGINT) ends the process at once; unfinished: worker 0"),
        "{said}"
    );
}

#[test]
fn a_stuck_process_ends_after_the_timeout_and_says_what_did_not_finish() {
    let timeout = Duration::from_millis(300);
    let mut process = start(timeout, "hang");
    let begin = Instant::now();
    process.signal("TERM");
    process.wait_for("told");
    let (code, said) = process.end();
    assert!(begin.elapsed() >= timeout, "{:?}", begin.elapsed());
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("not finished within shutdown.timeout = 300ms; unfinished: worker 0"),
        "{said}"
    );
}
