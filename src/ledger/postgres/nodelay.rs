//! Turns Nagle's algorithm off, which the driver leaves on (sqlx 0.9.0, transact-rs/sqlx#4335: mended
//! there, and not released).
//!
//! With it the last, small message of a `COPY` waits until the server acknowledges the one before,
//! which it puts off for 40 ms, since it has nothing to answer yet.

#![allow(unsafe_code)]

use std::fs;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use socket2::{SockRef, Type};

/// Where a process finds its descriptors: Linux, others.
const DESCRIPTORS: [&str; 2] = ["/proc/self/fd", "/dev/fd"];

/// Sends at once on every TCP connection of this process to this port. The driver does not hand its
/// socket out, and other connections to a Postgres want the same.
///
/// Where descriptors cannot be listed nothing changes; that costs speed only.
pub(super) fn send_at_once(port: u16) {
    let Some(listed) = DESCRIPTORS.iter().find_map(|path| fs::read_dir(path).ok()) else {
        return;
    };
    for entry in listed.flatten() {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<RawFd>().ok());
        let Some(socket) = number.filter(|number| *number >= 0).and_then(duplicate) else {
            continue;
        };
        let socket = SockRef::from(&socket);
        let peer = socket.peer_addr().ok().and_then(|addr| addr.as_socket());
        if peer.as_ref().map(SocketAddr::port) == Some(port)
            && socket.r#type().is_ok_and(|kind| kind == Type::STREAM)
        {
            // What fails stays as it was.
            let _ = socket.set_tcp_nodelay(true);
        }
    }
}

fn duplicate(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the borrow lasts for one call of dup. A descriptor that another thread closes before
    // it gives an error, or another file's duplicate; we read and write neither, and close only the
    // duplicate.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_to_the_port_send_at_once_and_others_are_left_alone() {
        let connect = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            let address = listener.local_addr().expect("its address");
            let stream = TcpStream::connect(address).expect("a connection");
            assert!(!stream.nodelay().expect("an option"));
            (listener, address.port(), stream)
        };
        let (_ours, port, to_ours) = connect();
        let (_other, _, to_other) = connect();
        send_at_once(port);
        assert!(to_ours.nodelay().expect("an option"));
        assert!(!to_other.nodelay().expect("an option"));
    }
}
