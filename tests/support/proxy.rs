//! A TCP proxy that fails on command: what a network does to a client, without touching the server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::PATIENCE;

/// What becomes of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// They pass.
    None,
    /// Connections are closed, and new ones at once.
    Cut,
    /// Answers come later by this.
    Delay(Duration),
    /// Nothing passes in either direction, and nobody is told. What was held back passes when the
    /// fault ends, as after a partition.
    BlackHole,
    /// Requests pass, answers do not; a connection that lost one is closed when the fault ends.
    DropAnswers,
    /// In answers, these bytes become those of the same number.
    Replace(&'static str, &'static str),
}

/// A proxy on a port of its own, which ends with its handle.
pub struct Proxy {
    address: SocketAddr,
    upstream: watch::Sender<String>,
    fault: watch::Sender<Fault>,
    abandoned: watch::Sender<u64>,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    connections: AtomicU64,
    request_bytes: AtomicU64,
    dropped_bytes: AtomicU64,
    advertised: Option<Advertised>,
}

/// A broker's address in Kafka's answers: a host and a port of four bytes, of the same host.
struct Advertised {
    broker: Vec<u8>,
    proxy: Vec<u8>,
}

impl Advertised {
    fn new(broker: u16, proxy: u16) -> Self {
        let bytes = |port: u16| [&b"127.0.0.1"[..], &u32::from(port).to_be_bytes()].concat();
        Self {
            broker: bytes(broker),
            proxy: bytes(proxy),
        }
    }
}

impl Proxy {
    /// Starts a proxy before `upstream`, which is `host:port`.
    pub async fn start(upstream: impl Into<String>) -> Self {
        Self::begin(upstream.into(), None).await
    }

    async fn begin(upstream: String, advertised_port: Option<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let upstream = watch::Sender::new(upstream);
        let fault = watch::Sender::new(Fault::None);
        let abandoned = watch::Sender::new(0);
        let shared = Arc::new(Shared {
            advertised: advertised_port.map(|port| Advertised::new(port, address.port())),
            ..Shared::default()
        });
        let accepting = tokio::spawn(accept(
            listener,
            upstream.subscribe(),
            fault.clone(),
            abandoned.clone(),
            shared.clone(),
        ));
        Self {
            address,
            upstream,
            fault,
            abandoned,
            shared,
            accepting,
        }
    }

    /// Starts a proxy before a Kafka broker, which tells clients to reach it through the proxy: its
    /// address is replaced by the proxy's in every answer that gives it.
    pub async fn before_broker(broker: impl Into<String>) -> Self {
        let broker = broker.into();
        let upstream = tokio::net::lookup_host(&broker).await.ok();
        let upstream = upstream.and_then(|mut found| found.next());
        let port = upstream.expect("one broker, as host:port").port();
        Self::begin(broker, Some(port)).await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// New connections go to another server; those that stand are not concerned.
    pub fn redirect(&self, upstream: impl Into<String>) {
        self.upstream.send_replace(upstream.into());
    }

    /// From now on this happens, on connections that stand too.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Connections that stand pass nothing any more and nobody is told, as after a failover; new
    /// ones are not concerned.
    pub fn abandon(&self) {
        self.abandoned.send_replace(self.connections());
    }

    /// Connections that were accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Bytes of requests that the server was given so far.
    pub fn request_bytes(&self) -> u64 {
        self.shared.request_bytes.load(Ordering::SeqCst)
    }

    /// Waits until an answer was dropped: the server has done what it was asked.
    pub async fn answer_dropped(&self) {
        let dropped = async {
            while self.shared.dropped_bytes.swap(0, Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, dropped)
            .await
            .expect("an answer to drop");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    upstream: watch::Receiver<String>,
    fault: watch::Sender<Fault>,
    abandoned: watch::Sender<u64>,
    shared: Arc<Shared>,
) {
    // Connections end with the proxy.
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
        let upstream = upstream.borrow().clone();
        let (fault, shared) = (fault.subscribe(), shared.clone());
        let mut abandoned = abandoned.subscribe();
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(&upstream).await else {
                return;
            };
            let mut serve = std::pin::pin!(serve(client, server, fault, &shared));
            tokio::select! {
                () = &mut serve => return,
                () = given_up(&mut abandoned, number) => {}
            }
            // What is not polled passes nothing, and closes nothing while it is held.
            std::future::pending::<()>().await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn given_up(abandoned: &mut watch::Receiver<u64>, number: u64) {
    // An error means that the proxy ends.
    _ = abandoned.wait_for(|abandoned| *abandoned >= number).await;
}

async fn serve(
    client: TcpStream,
    server: TcpStream,
    mut fault: watch::Receiver<Fault>,
    shared: &Shared,
) {
    _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let requests = pass_requests(client_reads, server_writes, fault.clone(), shared);
    let answers = pass_answers(server_reads, client_writes, fault.clone(), shared);
    tokio::select! {
        () = requests => {}
        () = answers => {}
        _ = fault.wait_for(|fault| *fault == Fault::Cut) => {}
    }
}

async fn pass_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut fault: watch::Receiver<Fault>,
    shared: &Shared,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if fault.wait_for(|f| *f != Fault::BlackHole).await.is_err() {
            return;
        }
        shared
            .request_bytes
            .fetch_add(read as u64, Ordering::SeqCst);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn pass_answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut fault: watch::Receiver<Fault>,
    shared: &Shared,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut lost = false;
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            // A stream with a gap is none.
            _ = fault.wait_for(|f| *f != Fault::DropAnswers), if lost => return,
        };
        let Ok(read @ 1..) = read else {
            return;
        };
        let Ok(now) = fault
            .wait_for(|f| *f != Fault::BlackHole)
            .await
            .map(|fault| fault.clone())
        else {
            return;
        };
        let answer = &mut buffer[..read];
        if let Some(Advertised { broker, proxy }) = &shared.advertised {
            replace(answer, broker, proxy);
        }
        match now {
            Fault::DropAnswers => {
                lost = true;
                shared
                    .dropped_bytes
                    .fetch_add(read as u64, Ordering::SeqCst);
                continue;
            }
            Fault::Delay(delay) => tokio::time::sleep(delay).await,
            Fault::Replace(this, that) => replace(answer, this.as_bytes(), that.as_bytes()),
            Fault::None | Fault::Cut | Fault::BlackHole => {}
        }
        if to.write_all(answer).await.is_err() {
            return;
        }
    }
}

fn replace(bytes: &mut [u8], this: &[u8], that: &[u8]) {
    assert_eq!(this.len(), that.len(), "lengths must be the same");
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(this.len()).position(|w| w == this) {
        at += found;
        bytes[at..at + this.len()].copy_from_slice(that);
    }
}
