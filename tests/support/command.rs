//! The program as people run it: processes with an end, and what they said.

use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};

use super::{PATIENCE, service};

/// The program with arguments, its output to be read.
pub fn onceonly(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onceonly"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Waits for the end of a process, and kills one that does not come to it in time.
pub fn finish(mut child: Child, limit: Duration) -> Output {
    let deadline = Instant::now() + limit;
    let mut out = child.stdout.take().expect("its output");
    let mut err = child.stderr.take().expect("its errors");
    let read_all = |from: &mut dyn std::io::Read| {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("its output");
        bytes
    };
    thread::scope(|scope| {
        let stdout = scope.spawn(move || read_all(&mut out));
        let stderr = scope.spawn(move || read_all(&mut err));
        let status = loop {
            if let Some(status) = child.try_wait().expect("its status") {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().expect("it was alive");
            }
            thread::sleep(Duration::from_millis(20));
        };
        let (stdout, stderr) = (
            stdout.join().expect("output"),
            stderr.join().expect("errors"),
        );
        Output {
            status,
            stdout,
            stderr,
        }
    })
}

/// What was said.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until a condition holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal such as `INT`; the standard library can only kill.
pub fn send_signal(signal: &str, process: u32) {
    let kill = format!("kill -{signal} {process}");
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.expect("a shell").success());
}

/// Whether the shared database has a schema.
pub async fn has_schema(name: &str) -> bool {
    let mut postgres = postgres().await;
    let exists = "select exists (select from pg_namespace where nspname = $1)";
    sqlx::query_scalar(exists)
        .bind(name)
        .fetch_one(&mut postgres)
        .await
        .expect("an answer")
}

/// A connection to the shared database.
pub async fn postgres() -> PgConnection {
    PgConnection::connect(&service("DATABASE_URL"))
        .await
        .expect("a connection")
}
