//! HTTP servers, each on a thread and a runtime of its own, so that a busy pipeline cannot starve
//! them, nor they the pipeline.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::Router;
use tokio_util::sync::CancellationToken;

pub mod operator;

/// How long requests in hand may take to finish once the server is told to end.
const GRACE: Duration = Duration::from_secs(1);

/// Why there is no server. A fault of the configuration: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {listen} ({key}): {source}{}", advice(source))]
pub struct ListenError {
    /// The key of the configuration.
    pub key: &'static str,
    /// The address that it names.
    pub listen: SocketAddr,
    /// Why.
    pub source: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process has this port: choose another, or port 0 for a free one"
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need privileges: choose a higher one"
        }
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        _ => "",
    }
}

/// A server that runs until it is closed or dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    end: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at once, and answers from then on. `beside` runs on the server's runtime as long as
    /// it serves. `key` is the configuration's key that `listen` comes from, for the error.
    pub fn start(
        key: &'static str,
        listen: SocketAddr,
        router: Router,
        beside: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Self, ListenError> {
        let refused = |source| ListenError {
            key,
            listen,
            source,
        };
        let listener = TcpListener::bind(listen).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(refused)?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(refused)?
        };
        let end = CancellationToken::new();
        let ended = end.clone();
        let serve = move || {
            runtime.spawn(beside);
            runtime.block_on(serve(listener, router, ended));
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("http".into()).spawn(serve);
        Ok(Self {
            address,
            end,
            thread: Some(thread.map_err(refused)?),
        })
    }

    /// Where it listens: the port that port 0 became.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more requests, finishes those in hand within a second, and ends. Blocks that long.
    pub fn close(mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the HTTP server's thread ended by a defect in this program");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

async fn serve(listener: tokio::net::TcpListener, router: Router, end: CancellationToken) {
    let serving =
        axum::serve(listener, router).with_graceful_shutdown(end.clone().cancelled_owned());
    let grace = async {
        end.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = serving.into_future() => {
            if let Err(error) = served {
                tracing::error!("the HTTP server ended: {error}");
            }
        }
        () = grace => {}
    }
}
