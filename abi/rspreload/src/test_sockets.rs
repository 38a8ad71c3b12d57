//! The kernel's sockets for unit tests, which have them in the part of rsockets, too.

use std::net::{TcpListener, TcpStream};

/// A connection: the end that connected, and the accepted one.
pub fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}
