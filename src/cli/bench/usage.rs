//! What processes took of the processors, as the kernel counted it.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, TcpListener, ToSocketAddrs as _};
use std::ops::Sub;
use std::time::Duration;

/// The kernel counts in hundredths of a second, whatever its own clock does (`USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// Who takes part, in the order of the columns.
pub(super) const PARTS: [&str; 4] = ["onceonly", "kafka", "redis", "postgres"];

/// Processor time of each of [`PARTS`]; none where it does not run on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage(pub(super) [Option<Duration>; PARTS.len()]);

impl Sub for Usage {
    type Output = Self;

    /// What was taken between two readings.
    fn sub(self, before: Self) -> Self {
        let mut taken = self.0;
        for (part, before) in taken.iter_mut().zip(before.0) {
            *part = part
                .zip(before)
                .map(|(after, before)| after.saturating_sub(before));
        }
        Self(taken)
    }
}

/// The servers' processes on this machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Servers {
    /// Who listens on the brokers' port.
    pub(super) kafka: Option<u32>,
    /// As Redis says.
    pub(super) redis: Option<u32>,
    /// The parent of a backend.
    pub(super) postgres: Option<u32>,
}

impl Servers {
    /// Reads how much all have taken so far, with `onceonly` as the process under test.
    pub(super) fn usage(&self, onceonly: u32) -> Usage {
        let processes = Processes::read();
        let parts = [Some(onceonly), self.kafka, self.redis, self.postgres];
        Usage(parts.map(|process| processes.taken(process?)))
    }
}

/// One line of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// By itself, and by children that have ended and were waited for.
    ticks: u64,
}

/// All processes at one moment.
struct Processes(HashMap<u32, Stat>);

impl Processes {
    fn read() -> Self {
        let mut found = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // One that has ended meanwhile is counted by its parent.
            if let Some(stat) = stat(process) {
                found.insert(process, stat);
            }
        }
        Self(found)
    }

    /// What a process and all below it have taken.
    fn taken(&self, root: u32) -> Option<Duration> {
        let mut ticks = self.0.get(&root)?.ticks;
        let mut above = vec![root];
        while let Some(parent) = above.pop() {
            for (process, stat) in &self.0 {
                if stat.parent == parent {
                    ticks += stat.ticks;
                    above.push(*process);
                }
            }
        }
        Some(TICK * u32::try_from(ticks).unwrap_or(u32::MAX))
    }
}

fn stat(process: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// The name in the second field may hold anything, also brackets and spaces.
fn parse_stat(line: &str) -> Option<Stat> {
    let (_, rest) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        // utime, stime, cutime, cstime: fields 14 to 17 of the line.
        ticks: number(11)? + number(12)? + number(13)? + number(14)?,
    })
}

/// The process that a backend of Postgres was forked from, if it runs here.
pub(super) fn postmaster(backend: u32) -> Option<u32> {
    let parent = stat(backend)?.parent;
    (name(backend)?.starts_with("postgres") && name(parent)?.starts_with("postgres"))
        .then_some(parent)
}

/// A process that Redis calls its own, if it is one here.
pub(super) fn redis_server(process: u32) -> Option<u32> {
    let name = name(process)?;
    ["redis", "valkey"]
        .iter()
        .any(|known| name.starts_with(known))
        .then_some(process)
}

fn name(process: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{process}/comm")).ok()
}

/// The process of this machine that listens at an address such as `localhost:9092`.
pub(super) fn listener(address: &str) -> Option<u32> {
    let address = address.to_socket_addrs().ok()?.next()?;
    let is_local = |ip: IpAddr| TcpListener::bind((ip, 0)).is_ok();
    if !is_local(address.ip()) {
        return None;
    }
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| listening(&table, address.port()))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.find(|process| holds_one_of(*process, &sockets))
}

/// The inodes of sockets that listen on a port.
fn listening(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(local_port, 16).ok()? == port && *fields.get(3)? == LISTEN;
        is_it.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
    };
    table.lines().skip(1).filter_map(inode).collect()
}

fn holds_one_of(process: u32, sockets: &[String]) -> bool {
    open_files(process)
        .iter()
        .any(|file| sockets.contains(file))
}

/// What a process has open, as far as we may know.
pub(super) fn open_files(process: u32) -> Vec<String> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd"));
    let targets = descriptors.into_iter().flatten().flatten();
    targets
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect()
}

/// The most memory that a process ever had, in bytes.
pub(super) fn peak_rss_bytes(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_hides_no_field() {
        let line = "12 (a) b (c) S 7 12 12 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5";
        let expected = Stat {
            parent: 7,
            ticks: 100,
        };
        assert_eq!(parse_stat(line), Some(expected));
    }

    #[test]
    fn a_process_counts_with_all_below_it() {
        let stats = [
            (1, 0, 1_000),
            (10, 1, 1),
            (11, 10, 20),
            (12, 11, 300),
            (20, 1, 4_000),
        ];
        let stats = stats.map(|(process, parent, ticks)| (process, Stat { parent, ticks }));
        let processes = Processes(stats.into_iter().collect());
        assert_eq!(processes.taken(10), Some(TICK * 321));
        assert_eq!(processes.taken(99), None);
    }

    #[test]
    fn the_listener_on_a_port_is_found_and_no_other() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap().to_string();
        assert_eq!(listener(&address), Some(std::process::id()));
        drop(socket);
        assert_eq!(listener(&address), None);
        assert_eq!(listener("203.0.113.7:9092"), None);
    }

    #[test]
    fn our_own_memory_has_a_peak() {
        let peak = peak_rss_bytes(std::process::id()).unwrap();
        assert!(peak > 1 << 20, "{peak} bytes");
    }
}
