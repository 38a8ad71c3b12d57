//! The two output formats: columns for people, JSON for programs.

use std::io::{self, IsTerminal, Write};

use serde_json::{Value, json};

use crate::sock_diag::Counters;
use crate::socket::{Address, Details, Socket, State};

/// Version of the JSON format: it changes when a name is removed or gets another meaning.
const SCHEMA: u32 = 2;

/// Clears the screen before the next list if standard output is a terminal; otherwise writes an
/// empty line.
pub fn clear(out: &mut impl Write) -> io::Result<()> {
    if io::stdout().is_terminal() { write!(out, "\x1b[H\x1b[2J") } else { writeln!(out) }
}

/// Writes a header line and a line for each socket, followed by its counters if `extended` is true.
pub fn text(out: &mut impl Write, sockets: &[Socket], extended: bool) -> io::Result<()> {
    writeln!(
        out,
        "{:<7} {:<4} {:>9} {:>9} {:>7}  {:<28} {:<28} {:<10} {:>4} Process",
        "State", "Way", "Recv-Q", "Send-Q", "Credits", "Local", "Peer", "Device", "FD"
    )?;
    for socket in sockets {
        line(out, socket)?;
        if let Some(details) = socket.details.as_ref().filter(|_| extended) {
            extension(out, socket.state, details)?;
        }
        if let Some(counters) = socket.tcp.as_ref().filter(|_| extended) {
            tcp_extension(out, counters)?;
        }
    }
    Ok(())
}

fn line(out: &mut impl Write, socket: &Socket) -> io::Result<()> {
    let details = socket.details.as_ref();
    let credits = details.filter(|_| matches!(socket.state, State::Connected | State::Closing));
    let device = details.filter(|details| !details.device.is_empty());
    let device = device.map_or_else(|| "-".to_owned(), |details| format!("{}/{}", details.device, details.port));
    writeln!(
        out,
        "{:<7} {:<4} {:>9} {:>9} {:>7}  {:<28} {:<28} {:<10} {:>4} {}/{}",
        socket.state.name(),
        socket.way(),
        number(socket.receive_queue),
        number(socket.send_queue),
        number(credits.map(|details| details.credits)),
        socket.local,
        socket.peer,
        device,
        socket.fd,
        socket.pid,
        socket.command
    )
}

fn number(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

fn count(number: u64, unit: &str) -> String {
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}

fn extension(out: &mut impl Write, state: State, details: &Details) -> io::Result<()> {
    if state == State::Listening {
        return writeln!(out, "        backlog {}", details.backlog);
    }
    writeln!(
        out,
        "        sent {} in {}, received {} in {}, {} to send, buffers of {} and {} bytes, QP {:#08x}",
        count(details.sent_bytes, "byte"),
        count(details.sent_messages, "message"),
        count(details.received_bytes, "byte"),
        count(details.received_messages, "message"),
        count(details.send_waits, "wait"),
        details.send_buffer,
        details.receive_buffer,
        details.qp_number
    )
}

fn tcp_extension(out: &mut impl Write, counters: &Counters) -> io::Result<()> {
    let bytes = counters
        .bytes
        .map(|(sent, received)| format!("sent {}, received {}", count(sent, "byte"), count(received, "byte")));
    let buffers = counters.buffers.map(|(send, receive)| format!("buffers of {send} and {receive} bytes"));
    match [bytes, buffers].into_iter().flatten().collect::<Vec<_>>() {
        parts if parts.is_empty() => Ok(()),
        parts => writeln!(out, "        {}", parts.join(", ")),
    }
}

/// Writes one JSON object, in one line.
pub fn json(out: &mut impl Write, sockets: &[Socket]) -> io::Result<()> {
    let sockets: Vec<Value> = sockets.iter().map(object).collect();
    writeln!(out, "{}", json!({ "schema": SCHEMA, "sockets": sockets }))
}

/// Returns the JSON object of a socket. The object has all names: a value that the socket does not
/// have, or that is unknown, is null.
fn object(socket: &Socket) -> Value {
    let details = socket.details.as_ref();
    let device = details.filter(|details| !details.device.is_empty());
    let data = details.filter(|_| socket.state != State::Listening);
    let stream = data.filter(|_| socket.state != State::Datagram);
    let (bytes, buffers) = socket.tcp.map_or((None, None), |counters| (counters.bytes, counters.buffers));
    json!({
        "pid": socket.pid,
        "command": socket.command,
        "fd": socket.fd,
        "state": socket.state.name(),
        "way": socket.way(),
        "local": address(&socket.local),
        "peer": address(&socket.peer),
        "receive_queue": socket.receive_queue,
        "send_queue": socket.send_queue,
        "device": device.map(|details| &details.device),
        "port": device.map(|details| details.port),
        "qp_number": data.map(|details| details.qp_number).filter(|&number| number != 0),
        "backlog": details.filter(|_| socket.state == State::Listening).map(|details| details.backlog),
        "sent_bytes": data.map(|details| details.sent_bytes).or(bytes.map(|(sent, _)| sent)),
        "sent_messages": data.map(|details| details.sent_messages),
        "received_bytes": data.map(|details| details.received_bytes).or(bytes.map(|(_, received)| received)),
        "received_messages": data.map(|details| details.received_messages),
        "send_waits": data.map(|details| details.send_waits),
        "credits": stream.map(|details| details.credits),
        "send_buffer": data.map(|details| details.send_buffer).or(buffers.map(|(send, _)| send)),
        "receive_buffer": data.map(|details| details.receive_buffer).or(buffers.map(|(_, receive)| receive)),
    })
}

/// Returns the text of an address, or `None` if the address is not set.
fn address(address: &Address) -> Option<String> {
    let is_set = match address {
        Address::None => false,
        Address::Ip(address) => address.port() != 0 || !address.ip().is_unspecified(),
        Address::Gid(..) => true,
    };
    is_set.then(|| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn null_stands_for_what_there_is_not() {
        let details = Details { device: "rxe0".into(), port: 1, backlog: 8, ..Details::default() };
        let mut socket = Socket {
            pid: 1,
            command: "x".into(),
            fd: 3,
            state: State::Listening,
            local: Address::Ip("0.0.0.0:80".parse().unwrap()),
            peer: Address::None,
            receive_queue: None,
            send_queue: None,
            details: Some(details.clone()),
            tcp: None,
        };
        let nulls = |socket: &Socket| {
            let object = object(socket);
            let names = object.as_object().unwrap().iter().filter(|(_, value)| value.is_null());
            names.map(|(name, _)| name.clone()).collect::<Vec<_>>().join(" ")
        };
        let counters = "credits peer qp_number receive_buffer receive_queue received_bytes received_messages";
        assert_eq!(nulls(&socket), format!("{counters} send_buffer send_queue send_waits sent_bytes sent_messages"));
        socket.state = State::Connected;
        (socket.receive_queue, socket.send_queue) = (Some(0), Some(0));
        socket.peer = Address::Ip("10.0.0.1:80".parse().unwrap());
        socket.details = Some(Details { device: String::new(), qp_number: 7, ..details });
        assert_eq!(nulls(&socket), "backlog device port");
        socket.details = None;
        socket.tcp = Some(Counters { bytes: Some((1, 2)), buffers: None });
        let rsockets = "backlog credits device port qp_number receive_buffer received_messages send_buffer";
        assert_eq!(nulls(&socket), format!("{rsockets} send_waits sent_messages"));
        assert_eq!(object(&socket)["received_bytes"], 2);
    }
}
