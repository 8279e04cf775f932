//! A proxy that pools transactions over one connection to Postgres, as PgBouncer does with
//! `pool_mode = transaction` and a pool of one.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// The proxy, on a port of its own, which ends with its handle.
pub struct TransactionPooler {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl TransactionPooler {
    /// Starts one before `upstream`, which is `host:port`.
    pub async fn start(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let accepting = tokio::spawn(async move {
            let server: Arc<Mutex<Option<Pooled>>> = Arc::default();
            loop {
                let (client, _) = listener.accept().await.expect("a client");
                tokio::spawn(serve(client, upstream.clone(), server.clone()));
            }
        });
        Self { address, accepting }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for TransactionPooler {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The one connection, and what it answered when it was opened.
struct Pooled {
    stream: TcpStream,
    greeting: Vec<u8>,
}

/// Serves one client until it leaves.
async fn serve(
    mut client: TcpStream,
    upstream: String,
    server: Arc<Mutex<Option<Pooled>>>,
) -> Option<()> {
    let startup = read_startup(&mut client).await?;
    {
        let mut slot = server.lock().await;
        match &*slot {
            Some(pooled) => client.write_all(&pooled.greeting).await.ok()?,
            None => *slot = Some(open(&mut client, &upstream, &startup).await?),
        }
    }
    loop {
        // The first message of a transaction takes the connection, its end gives it back.
        let mut message = read_message(&mut client).await?;
        let mut slot = server.lock().await;
        let stream = &mut slot.as_mut()?.stream;
        loop {
            if message.first() == Some(&b'X') {
                return None;
            }
            stream.write_all(&message).await.ok()?;
            // Only a query or a sync is answered to its end.
            let answered = matches!(message.first(), Some(b'Q' | b'S'));
            if answered && pass_answer(stream, &mut client).await? == b'I' {
                break;
            }
            message = read_message(&mut client).await?;
        }
    }
}

/// Passes answers up to the one that says the server is ready; returns the transaction's state.
async fn pass_answer(server: &mut TcpStream, client: &mut TcpStream) -> Option<u8> {
    loop {
        let answer = read_message(server).await?;
        client.write_all(&answer).await.ok()?;
        if answer.first() == Some(&b'Z') {
            return answer.last().copied();
        }
    }
}

/// Lets the first client log in for all.
async fn open(client: &mut TcpStream, upstream: &str, startup: &[u8]) -> Option<Pooled> {
    let mut stream = TcpStream::connect(upstream).await.ok()?;
    stream.write_all(startup).await.ok()?;
    let mut greeting = Vec::new();
    loop {
        let answer = read_message(&mut stream).await?;
        client.write_all(&answer).await.ok()?;
        let accepted = answer.get(5..9) == Some(&[0; 4]);
        match answer.first() {
            // Whoever comes next is in without being asked.
            Some(b'R') if accepted => greeting.extend_from_slice(&answer),
            // SASL's last message is followed by one more of the server's own.
            Some(b'R') if answer.get(8) == Some(&12) => {}
            Some(b'R') => stream.write_all(&read_message(client).await?).await.ok()?,
            Some(b'Z') => {
                greeting.extend_from_slice(&answer);
                return Some(Pooled { stream, greeting });
            }
            _ => greeting.extend_from_slice(&answer),
        }
    }
}

/// The startup message; a request for TLS before it is declined.
async fn read_startup(client: &mut TcpStream) -> Option<Vec<u8>> {
    const SSL_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();
    loop {
        let message = read_body(client, Vec::new()).await?;
        if message.get(4..8) != Some(&SSL_REQUEST) {
            return Some(message);
        }
        client.write_all(b"N").await.ok()?;
    }
}

async fn read_message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let kind = stream.read_u8().await.ok()?;
    read_body(stream, vec![kind]).await
}

/// Appends a length, which counts itself, and what follows it.
async fn read_body(stream: &mut TcpStream, mut message: Vec<u8>) -> Option<Vec<u8>> {
    let len = stream.read_u32().await.ok()?;
    message.extend_from_slice(&len.to_be_bytes());
    let start = message.len();
    message.resize(start + len as usize - 4, 0);
    stream.read_exact(&mut message[start..]).await.ok()?;
    Some(message)
}
