//! Workers: `onceonly run` as processes that end with the command that started them.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Variables of ours that workers and tools see as they are; all others would change what is
/// shown.
const PASSED_ON: [&str; 2] = ["ONCEONLY_LOG", "ONCEONLY_LOG_FORMAT"];

/// How many lines of a log are shown.
const TAIL_LINES: usize = 15;

/// The longest that a worker may take to leave.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of the signal that no process can catch.
const SIGKILL: i32 = 9;

/// This program with a configuration of the command's making.
#[derive(Clone, Debug)]
pub(super) struct Program {
    executable: PathBuf,
    variables: Vec<(OsString, OsString)>,
}

impl Program {
    /// This executable, with these variables over those of the environment.
    pub(super) fn new(variables: Vec<(&'static str, String)>) -> anyhow::Result<Self> {
        let executable = std::env::current_exe().context("cannot find this program's file")?;
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Ok(Self {
            executable,
            variables,
        })
    }

    /// A command of this program. It ends when its standard input does, which is here a pipe that
    /// nobody outlives, and it has a process group of its own: a Ctrl-C is for the command
    /// alone.
    pub(super) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .arg(name)
            .stdin(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        for (name, _) in std::env::vars_os() {
            let is_ours = name
                .to_str()
                .is_some_and(|name| name.starts_with("ONCEONLY_"));
            if is_ours && !PASSED_ON.iter().any(|passed| name == *passed) {
                command.env_remove(name);
            }
        }
        command.envs(self.variables.iter().cloned());
        command
    }

    /// Runs a command of this program to its end; fails with what it said if it does.
    pub(super) async fn complete(&self, name: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let output = self
            .command(name)
            .args(arguments)
            .output()
            .await
            .with_context(|| format!("cannot start `onceonly {name}`"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "`onceonly {name}` failed: {}",
            said.trim()
        );
        Ok(())
    }
}

/// A worker, alive or not.
#[derive(Debug)]
pub(super) struct Worker {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Worker {
    /// Starts a worker whose log goes to a file in `folder`, behind what an earlier one of the name
    /// left there.
    pub(super) fn start(program: &Program, name: &str, folder: &Path) -> anyhow::Result<Self> {
        let log = folder.join(format!("{}.log", name.replace(' ', "-")));
        let child = program
            .command("demo-worker")
            .stdout(log_file(&log)?)
            .stderr(log_file(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            log,
            child,
        })
    }

    /// Its process, while it is not known to have ended.
    pub(super) fn process(&self) -> Option<u32> {
        self.child.id()
    }

    /// Kills it as nothing can be prepared for, and waits until it is gone.
    pub(super) async fn kill(&mut self) -> anyhow::Result<()> {
        let failed = || format!("cannot kill {}", self.name);
        self.child.start_kill().with_context(failed)?;
        let status = self.child.wait().await.with_context(failed)?;
        ensure!(
            status.signal() == Some(SIGKILL),
            "{} was to be killed and had ended by itself ({status})\n{}",
            self.name,
            self.tail()
        );
        Ok(())
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let status = self
            .child
            .try_wait()
            .with_context(|| format!("cannot watch {}", self.name))?;
        match status {
            None => Ok(()),
            Some(status) => Err(anyhow::anyhow!("{} ended too early ({status})", self.name)),
        }
    }

    /// Lets it finish and leave; kills it if it does not.
    pub(super) async fn leave(mut self) -> Option<ExitStatus> {
        drop(self.child.stdin.take());
        if let Ok(Ok(status)) = timeout(LEAVE_TIMEOUT, self.child.wait()).await {
            return Some(status);
        }
        self.child.kill().await.ok()?;
        self.child.wait().await.ok()
    }

    /// The last lines of its log, under a line with its name.
    pub(super) fn tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines
            .get(lines.len().saturating_sub(TAIL_LINES)..)
            .unwrap_or_default();
        let mut text = format!("{}, the end of its log:\n", self.name);
        if tail.is_empty() {
            text += "  (empty)\n";
        }
        for line in tail {
            text += &format!("  {line}\n");
        }
        text
    }
}

fn log_file(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}
