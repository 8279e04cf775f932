//! A member as a process, with its port, its log and its end.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::{PATIENCE, free_port};

/// `onceonly run` with a configuration of its own. It does not outlive the test.
pub struct Process {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Process {
    /// Starts a member; `configuration` is a whole file but for `[http]`.
    pub fn start(configuration: &str) -> Self {
        let folder = TempDir::with_prefix("onceonly-outage-").expect("a folder");
        let port = free_port();
        let file = folder.path().join("onceonly.toml");
        let text = format!("{configuration}\n[http]\nlisten = \"127.0.0.1:{port}\"\n");
        std::fs::write(&file, text).expect("a configuration file");
        let log = File::create(folder.path().join("log")).expect("a file for the log");
        let child = Command::new(env!("CARGO_BIN_EXE_onceonly"))
            .arg("--config")
            .arg(&file)
            .arg("run")
            .env_remove("ONCEONLY_LOG")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("a process");
        Self {
            child,
            port,
            folder,
        }
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// What it said on standard error so far.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_file()).expect("a log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// How many lines of its log hold a text.
    pub fn said(&self, text: &str) -> usize {
        self.log()
            .lines()
            .filter(|line| line.contains(text))
            .count()
    }

    /// How many lines of its log are warnings or errors.
    pub fn warnings(&self) -> usize {
        self.said(" WARN ") + self.said("ERROR ")
    }

    /// Asks its port. `None` while nobody listens.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    /// The status of a path; 0 while nobody listens.
    pub fn status(&self, path: &str) -> u16 {
        self.get(path).map_or(0, |(status, _)| status)
    }

    /// A metric's value, by its name with its labels as `/metrics` writes them.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics")?;
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        text.lines().find_map(value)
    }

    /// Sends a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.is_ok_and(|status| status.success()), "SIG{name}");
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self, limit: Duration) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(begun.elapsed() < limit, "still running:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Tells it to leave, and waits until it has.
    pub async fn leave(mut self) {
        self.signal("TERM");
        let status = self.ended(PATIENCE).await;
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }

    /// A size of its memory in kB, such as `VmHWM`, the most that was ever resident.
    pub fn memory_kb(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.id()));
        let text = text.expect("a running process");
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of member {}:\n{}", self.id(), self.log());
        }
    }
}
